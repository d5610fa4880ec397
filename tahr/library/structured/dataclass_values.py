"""Dataclasses made of JSON values that follow their schema."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tahr.library.structured.dataclass_schema import LISTS, UNIONS, is_required


def from_json(hint: Any, value: Any) -> Any:
    """An object of that type from what JSON text stands for."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{name: from_json(hints[name], each) for name, each in value.items()})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if origin in UNIONS:
        return from_union(arguments, value)
    if (origin or hint) in LISTS:
        return list_from(origin or hint, arguments, value)
    if origin in (dict, Mapping):
        return {key: from_json(arguments[1], each) for key, each in value.items()}
    return float(value) if hint is float else value


def from_union(arguments: tuple[Any, ...], value: Any) -> Any:
    """The first of the types that the value fits."""
    for each in arguments:
        if fits(each, value):
            try:
                return from_json(each, value)
            except (TypeError, ValueError, KeyError, AttributeError):  # a class may have rules of its own
                continue
    return value


def fits(hint: Any, value: Any) -> bool:
    """Whether the type's schema allows a value; making an object of it would not say, since Python checks no types."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return fits_dataclass(hint, value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return is_one_of(value, [member.value for member in hint])
    if origin is Literal:
        return is_one_of(value, arguments)
    if origin in UNIONS:
        return any(fits(each, value) for each in arguments)
    if (origin or hint) in LISTS:
        return isinstance(value, list) and fits_items(origin, arguments, value)
    if (origin or hint) in (dict, Mapping):
        return isinstance(value, dict) and (not arguments or all(fits(arguments[1], each) for each in value.values()))
    return hint is Any or type(value) in ((int, float) if hint is float else (hint,))


def fits_dataclass(cls: type, value: Any) -> bool:
    given = {each.name: each for each in fields(cls) if each.init}
    hints = get_type_hints(cls)
    if not isinstance(value, dict) or not value.keys() <= given.keys():
        return False
    is_whole = all(name in value for name, each in given.items() if is_required(each))
    return is_whole and all(fits(hints[name], each) for name, each in value.items())


def fits_items(origin: Any, arguments: tuple[Any, ...], value: list[Any]) -> bool:
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return len(arguments) == len(value) and all(map(fits, arguments, value))
    return not arguments or all(fits(arguments[0], each) for each in value)


def is_one_of(value: Any, members: Sequence[Any]) -> bool:
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in members)


def list_from(kind: Any, arguments: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, list):
        raise TypeError("not a list")
    is_fixed = kind is tuple and arguments and arguments[-1] is not Ellipsis
    types_of = arguments if is_fixed else [arguments[0] if arguments else Any] * len(value)
    made = [from_json(each, item) for each, item in zip(types_of, value, strict=True)]
    return made if kind is Sequence else kind(made)
