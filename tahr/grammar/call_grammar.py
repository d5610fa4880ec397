"""Grammars of tool calls: in the model's own format, with the names of the tools and arguments by their schemas."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tahr.errors import GrammarError
from tahr.grammar.call_text import text_terminal, texts_of
from tahr.grammar.json_rule import json_rule, loose_rule
from tahr.grammar.schema_check import UNENFORCED, SchemaRefused, pointer, values_in
from tahr.grammar.schema_place import Problem, meaning_of
from tahr.grammar.spec import Grammar
from tahr.text.tokens.special_names import SpecialNames
from tahr.text.tool_calls.call_formats import BY_NAME, CallFormat, HarmonyForm
from tahr.text.tool_calls.literal_calls import BARE_KEY, GemmaForm, PythonForm
from tahr.text.tool_calls.tagged_calls import TaggedForm
from tahr.text.tool_calls.tools import MAX_SCHEMA_DEPTH, Tool, types_in
from tahr.text.tool_calls.written_calls import FRAMES, TAG_FRAMES, CallFrame, TagFrame

MAX_TEXTS = 1000  # limit on an enumeration without quotes: each text is an alternative of a rule
MAX_CALLS = 8  # limit for one reply: small models repeat themselves
# the models' way to write calls
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
VALUES = ("enum", "const", "default", "examples", "required")  # keywords that hold no schemas
OPEN = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref"}
)
# Keywords that ask something of the whole, so that a part cannot have them too.
ASKING = (*OPEN, "$id", "$schema", "type", "properties", "required", "minProperties", "maxProperties", *UNENFORCED)
HEAD = "%llguidance {}\n"
TERMINALS = {
    "TEXT": "TEXT: /(.|\\n)*/",
    "NO_CALL": "NO_CALL: /([^\\[{\\s](.|\\n)*)?/",  # text of a model whose calls begin without a mark
    "NUMBER": "NUMBER: /[0-9]{1,3}/",
}
ANALYSIS = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
FINAL = "<|channel|>final<|message|>"


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The grammar of a reply with calls."""

    call_format: CallFormat
    tools: Sequence[Tool]
    parallel: bool = True
    required: bool = True  # calls and nothing else; otherwise free text with calls in it
    content: Any = None  # a JSON schema that the text must follow where there is no call
    is_loose: bool = False  # parts of `content` that no grammar can enforce are left out


def call_grammar(requested: CallGrammar) -> Grammar:
    """The grammar as plain data; a worker makes Lark of it."""
    tools = [{"name": each.name, "parameters": each.parameters, "strict": each.strict} for each in requested.tools]
    source = {
        "format": requested.call_format.name,
        "tools": tools,
        "parallel": requested.parallel,
        "required": requested.required,
    }
    content = {} if requested.content is None else {"content": requested.content, "is_loose": requested.is_loose}
    return Grammar("tool_calls", source | content)


def is_call_grammar(grammar: Grammar | None) -> bool:
    """Whether a grammar was made here."""
    return grammar is not None and grammar.kind == "tool_calls"


def to_lark(source: Mapping[str, Any], names: SpecialNames, problem: Problem | None = None) -> str:
    """The Lark of such data. Schemas that no grammar can enforce are loosened, unless a tool is strict.

    llguidance refuses some that pass our checks: which they are is found out where there is a `problem`.
    """
    tools = [Tool(each["name"], "", each["parameters"], each["strict"]) for each in source["tools"]]
    form = BY_NAME[source["format"]]
    requested = CallGrammar(form, tools, source["parallel"], source["required"])
    requested = replace(requested, content=source.get("content"), is_loose=source.get("is_loose", False))
    return LarkText(requested, names.split, problem).text()


