"""A model's own chat template: a conversation to the text the model was trained to continue."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tahr.errors import TemplateError
from tahr.text.replies.thinking import SWITCHES, ThinkingMarks, thinking_marks
from tahr.text.templates.budget import Budget, OverBudget, spending
from tahr.text.templates.traits import TemplateTraits, traits_of
from tahr.text.tokens.json_object import read_bytes, read_object
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.text.tool_calls.call_formats import GENERIC, CallFormat, call_format_named, call_format_of

if TYPE_CHECKING:
    import jinja2

    from tahr.text.templates.sandbox import Sandbox

T = TypeVar("T")

SECONDS_PER_MESSAGE = 0.005  # an honest template's time grows with the conversation
MAX_SOURCE_CHARS = 64 * 1024  # the longest released template has 17,000
MAX_DATE_CHARS = 1024


class ChatTemplate:
    """One model's template; it is compiled when first used, so that a broken one does not stop plain completion.

    `tool_use` is the template some models bring for use with tools; `seconds` and `max_chars` bound rendering.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str = "",
        eos: str = "",
        tool_use: str | None = None,
        seconds: float = 1.0,
        max_chars: int = 4 * 1024 * 1024,
        now: Callable[[], datetime] = datetime.now,
        tool_call_parser: str | None = None,
    ) -> None:
        self.source = source
        self.tool_call_parser = tool_call_parser  # the name of a call format; None: the template shows which
        self.tool_use = tool_use
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._seconds = seconds
        self._max_chars = max_chars
        self._now = now

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text of a conversation, up to where the model is to answer."""
        template = self._with_tools if tools and self.tool_use else self._plain
        given = {**self._tokens, "documents": None, **variables}
        given |= {"messages": list(messages), "tools": list(tools) if tools else None}
        given["add_generation_prompt"] = add_generation_prompt
        return self._run(lambda: template.render(given), n_messages=len(messages))

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names the template asks for, such as `enable_thinking` where it can switch thinking."""
        from jinja2 import meta

        def names(source: str) -> set[str]:
            _refuse_long(source)
            return meta.find_undeclared_variables(self._sandbox.parse(source))

        return frozenset(self._run(lambda: names(self.source) | names(self.tool_use or "")))

    @cached_property
    def call_format(self) -> CallFormat:
        """How the model writes its tool calls."""
        if self.tool_call_parser:
            return call_format_named(self.tool_call_parser)
        return call_format_of(self.source + (self.tool_use or "")) or GENERIC

    @cached_property
    def thinking(self) -> ThinkingMarks | None:
        """How the model marks its thinking; None if it does not think."""
        return thinking_marks(self.source + (self.tool_use or ""))

    @cached_property
    def thinks_by_default(self) -> bool:
        """Whether the model thinks where a request says nothing about it."""
        switches = [name for name in SWITCHES if name in self.variables]
        if self.thinking is None or not switches:
            return self.thinking is not None
        on: dict[str, Any] = dict.fromkeys(switches, True)
        messages = [{"role": "user", "content": "Hi"}]
        return self.render(messages) == self.render(messages, **on)

    @cached_property
    def traits(self) -> TemplateTraits:
        """The template's way with tools."""
        return traits_of(self)

    @cached_property
    def _plain(self) -> "jinja2.Template":
        return self._compile(self.source)

    @cached_property
    def _with_tools(self) -> "jinja2.Template":
        return self._compile(self.tool_use or self.source)

    def _compile(self, source: str) -> "jinja2.Template":
        _refuse_long(source)
        # Jinja works out what it can when it compiles, and writes it into the program.
        made = self._run(lambda: self._sandbox.from_string(source), max_chars=MAX_SOURCE_CHARS)
        made.globals = dict(made.globals)  # copied for every rendering, and a chain of two dictionaries is slow to copy
        return made

    @cached_property
    def _sandbox(self) -> "Sandbox":
        from tahr.text.templates.sandbox import Sandbox

        sandbox = Sandbox()
        sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": self._strftime_now}
        return sandbox

    def _strftime_now(self, form: str) -> str:
        if len(form) > MAX_DATE_CHARS or re.search(r"%[^a-zA-Z%]*\d", form):
            raise ValueError(f"strftime_now takes up to {MAX_DATE_CHARS} characters and no widths")
        return self._now().strftime(form)

    def _run(self, work: Callable[[], T], n_messages: int = 0, max_chars: int | None = None) -> T:
        """Run something of Jinja's inside the budget, and say in a sentence what went wrong."""
        budget = Budget(self._seconds + SECONDS_PER_MESSAGE * n_messages, max_chars or self._max_chars)
        try:
            made = spending(budget, work)
            budget.admit(len(made) if isinstance(made, str) else 0)
            return made
        except TemplateError:
            raise
        except Exception as error:  # a template can raise anything Python's operators raise
            raise TemplateError(f"The model's chat template {_what(error)}") from error


