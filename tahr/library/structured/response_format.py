"""`response_format`: what a reply is to be, as a class or a schema, and the object it is read into."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from tahr.config import SamplingParams
from tahr.errors import ConfigError
from tahr.generation.outputs import Chunk, Completion
from tahr.grammar import Grammar
from tahr.grammar.spec import OF_JSON, schema_kind
from tahr.library.inputs.arguments import sampling_params, short
from tahr.library.structured.dataclass_schema import schema_of
from tahr.library.structured.dataclass_values import from_json

VALUES = ("const", "enum", "default", "examples")  # keywords that hold no schemas
OPENAI_TYPES = ("text", "json_object", "json_schema")  # types of OpenAI's mappings


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """A grammar, and how to read a text that follows it."""

    grammar: Grammar
    read: Callable[[str], Any]

    def over(self, params: SamplingParams | None) -> SamplingParams:
        """The sampling parameters of a request, with this grammar."""
        requested = sampling_params(params)
        if requested.grammar is not None:
            raise ConfigError("response_format and the grammar of the parameters both say what the text must be.")
        return replace(requested, grammar=self.grammar)

    def parsed(self, completion: Completion) -> Completion:
        """The completion with its object; one that was cut short has none."""
        others = tuple(map(self.parsed, completion.others))
        if completion.finish_reason != "stop" or completion.tool_calls:
            return replace(completion, others=others)
        try:
            return replace(completion, others=others, parsed=self.read(completion.text))
        except Exception as error:  # rules of a class that its schema does not say, or a stop string inside the text
            # Text only: an exception would keep everything alive that its stack refers to, the model included.
            return replace(completion, others=others, parse_error=str(error) or type(error).__name__)

    def parsed_chunk(self, chunk: Chunk) -> Chunk:
        """A chunk of a stream: the last one has the object."""
        return replace(chunk, completion=self.parsed(chunk.completion)) if chunk.completion else chunk


def response_format_of(requested: Any) -> ResponseFormat | None:
    """Read a format: a class with `model_json_schema` (pydantic's), a dataclass, a JSON schema, or a Grammar."""
    if requested is None:
        return None
    if isinstance(requested, Grammar):
        return ResponseFormat(requested, json.loads if requested.kind in OF_JSON else str)
    if isinstance(requested, type) and hasattr(requested, "model_json_schema"):
        schema = closed(requested.model_json_schema())
        return ResponseFormat(Grammar("json_schema", schema), requested.model_validate_json)  # type: ignore[attr-defined]
    if isinstance(requested, type) and is_dataclass(requested):
        return ResponseFormat(
            Grammar("json_schema", schema_of(requested)), lambda text: from_json(requested, json.loads(text))
        )
    if isinstance(requested, Mapping):
        return of_mapping(requested)
    raise ConfigError(
        f"response_format is {short(requested)}, but it must be a class with model_json_schema (such as pydantic's), "
        "a dataclass, a JSON schema or a Grammar."
    )


def of_mapping(requested: Mapping[str, Any]) -> ResponseFormat | None:
    """A JSON schema, or what OpenAI's API takes."""
    kind = requested.get("type")
    if kind not in OPENAI_TYPES:
        return ResponseFormat(Grammar("json_schema", dict(requested)), json.loads)
    if kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat(Grammar("json_object"), json.loads)
    inner = requested.get("json_schema")
    if not isinstance(inner, Mapping) or "schema" not in inner:
        raise ConfigError("response_format of type json_schema has no json_schema with a schema: add it.")
    return ResponseFormat(Grammar(schema_kind(inner.get("strict")), inner["schema"]), json.loads)


def closed(schema: Any) -> Any:
    """A class's schema without keys that the class does not have."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value if key in VALUES else closed(value) for key, value in schema.items()}
    if made.get("type") == "object" and isinstance(made.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made
