"""A chat template's way with tools, found out by rendering small conversations with it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tahr.errors import TemplateError

Message = Mapping[str, Any]

CALLED = "zz_called"
VALUE = "zz_value"
RESULT = "zz_result"
OFFERED = "zz_offered"
SAID = "zz_said"
THOUGHT = "zz_thought"
AS_IT_IS = re.compile(r"""["']thinking["']\s*:""")  # a part of a content that a template does not read but writes out
OFFER = {
    "type": "function",
    "function": {
        "name": OFFERED,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "Any."}}},
    },
}
USER: Message = {"role": "user", "content": "Hi"}
ANSWER: Message = {"role": "assistant", "content": "Hi"}
SYSTEM: Message = {"role": "system", "content": "zz_instructions"}
IDS = ("abcdefgh1", "abcdefgh2")  # short enough for templates that are strict about ids


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """A chat template's way with tools, calls and results."""

    takes_system: bool = False  # instructions have a place in it
    knows_tools: bool = False  # tools are shown to the model
    writes_calls: bool = False  # calls are shown to the model
    takes_results: bool = False  # results are shown to the model
    text_arguments: bool = False  # arguments are JSON text instead of an object
    empty_content: str | None = ""  # content of a message that holds calls alone
    several_calls: bool = True  # a message may hold more than one
    calls_with_text: bool = True  # a message may hold text and calls; else the calls are not shown
    thought_name: str = "reasoning_content"  # field for the thoughts before a message; see `THOUGHTS`
    thought_or_text: bool = False  # a message with calls cannot have both


class Renderer(Protocol):
    """All that is needed of a template."""

    def render(self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None) -> str: ...


def traits_of(template: Renderer) -> TemplateTraits:
    """Try out what a template does."""
    knows_tools = OFFERED in attempt(template, [USER])
    form = next((form for form in FORMS if CALLED in attempt(template, [USER, calls(*form)])), None)
    arguments, content = form or FORMS[0]
    history = [USER, calls(arguments, content) if form else ANSWER, *results(1)]
    both = [USER, calls(arguments, content, 2), *results(2)]
    thought_name = name_of_thoughts(template, calls(arguments, content) if form else ANSWER)
    said = calls(arguments, SAID)
    return TemplateTraits(
        takes_system=SYSTEM["content"] in attempt(template, [SYSTEM, USER]),
        knows_tools=knows_tools,
        writes_calls=form is not None,
        takes_results=RESULT in attempt(template, history),
        text_arguments=isinstance(arguments, str),
        empty_content=content,
        several_calls=form is None or attempt(template, both).count(VALUE) > 1,
        calls_with_text=form is None or CALLED in attempt(template, [USER, said]),
        thought_name=thought_name,
        thought_or_text=form is not None and not attempt(template, [USER, THOUGHTS[thought_name](said, THOUGHT)]),
    )


def thought_block(message: Message, thought: str) -> Message:
    """Thinking as the first part of the content."""
    content = message.get("content") or ()
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [{"type": "thinking", "thinking": thought}, *parts]}


def named(name: str) -> Callable[[Message, str], Message]:
    return lambda message, thought: {**message, name: thought}


# How templates are given what was thought before a message, the way most take first.
THOUGHTS: dict[str, Callable[[Message, str], Message]] = {
    **{name: named(name) for name in ("reasoning_content", "reasoning", "thinking")},
    "content": thought_block,
}


def name_of_thoughts(template: Renderer, message: Message) -> str:
    """Under which name a template shows thinking; the usual one where it shows none."""
    shown = {name: attempt(template, [USER, give(message, THOUGHT)]) for name, give in THOUGHTS.items()}
    read = (name for name, text in shown.items() if THOUGHT in text and not AS_IT_IS.search(text))
    return next(read, "reasoning_content")


# Arguments and content of a message with a call, the form most templates take first.
FORMS: tuple[tuple[Any, str | None], ...] = tuple(
    (arguments, content) for arguments in ({"a": VALUE}, f'{{"a": "{VALUE}"}}') for content in ("", None)
)


def calls(arguments: Any, content: str | None, n: int = 1) -> Message:
    made = [{"id": id, "type": "function", "function": {"name": CALLED, "arguments": arguments}} for id in IDS[:n]]
    return {"role": "assistant", "content": content, "tool_calls": made}


def results(n: int) -> list[Message]:
    return [{"role": "tool", "tool_call_id": id, "name": CALLED, "content": RESULT} for id in IDS[:n]]


def attempt(template: Renderer, messages: Sequence[Message]) -> str:
    """Render a conversation; nothing where the template cannot."""
    try:
        return template.render(messages, tools=[OFFER])
    except TemplateError:
        return ""
