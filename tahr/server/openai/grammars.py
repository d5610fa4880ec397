"""The fields of a request that name a grammar, in the spellings of OpenAI, vLLM and llama.cpp."""

from collections.abc import Callable, Sequence
from typing import Any

from tahr.grammar.spec import schema_kind
from tahr.server.http.errors import bad_field
from tahr.server.openai.bodies import GenerationBody
from tahr.server.replies.grammars import FieldGrammar, made

SCHEMA_FIELDS = ("name", "description", "schema", "strict")


def grammar_of(body: GenerationBody) -> FieldGrammar | None:
    """The grammar a request asks for, if it asks for one."""
    given = [(name, value) for name in FIELDS if (value := getattr(body, name)) is not None]
    found = [made for name, value in given if (made := FIELDS[name](name, value)) is not None]
    if len(found) > 1:
        names = f"{found[0].field} and {found[1].field}"
        raise bad_field(found[1].field, f"{names} both say what the text must be: leave one of them out.")
    return found[0] if found else None


def is_buffered(body: GenerationBody, grammar_field: str) -> bool:
    """Whether a client wants it so; refused where a reply has no grammar, or may end before it is whole."""
    if not body.buffer:
        return False
    if not grammar_field:
        raise bad_field("buffer", "buffer holds back a reply that must keep to a grammar: name one, or leave it out.")
    for name in ("stop", "stop_token_ids"):
        if getattr(body, name):
            raise bad_field("buffer", f"buffer holds back a reply until it is whole, but {name} cuts it: send one.")
    return True


def of_kind(kind: str) -> Callable[[str, Any], FieldGrammar | None]:
    """How to read a field that holds the source of one kind of grammar."""
    return lambda field, value: made(field, kind, value)


def lark_or_gbnf(field: str, value: str) -> FieldGrammar | None:
    """A grammar in either language: only GBNF writes `::=`."""
    return made(field, "gbnf" if "::=" in value else "lark", value)


# ---- vLLM ---------------------------------------------------------------------------------------------------


def structured_outputs(field: str, value: dict[str, Any]) -> FieldGrammar | None:
    """Read one of vLLM's descriptions of the output."""
    given = {name: each for name, each in value.items() if each is not None and each is not False}
    if not given:
        return None
    name, source = next(iter(given.items()))
    if len(given) > 1 or name not in STRUCTURED:
        raise bad_field(field, f"{field} holds {', '.join(given)}, but it must hold one of {', '.join(STRUCTURED)}.")
    return STRUCTURED[name](f"{field}.{name}", source)


def only_true(field: str, value: Any) -> FieldGrammar | None:
    if value is not True:
        raise bad_field(field, f"{field} must be true or false.")
    return made(field, "json_object")


def checked_text(field: str, value: Any) -> FieldGrammar | None:
    if not isinstance(value, str):
        raise bad_field(field, f"{field} must be a text.")
    return lark_or_gbnf(field, value)


STRUCTURED: dict[str, Callable[[str, Any], FieldGrammar | None]] = {
    "json": of_kind("json_schema"),
    "regex": of_kind("regex"),
    "choice": of_kind("choice"),
    "grammar": checked_text,
    "json_object": only_true,
    "structural_tag": of_kind("structural_tag"),
}


# ---- OpenAI -------------------------------------------------------------------------------------------------


def response_format(field: str, value: Any) -> FieldGrammar | None:
    if not isinstance(value, dict):
        raise bad_field(field, f'{field} must be an object such as {{"type": "json_object"}}.')
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in FORMATS:
        raise bad_field(f"{field}.type", f"{field}.type is {kind!r:.80}, but it must be one of {', '.join(FORMATS)}.")
    known, read = FORMATS[kind]
    refuse_others(field, value, ("type", *known))
    return read(field, value)


def refuse_others(field: str, given: dict[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            where = f"{field}.{name[:64]}"
            raise bad_field(where, f"{where} does not belong here, where {', '.join(known)} may stand: leave it out.")


def json_schema(field: str, value: dict[str, Any]) -> FieldGrammar | None:
    field = f"{field}.json_schema"
    inner = value.get("json_schema")
    if not isinstance(inner, dict) or inner.get("schema") is None:
        raise bad_field(field, f"{field} must be an object with a name and a schema.")
    refuse_others(field, inner, SCHEMA_FIELDS)
    return made(field, schema_kind(inner.get("strict")), inner["schema"])


def json_object(field: str, value: dict[str, Any]) -> FieldGrammar | None:
    """Any object; llama.cpp lets it have a schema."""
    if value.get("schema") is None:
        return made(field, "json_object")
    return made(f"{field}.schema", "json_schema", value["schema"])


def grammar(field: str, value: dict[str, Any]) -> FieldGrammar | None:
    return checked_text(f"{field}.grammar", value.get("grammar"))


def structural_tag(field: str, value: dict[str, Any]) -> FieldGrammar | None:
    return made(field, "structural_tag", {name: each for name, each in value.items() if name != "type"})


# Types, each with its further fields and its reader.
FORMATS: dict[str, tuple[tuple[str, ...], Callable[[str, dict[str, Any]], FieldGrammar | None]]] = {
    "text": ((), lambda field, value: None),
    "json_object": (("schema",), json_object),
    "json_schema": (("json_schema",), json_schema),
    "grammar": (("grammar",), grammar),
    "structural_tag": (("structures", "triggers"), structural_tag),
}

FIELDS: dict[str, Callable[[str, Any], FieldGrammar | None]] = {
    "response_format": response_format,
    "structured_outputs": structured_outputs,
    "guided_json": of_kind("json_schema"),
    "guided_regex": of_kind("regex"),
    "guided_choice": of_kind("choice"),
    "guided_grammar": lark_or_gbnf,
    "grammar": of_kind("gbnf"),
    "json_schema": of_kind("json_schema"),
}
