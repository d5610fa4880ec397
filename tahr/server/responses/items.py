"""Items of a conversation as messages of a chat: calls and thoughts are items of their own here."""

from collections.abc import Callable, Iterable, Mapping

from tahr.server.bodies.image_parts import ContentPart, is_image, placed_image
from tahr.server.bodies.messages import MAX_NAME_CHARS, Message, MessageFunction, MessageToolCall
from tahr.server.bodies.turns import Turns, text_parts
from tahr.server.http.errors import HttpError, bad_field
from tahr.server.responses.bodies import TEXTS, InputItem, InputPart

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def as_items(given: str | list[InputItem] | None) -> list[InputItem]:
    return [InputItem(role="user", content=given)] if isinstance(given, str) else given or []


def chat_messages(instructions: str | None, items: Iterable[InputItem], needs_turn: bool = True) -> list[Message]:
    """The conversation, instructions first."""
    turns = Turns()
    if instructions:
        turns.add(Message(role="system", content=text_parts(instructions)))
    for i, item in enumerate(items):
        if item.type not in KINDS:
            raise unreadable(f"input[{i}]", item.type)
        turns.add(KINDS[item.type](item, f"input[{i}]"))
    made = turns.messages()
    if not made or (needs_turn and made[-1].role == "system"):
        raise bad_field("input", "input holds nothing to reply to: send at least one message of the user.")
    return made


def message_of(item: InputItem, where: str) -> Message:
    if item.role not in ROLES:
        raise bad_field("input", f"{where}.role must be one of {', '.join(ROLES)}.")
    if item.content is None:
        raise bad_field("input", f"{where}.content is missing: give it.")
    return Message(role=ROLES[item.role], content=parts_of(item.content, f"{where}.content"))


def reasoning_of(item: InputItem, where: str) -> Message:
    """The model's thoughts: as they were, or, where the client wants that, as a summary."""
    parts = [*parts_of(item.content or [], f"{where}.content"), *parts_of(item.summary or [], f"{where}.summary")]
    thought = "\n".join(part.text or "" for part in parts)
    return Message(role="assistant", content=[], reasoning_content=thought or None)


def call_of(item: InputItem, where: str) -> Message:
    name = identifier(item.name, f"{where}.name")
    call_id = identifier(item.call_id, f"{where}.call_id")
    function = MessageFunction(flat_name(item.namespace, name), item.arguments or "{}")
    return Message(role="assistant", content=[], tool_calls=[MessageToolCall(function=function, id=call_id)])


def output_of(item: InputItem, where: str) -> Message:
    if item.output is None:
        raise bad_field("input", f"{where}.output is missing: give it.")
    parts = parts_of(item.output, f"{where}.output")
    content = parts if any(map(is_image, parts)) else "\n".join(part.text or "" for part in parts)
    return Message(role="tool", content=content, tool_call_id=identifier(item.call_id, f"{where}.call_id"))


KINDS: Mapping[str, Callable[[InputItem, str], Message]] = {
    "message": message_of,
    "reasoning": reasoning_of,
    "function_call": call_of,
    "function_call_output": output_of,
}


def flat_name(namespace: str | None, name: str) -> str:
    """The one name a model knows a function by."""
    return f"{namespace}__{name}" if namespace else name


def parts_of(content: str | list[InputPart], where: str) -> list[ContentPart]:
    if isinstance(content, str):
        return [ContentPart("text", content)]
    return [part_of(part, f"{where}[{i}]") for i, part in enumerate(content)]


def part_of(part: InputPart, where: str) -> ContentPart:
    """A text or an image."""
    if part.type != "input_image":
        return text_part(part, where)
    if part.file_id is not None or part.image_url is None:
        raise bad_field("input", f"{where} must hold the image: send it as image_url, a data URI, without a file_id.")
    return placed_image(part.image_url, where, part.detail)


def text_part(part: InputPart, where: str) -> ContentPart:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in TEXTS:
        raise unreadable(where, part.type)
    if text is None:
        raise bad_field("input", f"{where} is of type {part.type!r} and has no text: give one.")
    return ContentPart("text", text)


def unreadable(where: str, kind: str) -> HttpError:
    return bad_field("input", f"{where} is of type {kind[:64]!r}, which this server cannot read there: leave it out.")


def identifier(value: str | None, where: str) -> str:
    if not value or len(value) > MAX_NAME_CHARS:
        raise bad_field("input", f"{where} must have 1 to {MAX_NAME_CHARS} characters.")
    return value
