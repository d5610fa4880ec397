"""Grammars as plain data."""

import json
from dataclasses import dataclass
from typing import Any

from tahr.errors import GrammarError

KINDS = {
    "json_schema": "a JSON schema, as a mapping or as JSON text",
    "loose_json_schema": "the same, of which what no grammar can enforce is left out",
    "json_object": "nothing: any JSON object",
    "regex": "a regular expression in Rust's syntax",
    "lark": "a grammar in llguidance's dialect of Lark",
    "gbnf": "a grammar in llama.cpp's GBNF",
    "choice": "a list of texts, one of which is written",
    "structural_tag": "free text with tags whose content follows a JSON schema, as a mapping or as JSON text",
    "tool_calls": "what `call_grammar` makes of tools",
}
JSON_KINDS = ("json_schema", "loose_json_schema", "choice", "structural_tag", "tool_calls")
OF_JSON = ("json_schema", "loose_json_schema", "json_object")  # kinds whose texts are JSON
MAX_SOURCE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language for the text of a request. `source` is kept as text, so that equal grammars are equal and hash."""

    kind: str
    source: Any = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise GrammarError(f"There is no kind of grammar {self.kind!r}: take one of {', '.join(KINDS)}.")
        object.__setattr__(self, "source", source_text(self.kind, self.source))
        n_bytes = len(self.source.encode("utf-8", "surrogatepass"))
        if n_bytes > MAX_SOURCE_BYTES:
            raise GrammarError(f"The grammar has {n_bytes} bytes, but at most {MAX_SOURCE_BYTES} are read: shorten it.")

    def __repr__(self) -> str:
        text = self.source if len(self.source) <= 60 else f"{self.source[:57]}..."
        return f"Grammar({self.kind!r}, {text!r})"


def source_text(kind: str, source: Any) -> str:
    """The source of a grammar as text."""
    if not isinstance(source, str) and kind in JSON_KINDS:
        return json_text(kind, source)
    if not isinstance(source, str) or not (source or kind == "json_object"):
        raise GrammarError(f"A {kind} grammar is made of {KINDS[kind]}, not of {short(source)}.")
    return source


def json_text(kind: str, source: Any) -> str:
    try:
        return json.dumps(source, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"A {kind} grammar is made of {KINDS[kind]}, but this is no JSON ({error}).") from error


def schema_kind(strict: Any) -> str:
    """The kind of a schema's grammar, by what OpenAI's clients call strict: if it is false, parts may be left out."""
    return "loose_json_schema" if strict is False else "json_schema"


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