@dataclass(slots=True)
class LarkText:
    """Rules under way."""

    requested: CallGrammar
    split: Callable[[str], Sequence[str | int]]  # a text by its special tokens
    problem: Problem | None = None
    rules: list[str] = field(default_factory=list)
    skipped: str = ""  # the mark that free text ends with, where calls are waited for

    def text(self) -> str:
        """All rules, the first of which is the reply."""
        start = self.start()
        rules = "\n".join([f"start: {start}", *self.rules])
        return HEAD + "\n".join([rules, *(each for name, each in TERMINALS.items() if name in rules)]) + "\n"

    def start(self) -> str:
        requested = self.requested
        form = self.requested.call_format.form
        is_free = not (requested.required or requested.call_format.bare or requested.content is not None)
        if is_free and not isinstance(form, HarmonyForm):
            return self.lazy()
        section = self.rule("calls", self.section())
        if isinstance(form, HarmonyForm):
            before = self.rule("analysis", f"{self.literal(ANALYSIS[0])} TEXT {self.literal(ANALYSIS[1])}")
            final = f"{self.literal(FINAL)} {self.content() or 'TEXT'}"
            return f"{before}? {section}" if requested.required else f"{before}? ({section} | {final})"
        return section if requested.required else f"{section} | {self.content() or 'NO_CALL'}"

    def content(self) -> str:
        rule = loose_rule if self.requested.is_loose else json_rule
        return (
            "" if self.requested.content is None else f"%json {json.dumps(rule(self.requested.content, self.problem))}"
        )

    def lazy(self) -> str:
        """Free text in which the opening mark begins calls; the rule of the calls begins after that mark."""
        begin = self.edges()[0]
        self.skipped = next(mark for mark in self.marks() if begin.startswith(mark))
        section = self.rule("calls", self.section())
        parts = self.split(self.skipped)
        if isinstance(parts[0], int):  # text holds no special tokens
            return f"(TEXT {self.literal(self.skipped)} {section})* TEXT"
        trigger = self.rule("trigger[lazy]", f"TEXT {self.literal(self.skipped)}").removesuffix("[lazy]")
        return f"({trigger} {section})* TEXT"

    def marks(self) -> Sequence[str]:
        return (*self.requested.call_format.around, *self.requested.call_format.opens)

    # ---- calls ----------------------------------------------------------------------------------------------------

    def edges(self) -> tuple[str, str]:
        """Texts before the first name and after the last call."""
        form = self.requested.call_format.form
        if isinstance(form, GemmaForm | PythonForm):
            marks = self.requested.call_format
            return "".join(marks.opens[:1]), "".join(marks.closes[:1])
        frame = self.frame()
        return frame.section_open + frame.call_open, frame.section_close

    def frame(self) -> CallFrame | TagFrame:
        name = self.requested.call_format.name
        frame = FRAMES.get(name) or TAG_FRAMES.get(name)
        if frame is None:
            raise GrammarError(f"Calls in the format {name} cannot be enforced: leave tool_choice out.")
        return frame

    def section(self) -> str:
        """All calls of a reply."""
        form = self.requested.call_format.form
        if isinstance(form, GemmaForm):
            return self.several(self.calls(self.gemma_call), "", has_edges=False)
        if isinstance(form, PythonForm):
            opens, closes = self.edges()
            inside = self.several(self.calls(self.python_call), form.separator, has_edges=True)
            return self.sequence(self.opening(opens + form.begin), inside, self.literal(form.end + closes))
        frame = self.frame()
        write = self.tagged_call if isinstance(form, TaggedForm) else self.framed_call
        inside = self.several(self.calls(write), frame.separator, has_edges=bool(frame.section_open))
        opening = self.opening(frame.section_open) if frame.section_open else ""
        return self.sequence(opening, inside, self.literal(frame.section_close))

    def opening(self, text: str, number: str | None = None) -> str:
        """A literal that begins a section, without the mark that has been read before."""
        return self.literal(text.removeprefix(self.skipped), number)

    def several(self, call: str, separator: str, has_edges: bool) -> str:
        """Calls in a row. Where each begins with the mark that is waited for, one is enough."""
        single = isinstance(self.requested.call_format.form, HarmonyForm) or (self.skipped and not has_edges)
        if single or not self.requested.parallel:
            return call
        return f"{call} ({self.sequence(self.literal(separator), call)}){{0,{MAX_CALLS - 1}}}"

    def calls(self, write: Callable[[int, Tool], str]) -> str:
        names = [self.rule(f"call_{i}", self.call(i, tool, write)) for i, tool in enumerate(self.requested.tools)]
        return self.rule("call", " | ".join(names))

    def call(self, i: int, tool: Tool, write: Callable[[int, Tool], str]) -> str:
        try:
            return write(i, tool)
        except SchemaRefused as error:
            raise GrammarError(f"The tool {tool.name} is strict. {error}") from error

    def framed_call(self, i: int, tool: Tool) -> str:
        frame = self.frame()
        close = (
            "" if isinstance(self.requested.call_format.form, HarmonyForm) else frame.call_close
        )  # Harmony's mark ends the reply
        arguments = self.json(tool.parameters, tool.strict)
        before = self.call_open(frame.call_open + tool.name + frame.name_end, frame)
        return self.sequence(before, arguments, self.literal(close))

    def call_open(self, text: str, frame: CallFrame | TagFrame) -> str:
        return self.literal(text, NUMBER) if frame.section_open else self.opening(text, NUMBER)

    def tagged_call(self, i: int, tool: Tool) -> str:
        form = self.requested.call_format.form
        tags = self.frame()
        assert isinstance(form, TaggedForm) and isinstance(tags, TagFrame)

        def member(key: str, schema: Any) -> str:
            is_text = types_of(schema) == {"string"}
            between = form.value_open if not form.says_text else f' string="{str(is_text).lower()}">'
            between = f"{tags.value_space}{between}" if form.value_open and not form.says_text else between
            lines = "\n" if form.lines else ""
            before = self.literal(f"{form.key_open}{key}{form.key_end}{between}{lines}")
            return self.sequence(
                before, self.value(schema, lines + form.value_end, tool.strict), self.literal(tags.space)
            )

        inside = self.members(f"arguments_{i}", tool, member, "")
        before = self.call_open(tags.call_open + tool.name + tags.name_end, tags)
        return self.sequence(before, inside, self.literal(form.call_close + tags.call_close))

    def gemma_call(self, i: int, tool: Tool) -> str:
        form = self.requested.call_format.form
        assert isinstance(form, GemmaForm)
        quote = form.quote

        def member(key: str, schema: Any) -> str:
            name = key if BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
            if types_of(schema) == {"string"}:
                return f"{self.literal(f'{name}:{quote}')} {self.value(schema, quote, tool.strict)}"
            return f"{self.literal(f'{name}:')} {self.json(schema, tool.strict)}"

        opens, closes = self.edges()
        inside = self.members(f"arguments_{i}", tool, member, ",")
        return self.sequence(self.opening(f"{opens}call:{tool.name}{{"), inside, self.literal("}" + closes))

    def python_call(self, i: int, tool: Tool) -> str:
        def member(key: str, schema: Any) -> str:
            return f"{self.literal(f'{key}=')} {self.json(schema, tool.strict)}"

        inside = self.members(f"arguments_{i}", tool, member, ", ")
        return self.sequence(self.literal(f"{tool.name}("), inside, '")"')

    # ---- arguments without JSON around them -----------------------------------------------------------------------

    def members(
        self,
        name: str,
        tool: Tool,
        member: Callable[[str, Any], str],
        separator: str,
    ) -> str:
        """The arguments of a tool in the order of its schema, each at most once, those it needs exactly once."""
        properties = tool.parameters.get("properties")
        required = required_of(tool)
        if not isinstance(properties, dict) or not properties:
            return ""
        comma = f"{self.literal(separator)} " if separator else ""
        after = ""
        first = ""
        shared = {name: each for name, each in tool.parameters.items() if name not in ASKING}
        for i, key in reversed(list(enumerate(properties))):
            one = self.rule(f"{name}_{i}", self.member(tool, key, member, shared))
            first = self.rule(
                f"{name}_first_{i}", self.sequence(one, after) + ("" if key in required else f" | {first or EMPTY}")
            )
            after = self.rule(
                f"{name}_after_{i}",
                self.sequence(f"{comma}{one}", after) + ("" if key in required else f" | {after or EMPTY}"),
            )
        return first

    def member(
        self,
        tool: Tool,
        key: str,
        write: Callable[[str, Any], str],
        shared: Mapping[str, Any],
    ) -> str:
        """One argument; an error names it."""
        try:
            return write(key, alone(tool.parameters, tool.parameters["properties"][key], shared, tool.strict))
        except SchemaRefused as error:
            raise SchemaRefused(f"/properties/{pointer(key)}{error.place}", error.problem) from error

    def value(self, schema: Any, end: str, strict: bool) -> str:
        """A value and the mark that ends it. Texts have no quotes; a constant or an enumeration is one of its texts."""
        if types_of(schema) != {"string"}:
            return self.sequence(self.json(schema, strict), self.literal(end))
        if options := texts_of(schema):
            if strict and (others := schema.keys() & {"pattern", "format", "minLength", "maxLength"}):
                what = f"has an enum or const and {min(others)}, which this model's calls cannot both enforce"
                raise SchemaRefused("", f"{what}: keep the first")
            if len(options) <= MAX_TEXTS:
                texts = " | ".join(self.literal(each) or EMPTY for each in options)
                return self.sequence(f"({texts})", self.literal(end))
            if strict:
                what = f"has an enum of {len(options)} texts, but this model's calls can enforce {MAX_TEXTS}"
                raise SchemaRefused("", f"{what}: shorten it")
        is_token = isinstance(self.split(end)[0], int)
        text = f"{self.text_like(schema, '' if is_token else end, strict)} {self.literal(end)}"
        return text if is_token else self.rule(f"text_{len(self.rules)}[lazy]", text)[: -len("[lazy]")]

    def text_like(self, schema: Any, end: str, strict: bool) -> str:
        """The terminal of a text. What cannot be enforced is loosened, unless the tool is strict."""
        try:
            terminal = text_terminal(schema, end)
            self.try_text(terminal)
        except GrammarError:
            if strict:
                raise
            terminal = ""
        return self.rule(f"TEXT_{len(self.rules)}", terminal) if terminal else "TEXT"

    def try_text(self, terminal: str) -> None:
        words = self.problem(f"{HEAD}start: TEXT\nTEXT: {terminal}\n") if self.problem and terminal else ""
        if words:
            raise SchemaRefused("", meaning_of(words))

    # ---- Lark -----------------------------------------------------------------------------------------------------

    def json(self, schema: Any, strict: bool) -> str:
        rule = json_rule if strict else loose_rule
        made = rule(closed(schema, MAX_SCHEMA_DEPTH), self.problem)
        return f"%json {json.dumps({**made, 'x-guidance': SPACING})}"

    def rule(self, name: str, body: str) -> str:
        self.rules.append(f"{name}: {body}")
        return name

    def literal(self, text: str, number: str | None = None) -> str:
        """A text as terms: quoted, special tokens by their ids, the mark of a number any number."""
        terms: list[str] = []
        for part in self.split(text):
            if isinstance(part, int):
                terms.append(f"<[{part}]>")
                continue
            pieces = [
                json.dumps(piece, ensure_ascii=False) if piece else ""
                for piece in (part.split(number) if number else [part])
            ]
            terms += [term for piece in pieces for term in ("NUMBER", piece)][1:]
        return " ".join(filter(None, terms))

    def sequence(self, *terms: str) -> str:
        return " ".join(filter(None, terms)) or EMPTY


