"""Tools a request offers: names, descriptions and schemas, checked once."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tahr.errors import ConfigError

MAX_TOOLS = 1024
MAX_SCHEMA_DEPTH = 64
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
SCHEMAS_ELSEWHERE = ("inputSchema", "input_schema", "schema")  # other APIs' names of the parameters
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; the caller runs it, never the engine."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(NO_PARAMETERS))
    strict: bool = False  # arguments must match the schema, also where calls are not required

    def as_openai(self) -> dict[str, Any]:
        """The form templates read."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def types_of(self, key: str) -> frozenset[str]:
        """The JSON types a parameter may have, as far as the schema says; empty: any."""
        properties = self.parameters.get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        return types_in(schema, 4)


def types_in(schema: Any, depth: int) -> frozenset[str]:
    """The types a schema names, looking into its alternatives."""
    if not isinstance(schema, Mapping) or not depth:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(each for each in named if isinstance(each, str))
    if isinstance(schema.get("enum"), list):
        return frozenset(json_type(each) for each in schema["enum"])
    choices = schema.get("anyOf") or schema.get("oneOf") or ()
    return frozenset().union(*(types_in(each, depth - 1) for each in choices if isinstance(choices, list)))


def json_type(value: Any) -> str:
    """The JSON type of a Python value."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return next((name for kind, name in kinds.items() if isinstance(value, kind)), "object")


def tools_of(given: Any, where: str = "tools") -> tuple[Tool, ...]:
    """Tools as OpenAI's clients write them, or bare functions; what is wrong is said in a sentence."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ConfigError(f"{where} must be a list of tools.")
    if len(given) > MAX_TOOLS:
        raise ConfigError(f"{where} has {len(given)} entries, but {MAX_TOOLS} is the most: offer fewer tools.")
    tools = tuple(tool_of(each, f"{where}[{i}]") for i, each in enumerate(given))
    names = [tool.name for tool in tools]
    twice = (
        next((name for i, name in enumerate(names) if name in names[:i]), None)
        if len(set(names)) < len(names)
        else None
    )
    if twice is not None:
        raise ConfigError(f"{where} has two tools named {twice!r}: give each its own name.")
    return tools


def tool_of(given: Any, where: str) -> Tool:
    if isinstance(given, Tool):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} is not an object: write a tool as {{'type': 'function', 'function': {{...}}}}.")
    kind = given.get("type", "function")
    if kind != "function":
        raise ConfigError(
            f"{where}.type is {str(kind)[:64]!r}, but only functions can be offered: set it to 'function'."
        )
    function = given.get("function", given)
    if not isinstance(function, Mapping):
        raise ConfigError(f"{where}.function must be an object with a name.")
    refuse_lost_schema(given, function, where)
    return function_of(function, f"{where}.function" if "function" in given else where)


def refuse_lost_schema(given: Mapping[str, Any], function: Mapping[str, Any], where: str) -> None:
    """A schema that stands where it is not looked for: without it the tool would be offered without parameters."""
    if function.get("parameters") is not None:
        return
    for name in ("parameters", *SCHEMAS_ELSEWHERE):
        if given.get(name) is not None or function.get(name) is not None:
            raise ConfigError(f"{where}.{name} is not where a schema belongs: call it parameters, beside the name.")


def function_of(function: Mapping[str, Any], where: str) -> Tool:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}.name is missing: a tool needs a name.")
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{where}.name is {name[:64]!r}, but a name has up to 128 letters, digits and _ . : / - and begins with "
            "one of the first three."
        )
    description = function.get("description")
    strict = function.get("strict")
    if not isinstance(description, str | None):
        raise ConfigError(f"{where}.description must be a text.")
    if not isinstance(strict, bool | None):
        raise ConfigError(f"{where}.strict must be true or false.")
    return Tool(name, description or "", parameters_of(function.get("parameters"), where), bool(strict))


def parameters_of(parameters: Any, where: str) -> Mapping[str, Any]:
    if parameters is None or parameters == {}:
        return dict(NO_PARAMETERS)
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"{where}.parameters must be a JSON schema, which is an object.")
    if parameters.get("type", "object") != "object":
        raise ConfigError(f"{where}.parameters must describe an object: set its type to 'object'.")
    if is_deeper(parameters, MAX_SCHEMA_DEPTH):
        raise ConfigError(f"{where}.parameters is nested more than {MAX_SCHEMA_DEPTH} levels deep: flatten it.")
    return parameters if "type" in parameters else {"type": "object", **parameters}


def is_deeper(value: Any, depth: int) -> bool:
    """Whether there are values inside values more than `depth` times."""
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return depth < 0 or any(is_deeper(each, depth - 1) for each in inside)
