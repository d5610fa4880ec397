"""A conversation as most APIs send it, and as chat templates read it."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct

from tahr.server.bodies.decoding import Inert, Limited, check_limited
from tahr.server.bodies.image_parts import ContentPart, image_of, is_image
from tahr.server.http.errors import bad_field
from tahr.text.tool_calls.tools import MAX_SCHEMA_DEPTH, is_deeper

# `developer` is what newer clients call the system role; no template knows the word.
ROLES = {role: role for role in ("system", "user", "assistant", "tool", "function")} | {"developer": "system"}
MORE_NAMES = ("name", "tool_call_id", "tool_calls", "function_call", "reasoning_content", "reasoning", "audio")
MORE_FIELDS = attrgetter(*MORE_NAMES)  # fields of a message beside role and content
NOTHING_MORE = (None,) * len(MORE_NAMES)
MAX_NAME_CHARS = 256


class MessageFunction(Struct, forbid_unknown_fields=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class MessageToolCall(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A call the model made before."""

    function: MessageFunction
    id: str | None = None
    type: str = "function"
    index: Inert = None  # some clients put the deltas of a stream together and leave it there


class Message(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    function_call: MessageFunction | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: Inert = None
    annotations: Inert = None
    provider_specific_fields: Inert = None  # litellm leaves these in messages it made
    thinking_blocks: Inert = None
    audio: Limited = None


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates read them; the text parts of one are joined by line breaks."""
    if not messages:
        raise bad_field("messages", "messages is empty: send at least one message.")
    return [plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def plain(message: Message, where: str) -> dict[str, Any]:
    if message.role not in ROLES:
        raise bad_field("messages", f"{where}.role is {message.role!r}, but it must be one of {', '.join(ROLES)}.")
    if isinstance(message.content, str) and message.role != "function" and MORE_FIELDS(message) == NOTHING_MORE:
        return {"role": ROLES[message.role], "content": message.content}  # nearly always
    check_limited(message, f"{where}.")
    if message.content is None and message.role != "assistant":
        raise bad_field("messages", f"{where}.content is missing: a {message.role} message needs it.")
    check_names(message, where)
    kept = {"role": ROLES[message.role], "content": content_of(message, where)}
    more = {"name": message.name, "tool_call_id": message.tool_call_id, "tool_calls": calls_of(message, where)}
    if message.role == "function":  # the old name of tools; a function's name is the id of its call
        kept["role"] = "tool"
        more["tool_call_id"] = legacy_id(message.name or "")
    more["reasoning_content"] = message.reasoning_content or message.reasoning
    return kept | {name: value for name, value in more.items() if value}


def calls_of(message: Message, where: str) -> list[dict[str, Any]]:
    """The calls of a message of the model, the old single one among them."""
    calls = list(message.tool_calls or ())
    if message.function_call:
        calls.append(MessageToolCall(function=message.function_call, id=legacy_id(message.function_call.name)))
    if calls and message.role != "assistant":
        raise bad_field("messages", f"{where} has tool calls, but only messages of the assistant can: take them out.")
    return [call_of(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]


def call_of(call: MessageToolCall, where: str) -> dict[str, Any]:
    if call.type != "function" or not call.function.name:
        raise bad_field("messages", f"{where} must be a function with a name.")
    if isinstance(call.function.arguments, dict) and is_deeper(call.function.arguments, MAX_SCHEMA_DEPTH):
        raise bad_field("messages", f"{where}.function.arguments is nested more than {MAX_SCHEMA_DEPTH} levels deep.")
    if max(len(call.function.name), len(call.id or "")) > MAX_NAME_CHARS:
        raise bad_field(
            "messages", f"{where} has a name or an id of more than {MAX_NAME_CHARS} characters: shorten it."
        )
    function = {"name": call.function.name, "arguments": call.function.arguments or {}}
    return {"id": call.id or "", "type": "function", "function": function}


def legacy_id(name: str) -> str:
    return f"call_{name}"


def check_names(message: Message, where: str) -> None:
    for name in ("name", "tool_call_id"):
        if len(getattr(message, name) or "") > MAX_NAME_CHARS:
            raise bad_field("messages", f"{where}.{name} is longer than {MAX_NAME_CHARS} characters: shorten it.")


def content_of(message: Message, where: str) -> str | list[dict[str, Any]]:
    """A text, or its parts where some of them are images."""
    if not isinstance(message.content, list) or not any(map(is_image, message.content)):
        return text_of(message, where)
    return [
        image_of(part, f"{where}.content[{i}]", message.role)
        if is_image(part)
        else {"type": "text", "text": text_of_part(part, f"{where}.content[{i}]")}
        for i, part in enumerate(message.content)
    ]


def text_of(message: Message, where: str) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(text_of_part(part, f"{where}.content[{i}]") for i, part in enumerate(message.content))


def text_of_part(part: ContentPart, where: str) -> str:
    if is_image(part):
        raise bad_field("messages", f"{where} is an image, but here messages are texts alone: leave it out.")
    if part.type == "image_url" or (part.type == "text" and part.text is None):
        raise bad_field("messages", f"{where} is of type {part.type!r} and has no {part.type}: give one.")
    if part.type != "text":
        raise bad_field("messages", f"{where} is of type {part.type!r}, but parts are of type 'text' or 'image_url'.")
    return part.text or ""
