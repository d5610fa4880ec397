"""JSON schemas of dataclasses, and dataclasses from JSON."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tahr.errors import ConfigError

Schema = dict[str, Any]

PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}

LISTS = (list, tuple, set, frozenset, Sequence)

UNIONS = (Union, types.UnionType)


def schema_of(cls: type) -> Schema:
    """The JSON schema of a dataclass; those it holds are definitions, so that it may hold itself."""
    definitions: dict[str, Schema] = {}
    top = type_schema(cls, definitions)
    return {"$defs": definitions, **top}


def type_schema(hint: Any, definitions: dict[str, Schema]) -> Schema:
    """The schema of a type."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return reference(hint, definitions)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in UNIONS:
        return {"anyOf": [type_schema(each, definitions) for each in arguments]}
    if (origin or hint) in LISTS:
        return list_schema(origin, arguments, definitions)
    if (origin or hint) in (dict, Mapping) and (not arguments or arguments[0] is str):
        values = type_schema(arguments[1], definitions) if arguments else {}
        return {"type": "object", "additionalProperties": values}
    raise ConfigError(
        f"A dataclass of response_format has a field of type {hint}, which JSON does not have: change it."
    )


def list_schema(origin: Any, arguments: tuple[Any, ...], definitions: dict[str, Schema]) -> Schema:
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        items = [type_schema(each, definitions) for each in arguments]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    return {"type": "array", "items": type_schema(arguments[0], definitions) if arguments else {}}


def reference(cls: type, definitions: dict[str, Schema]) -> Schema:
    name = f"{cls.__module__}.{cls.__qualname__}".replace("/", "_")
    if name not in definitions:
        definitions[name] = {}  # a class that holds itself ends here
        hints = get_type_hints(cls)
        given = [each for each in fields(cls) if each.init]
        definitions[name] = {
            "type": "object",
            "properties": {each.name: type_schema(hints[each.name], definitions) for each in given},
            "required": [each.name for each in given if is_required(each)],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}


def is_required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING
