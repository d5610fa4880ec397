"""A JSON schema as llguidance reads it."""

from typing import Any

from tahr.errors import GrammarError
from tahr.grammar.alternatives import apart
from tahr.grammar.schema_check import checked_schema

# A space, or a new line and its indentation: endless space would be JSON too, and some models write it.
JSON_OPTIONS = {"whitespace_pattern": r"(\x20|\x0A[\x20\x09]{0,24})"}


def json_rule(schema: Any) -> dict[str, Any]:
    """A JSON schema as llguidance gets it, checked and with our options: what stands after %json in Lark."""
    made = checked_schema(schema)
    if made is False:
        raise GrammarError("The schema is false, and so allows nothing: write another.")
    return {**({} if made is True else apart(made)), "x-guidance": JSON_OPTIONS}
