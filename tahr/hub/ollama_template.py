"""Ollama's chat templates, which are written in Go's template language, as Jinja: the part of it that templates use.

What has no counterpart raises `Untranslatable`; nothing here runs a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|`[^`]*`|\$?(?:\.[A-Za-z_]\w*)+|\$[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|\$|\.|-?\d+|[A-Za-z_]\w*|[()|,]|:=|='
)
_SPACE = re.compile(r"\s*")
MAX_CHARS = 64 * 1024  # limit on a template, before and after translation
MAX_TOKENS = 4096  # limit on a tag
# Fields of the root, as variables the prologue sets; and fields of messages and tools, as they are called in requests.
ROOT = {"System", "Messages", "Tools", "Prompt", "Response", "Suffix", "Think", "IsThinkSet", "ThinkLevel"}
FIELDS = {
    "Role": "role", "Content": "content", "ToolCalls": "tool_calls", "Function": "function", "Name": "name",
    "Arguments": "arguments", "Parameters": "parameters", "Description": "description", "Type": "type",
    "Thinking": "reasoning_content", "ToolName": "name", "Properties": "properties", "Required": "required",
}  # fmt: skip
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_WORDS = {"true": "true", "false": "false", "nil": "none"}


# Values of a template's variables.
PROLOGUE = (
    "{% set given = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('\\n\\n') %}"
    "{% set System = given or DEFAULT %}{% set Tools = tools or [] %}"
)
MESSAGES = (
    "{% set Messages = ([{'role': 'system', 'content': System}] if System and not given else []) + messages %}"
    "{% set Prompt = '' %}{% set Response = '' %}{% set Suffix = '' %}"
)
TURNS = (
    "{% set ns = namespace(system=System, prompt='') %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% if ns.prompt %}{{ turn(ns.system, ns.prompt, '', false) }}{% set ns.system = '' %}"
    "{% endif %}{% set ns.prompt = m.content %}"
    "{% elif m.role == 'assistant' %}{{ turn(ns.system, ns.prompt, m.content, false) }}"
    "{% set ns.system = '' %}{% set ns.prompt = '' %}{% endif %}{% endfor %}"
    "{% if ns.prompt or add_generation_prompt %}{{ turn(ns.system, ns.prompt, '', true) }}{% endif %}"
)


class Untranslatable(Exception):
    """The template uses something that is not translated; the text says what."""


def to_jinja(source: str, system: str = "") -> str:
    """The template as Jinja over `messages` and `tools`; `system` is the prompt where no message gives one."""
    if len(source) > MAX_CHARS:
        raise Untranslatable("its length")
    try:
        return _translated(source, system)
    except RecursionError:
        raise Untranslatable("its depth") from None


def _translated(source: str, system: str) -> str:
    parts = list(_split(source))
    start = PROLOGUE.replace("DEFAULT", _quoted(system))
    if any(kind == "tag" and ".Messages" in text for kind, text in parts):
        return start + MESSAGES + _Translator(parts).text
    return start + _by_turns(parts)


def _by_turns(parts: list[tuple[str, str]]) -> str:
    """A template of one turn: applied to every question with its answer, and to the last one up to the answer."""
    at = next((i for i, part in enumerate(parts) if part == ("tag", ".Response")), len(parts))
    before = _Translator(parts[:at]).text
    after = _Translator(parts[at + 1 :]).text
    rest = f"{{% if not last %}}{{{{ Response }}}}{after}{{% endif %}}"
    return f"{{% macro turn(System, Prompt, Response, last) %}}{before}{rest}{{% endmacro %}}{TURNS}"


def _split(source: str) -> Iterator[tuple[str, str]]:
    """Texts and tags in order; white space that a tag trims is gone."""
    at = 0
    trim = False
    # Searched for by hand: an expression would try every place where a tag without an end may be cut.
    while (begin := source.find("{{", at)) >= 0 and (end := source.find("}}", begin + 2)) >= 0:
        text = source[at:begin]
        tag = source[begin + 2 : end]
        text = text.lstrip() if trim else text
        trims_before = tag[:1] == "-" and tag[1:2].isspace()
        yield "text", text.rstrip() if trims_before else text
        tag = tag[1:] if trims_before else tag
        trim = tag[-1:] == "-" and tag[-2:-1].isspace()
        tag = (tag[:-1] if trim else tag).strip()
        if not tag.startswith("/*"):
            yield "tag", tag
        at = end + 2
    yield "text", source[at:].lstrip() if trim else source[at:]


def _quoted(text: str) -> str:
    """A Jinja string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


