"""Content blocks as parts of messages: texts, calls and results."""

from tahr.server.anthropic.bodies import ContentBlock
from tahr.server.bodies.image_parts import ContentPart, is_image, placed_image
from tahr.server.bodies.messages import MAX_NAME_CHARS, Message, MessageFunction, MessageToolCall
from tahr.server.http.errors import HttpError, bad_field
from tahr.text.tool_calls.tools import MAX_SCHEMA_DEPTH, is_deeper


def text_part(block: ContentBlock, where: str, field: str) -> ContentPart:
    if block.type != "text":
        raise unreadable(block, where, field)
    return ContentPart("text", required(block.text, where, "text", field))


def part_of(block: ContentBlock, where: str, field: str) -> ContentPart:
    """A text or an image."""
    if block.type != "image":
        return text_part(block, where, field)
    source = block.source
    if source is None:
        raise bad_field(field, f"{where}.source is missing: give it.")
    if source.type == "url" and source.url:
        return placed_image(source.url, where)
    if source.type != "base64" or source.data is None or source.media_type is None:
        raise bad_field(field, f"{where}.source must hold the image: send type base64, media_type and data.")
    return placed_image(f"data:{source.media_type};base64,{source.data}", where)


def unreadable(block: ContentBlock, where: str, field: str) -> HttpError:
    return bad_field(
        field, f"{where} is of type {block.type[:64]!r}, which this server cannot read there: leave it out."
    )


def required(value: str | None, where: str, name: str, field: str = "messages") -> str:
    if value is None:
        raise bad_field(field, f"{where}.{name} is missing: give it.")
    return value


def identifier(value: str | None, where: str, name: str) -> str:
    given = required(value, where, name)
    if not 0 < len(given) <= MAX_NAME_CHARS:
        raise bad_field("messages", f"{where}.{name} must have 1 to {MAX_NAME_CHARS} characters.")
    return given


def call_of(block: ContentBlock, where: str) -> MessageToolCall:
    if is_deeper(block.input, MAX_SCHEMA_DEPTH):
        raise bad_field("messages", f"{where}.input is nested more than {MAX_SCHEMA_DEPTH} levels deep.")
    function = MessageFunction(identifier(block.name, where, "name"), block.input or {})
    return MessageToolCall(function=function, id=identifier(block.id, where, "id"))


def result_of(block: ContentBlock, where: str) -> Message:
    """A tool's result. No template has a mark for those that failed, so the text says it."""
    content = block.content
    blocks = content if isinstance(content, list) else [ContentBlock(type="text", text=content or "")]
    parts = [part_of(each, f"{where}.content[{i}]", "messages") for i, each in enumerate(blocks)]
    id = identifier(block.tool_use_id, where, "tool_use_id")
    if any(map(is_image, parts)):
        failed = [ContentPart("text", "Error: ")] if block.is_error else []
        return Message(role="tool", content=[*failed, *parts], tool_call_id=id)
    text = "\n".join(part.text or "" for part in parts)
    if block.is_error and not text.lower().startswith(("error", "<tool_use_error>")):
        text = f"Error: {text}"
    return Message(role="tool", content=text, tool_call_id=id)