EMPTY = '""'
NUMBER = "#"  # stands for the number of the call in frames, and for itself in names and values of a schema


def alone(whole: Mapping[str, Any], schema: Any, shared: Mapping[str, Any], strict: bool) -> Any:
    """A part of a schema that can stand by itself, with the definitions it may refer to.

    A reference to anything else would point into the part; then any value will do.
    """
    if not isinstance(schema, Mapping) or not (names := references(schema)):
        return schema
    refers_to_whole = any(name not in shared and name in (*whole, "") for name in names | references(shared))
    if refers_to_whole and strict:
        raise SchemaRefused("", "refers to itself as a whole, which this model's calls cannot: use $defs")
    return {} if refers_to_whole else {**schema, **shared}


def references(schema: Any) -> set[str]:
    """The first names in pointers of a schema to places in the whole that it is a part of; empty: the whole itself."""
    found = (each["$ref"] for each in values_in(schema) if isinstance(each, dict) and "$ref" in each)
    return {
        each[1:].split("/")[1] if "/" in each else "" for each in found if isinstance(each, str) and each[:1] == "#"
    }


def closed(schema: Any, depth: int) -> Any:
    """The schema without members that it does not name: whatever follows this one follows the schema too.

    A model that may add members of its own making goes on adding them.
    """
    if depth == 0 or not isinstance(schema, Mapping):
        return [closed(each, depth - 1) for each in schema] if isinstance(schema, list) and depth else schema
    made = {name: each if name in VALUES else closed(each, depth - 1) for name, each in schema.items()}
    is_open = isinstance(schema.get("properties"), Mapping) and not OPEN.intersection(schema)
    return {**made, "additionalProperties": False} if is_open else made


def required_of(tool: Tool) -> list[Any]:
    """The names of arguments that a call must have."""
    required = tool.parameters.get("required", [])
    if not isinstance(required, list) and tool.strict:
        raise GrammarError(f"The tool {tool.name} has a required that is no list: write a list of names.")
    return required if isinstance(required, list) else []


def types_of(schema: Any) -> set[str]:
    return set(types_in(schema, 4))