class _Translator:
    """Walks over the parts; `_dots` is what a lone dot means at each depth of `range`."""

    def __init__(self, parts: list[tuple[str, str]]):
        self._dots: list[str] = [""]
        self._blocks: list[str] = []
        self.text = ""
        for kind, text in parts:
            self.text += self._tag(text) if kind == "tag" else self._literal(text)
            _refuse_long(len(self.text))
        if self._blocks:
            raise Untranslatable("a block without an end")

    @staticmethod
    def _literal(text: str) -> str:
        return f"{{{{ {_quoted(text)} }}}}" if text else ""

    def _tag(self, text: str) -> str:
        word, _, rest = text.partition(" ")
        if word in TAGS:
            return TAGS[word](self, rest.strip())
        tokens = _tokens(text)
        if len(tokens) > 2 and tokens[0].startswith("$") and tokens[1] in (":=", "="):
            if tokens[1] == "=" and len(self._dots) > 1:
                raise Untranslatable("an assignment inside a loop")
            return f"{{% set {_variable(tokens[0])} = {self._expression(tokens[2:])} %}}"
        value = self._expression(tokens)
        return f"{{{{ {value} | tojson if {value} is not string else {value} }}}}"

    def _if(self, rest: str) -> str:
        self._blocks.append("if")
        return f"{{% if {self._expression(_tokens(rest))} %}}"

    def _else(self, rest: str) -> str:
        if not self._blocks or self._blocks[-1] != "if":
            raise Untranslatable("an else outside an if")
        return f"{{% elif {self._expression(_tokens(rest.removeprefix('if ')))} %}}" if rest else "{% else %}"

    def _range(self, rest: str) -> str:
        tokens = _tokens(rest)
        names: list[str] = []
        if ":=" in tokens:
            cut = tokens.index(":=")
            names = [_variable(token) for token in tokens[:cut] if token != ","]
            tokens = tokens[cut + 1 :]
        values = self._expression(tokens)
        self._blocks.append("for")
        element = names[-1] if names else f"item{len(self._dots)}"
        self._dots.append(element)
        index = f"{{% set {names[0]} = loop.index0 %}}" if len(names) == 2 else ""
        return f"{{% for {element} in {values} %}}{index}"

    def _end(self, rest: str) -> str:
        if not self._blocks:
            raise Untranslatable("an end without a block")
        block = self._blocks.pop()
        if block == "for":
            self._dots.pop()
        return f"{{% end{block} %}}"

    # ---- expressions ------------------------------------------------------------------------------------------

    def _expression(self, tokens: list[str]) -> str:
        value, rest = self._pipeline(tokens)
        if rest:
            raise Untranslatable(f"`{' '.join(rest)}`")
        return value

    def _pipeline(self, tokens: list[str]) -> tuple[str, list[str]]:
        value, tokens = self._command(tokens, None)
        while tokens and tokens[0] == "|":
            value, tokens = self._command(tokens[1:], value)
        return value, tokens

    def _command(self, tokens: list[str], piped: str | None) -> tuple[str, list[str]]:
        if not tokens:
            raise Untranslatable("an empty expression")
        name = tokens[0]
        values = list[str]()
        is_call = bool(re.fullmatch(r"[A-Za-z_]\w*", name)) and name not in _WORDS
        tokens = tokens[1:] if is_call else tokens
        while tokens and tokens[0] not in (")", "|"):
            value, tokens = self._operand(tokens)
            values.append(value)
        values += [] if piped is None else [piped]
        if is_call:
            _refuse_long(len(values[0]) * len(values) if values else 0)  # a comparison repeats the first
            return _call(name, values), tokens
        if len(values) != 1:
            raise Untranslatable(f"`{name}` with arguments")
        return values[0], tokens

    def _operand(self, tokens: list[str]) -> tuple[str, list[str]]:
        token = tokens[0]
        rest = tokens[1:]
        if token == "(":
            value, rest = self._pipeline(rest)
            if not rest or rest[0] != ")":
                raise Untranslatable("an unclosed parenthesis")
            return f"({value})", rest[1:]
        if token[0] in '"`':
            return _quoted(_unquoted(token)), rest
        if token in _WORDS or token.lstrip("-").isdigit():
            return _WORDS.get(token, token), rest
        return self._path(token), rest

    def _path(self, token: str) -> str:
        head, *fields = token.split(".")
        base = _variable(head) if len(head) > 1 else "" if head == "$" else self._dots[-1]
        fields = [field for field in fields if field]
        if not base:
            if not fields or fields[0] not in ROOT:
                raise Untranslatable(f"`{token}`")
            base = fields[0]
            fields = fields[1:]
        unknown = [field for field in fields if field not in FIELDS]
        if unknown:
            raise Untranslatable(f"the field {unknown[0]}")
        return ".".join([base, *(FIELDS[field] for field in fields)])


TAGS: dict[str, Callable[[_Translator, str], str]] = {
    "if": _Translator._if,
    "else": _Translator._else,
    "range": _Translator._range,
    "end": _Translator._end,
}


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = _SPACE.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or len(found) == MAX_TOKENS:
            raise Untranslatable(f"`{text[:200]}`")
        found.append(token[0])
        at = _SPACE.match(text, token.end()).end()  # type: ignore[union-attr]
    return found


def _refuse_long(n_chars: int) -> None:
    if n_chars > MAX_CHARS:
        raise Untranslatable("its length")


def _variable(token: str) -> str:
    if not re.fullmatch(r"\$\w+", token):
        raise Untranslatable(f"`{token}`")
    return f"var_{token[1:]}"


def _unquoted(token: str) -> str:
    if token[0] == "`":
        return token[1:-1]
    try:
        return token[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:
        raise Untranslatable(f"`{token[:200]}`") from None


def _call(name: str, values: list[str]) -> str:
    if name in _COMPARISONS and len(values) >= 2:
        tests = " or ".join(f"{values[0]} {_COMPARISONS[name]} {value}" for value in values[1:])
        return f"({tests})"
    if name in ("and", "or") and values:
        return f"({f' {name} '.join(values)})"
    if name == "not" and len(values) == 1:
        return f"(not {values[0]})"
    if name == "len" and len(values) == 1:
        return f"({values[0]} | length)"
    if name == "slice" and len(values) in (2, 3):
        return f"{values[0]}[{values[1]}:{values[2] if len(values) == 3 else ''}]"
    if name == "index" and len(values) == 2:
        return f"{values[0]}[{values[1]}]"
    if name == "json" and len(values) == 1:
        return f"({values[0]} | tojson)"
    if name == "currentDate" and not values:
        return 'strftime_now("%Y-%m-%d")'
    raise Untranslatable(f"`{name}`")
