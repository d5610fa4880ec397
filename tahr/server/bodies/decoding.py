"""Bytes of a body become its fields. A field is honoured, known to change nothing, or refused by name."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Struct

from tahr.server.http.errors import HttpError, bad_field

Body = TypeVar("Body", bound=Struct)
MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # errors of bytes that are not JSON
Inert = Any  # a field that cannot change the output: whatever it holds is ignored

Limited = Any  # a field of which only the values in ONLY can be honoured
Refused = Annotated[Any, msgspec.Meta(extra_json_schema={"enum": [None]})]  # known by name, and never honoured


def described(**keywords: Any) -> msgspec.Meta:
    """Facts about a field for /openapi.json beyond its type; a check elsewhere says them in a sentence."""
    return msgspec.Meta(extra_json_schema=keywords)


# The values of a limited field that ask for nothing we cannot do. Everything else is refused.
ONLY: Mapping[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "verbosity": ("medium",),
    "chunking_strategy": ("auto",),
    "speed": (1, 1.0),
    "suffix": ("",),
    "best_of": (1,),
}
WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
FIELD = re.compile(r"field `(?P<name>[^`]*)`")


def decode(decoder: "msgspec.json.Decoder[Body]", data: bytes) -> Body:
    """A checked body, or an error that names the field."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise wrong_field(str(error)) from error
    except MALFORMED as error:
        raise HttpError(400, f"The body is not JSON ({error}): send one JSON object in UTF-8.") from error


def wrong_field(complaint: str) -> HttpError:
    """Turn `Expected `int`, got `str` - at `$.n`` into a sentence and the field's name."""
    found = WHERE.match(complaint)
    what, path = (found["what"], found["path"] or "") if found else (complaint, "")
    path = path.strip(".")
    field = FIELD.search(what)
    if field is None:
        return bad_field(path or "body", f"{path or 'The body'} has the wrong type: {lower(what)}.")
    name = f"{path}.{field['name']}".strip(".")
    if "missing" in what:
        return bad_field(name, f"The field {name} is missing: it is required.")
    return bad_field(name, f"The field {name} is not one this route knows: leave it out.", code="unknown_field")


def lower(text: str) -> str:
    return text[:1].lower() + text[1:]


@cache
def limited_names(body: type[Struct]) -> tuple[str, ...]:
    """The limited fields of a kind of body."""
    return tuple(name for name in body.__struct_fields__ if name in ONLY)


def check_limited(body: Struct, inside: str = "") -> None:
    """Refuse a limited field that asks for what cannot be honoured."""
    for name in limited_names(type(body)):
        value = getattr(body, name)
        if value is not None and not any(value == ok and type(value) is type(ok) for ok in ONLY[name]):
            field = inside + name
            raise bad_field(field, f"{field} is not supported by this server: leave it out.", "unsupported")
