"""Calls of a conversation in the form that its template takes."""

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tahr.text.templates.tool_turns import Message
from tahr.text.tool_calls.delta_buffer import nine_characters
from tahr.text.tool_calls.json_text import INVALID, dumped, loaded
from tahr.text.tool_calls.written_calls import written

if TYPE_CHECKING:
    from tahr.text.templates.chat import ChatTemplate


STRICT_ID = re.compile(r"[A-Za-z0-9]{9}")


def with_calls(message: Message, template: "ChatTemplate") -> Message:
    content = message.get("content") or ""
    calls = [normal_call(call, template) for call in message["tool_calls"]]
    if template.traits.writes_calls:
        return {**message, "content": content or template.traits.empty_content, "tool_calls": calls}
    pairs = [(call["function"]["name"], argument_text(call["function"]["arguments"])) for call in calls]
    text = written(template.call_format, pairs)
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": f"{content}\n{text}" if content else text}


def normal_call(call: Mapping[str, Any], template: "ChatTemplate") -> dict[str, Any]:
    """A call with its arguments in the form the template wants."""
    function = call["function"]
    arguments = function.get("arguments")
    if template.traits.text_arguments:
        arguments = argument_text(arguments)
    elif isinstance(arguments, str):
        value = loaded(arguments) if arguments.strip() else {}
        arguments = arguments if value is INVALID or not isinstance(value, dict) else value
    call_id = str(call.get("id") or "")
    if wants_strict_ids(template):
        call_id = strict_id(call_id)
    return {"id": call_id, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def argument_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else dumped(arguments if arguments is not None else {})


def wants_strict_ids(template: "ChatTemplate") -> bool:
    return template.call_format.make_id is nine_characters


def strict_id(call_id: str) -> str:
    """An id of nine letters and digits: itself, or one that follows from it."""
    if STRICT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]