def _refuse_long(source: str) -> None:
    if len(source) > MAX_SOURCE_CHARS:
        raise TemplateError(
            f"The model's chat template is {len(source)} characters long, "
            f"and Tahr reads {MAX_SOURCE_CHARS} at most: use another file of this model, or plain completion."
        )


class Refused(Exception):
    """The template called `raise_exception`."""


def _what(error: Exception) -> str:
    """A template's error in words."""
    from jinja2 import TemplateSyntaxError

    if isinstance(error, Refused):
        return f"refuses this conversation: {error}"
    if isinstance(error, OverBudget):
        return f"was stopped because it {error}."
    if isinstance(error, TemplateSyntaxError):
        return f"is broken at line {error.lineno}: {error.message}"
    if isinstance(error, RecursionError):
        return "nests or calls itself too deeply."
    return f"failed: {error or type(error).__name__}"


def _raise_exception(message: object) -> None:
    raise Refused(message if isinstance(message, str) else type(message).__name__)


def template_for(source: Path | Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template in a model directory or in GGUF metadata; None for a base model, which has none."""
    named = _from_dir(source) if isinstance(source, Path) else _from_gguf(source)
    default = named.get("default")
    tool_use = named.get("tool_use")
    if default is None and tool_use is None:
        return None
    return ChatTemplate(
        default or tool_use or "",
        tool_use=tool_use,
        bos="" if tokenizer.bos_id is None else tokenizer.piece(tokenizer.bos_id),
        eos="" if tokenizer.eos_id is None else tokenizer.piece(tokenizer.eos_id),
    )


def _from_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    fields = {"default": "tokenizer.chat_template", "tool_use": "tokenizer.chat_template.tool_use"}
    found = {name: metadata[field] for name, field in fields.items() if metadata.get(field)}
    return _checked(found, "The GGUF metadata")


def _checked(named: Mapping[Any, Any], where: str) -> dict[str, str]:
    if all(isinstance(part, str) for pair in named.items() for part in pair):
        return dict(named)
    raise TemplateError(f"{where} holds a chat template that is no text: download it again.")


def _from_dir(path: Path) -> dict[str, str]:
    for name, read in _FILES.items():
        file = path / name
        if file.is_file() and (found := read(file)):
            return found
    return {}


def _from_json(file: Path) -> dict[str, str]:
    value = read_object(file, TemplateError).get("chat_template") or {}
    if not isinstance(value, list):
        return _checked({"default": value} if value else {}, str(file))
    if not all(isinstance(entry, dict) and {"name", "template"} <= entry.keys() for entry in value):
        raise TemplateError(f"{file} lists a chat template without a name or a text: download it again.")
    return _checked({str(entry["name"]): entry["template"] for entry in value}, str(file))


def _text(file: Path) -> str:
    try:
        return read_bytes(file, TemplateError).decode()
    except UnicodeDecodeError as error:
        raise TemplateError(f"{file} is not UTF-8 text: download it again.") from error


def _from_jinja(file: Path) -> dict[str, str]:
    """The text of the file, and the one for use with tools in the folder beside it."""
    tool_use = file.with_name("additional_chat_templates") / "tool_use.jinja"
    return {"default": _text(file), **({"tool_use": _text(tool_use)} if tool_use.is_file() else {})}


# Where models keep their template, the first that has one counts. As in transformers a file of its own comes before
# the tokenizer's configuration, which may still hold the one that it replaced.
_FILES: dict[str, Callable[[Path], dict[str, str]]] = {
    "chat_template.jinja": _from_jinja,
    "tokenizer_config.json": _from_json,
    "chat_template.json": _from_json,
}
