"""The grammar of a request, and the field it came from."""

from dataclasses import dataclass
from typing import Any

from tahr.errors import GrammarError
from tahr.grammar import Grammar
from tahr.grammar.source import parsed
from tahr.grammar.spec import JSON_KINDS
from tahr.server.http.errors import bad_field


@dataclass(frozen=True, slots=True)
class FieldGrammar:
    """A grammar and the field that errors about it name."""

    grammar: Grammar
    field: str


def made(field: str, kind: str, source: Any = "") -> FieldGrammar:
    """A grammar made of what a field holds."""
    try:
        grammar = Grammar(kind, source)
        if kind in JSON_KINDS and isinstance(source, str):
            parsed(kind, source)  # here, where it is known which field holds it
        return FieldGrammar(grammar, field)
    except GrammarError as error:
        raise bad_field(field, str(error)) from error
