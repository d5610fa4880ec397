"""Anthropic's messages as messages of a chat.

Their blocks hold what are messages of their own elsewhere: a tool's result stands in a message of the user.
"""

from collections.abc import Iterator, Sequence

from tahr.server.anthropic.blocks import call_of, part_of, required, result_of, text_part
from tahr.server.anthropic.bodies import AnthropicMessage, ContentBlock, CountTokensBody
from tahr.server.bodies.image_parts import ContentPart
from tahr.server.bodies.messages import Message, MessageToolCall
from tahr.server.bodies.turns import Turns
from tahr.server.http.errors import bad_field

# Claude Code states its version in a block of the instructions. It differs between sessions, so that what follows
# would never be found in the prefix cache, and it is no text for a model.
BILLING = "x-anthropic-billing-header:"


def chat_messages(body: CountTokensBody) -> list[Message]:
    """The conversation, instructions first; neighbours of one role are one turn, as Anthropic has it."""
    if not body.messages:
        raise bad_field("messages", "messages is empty: send at least one message.")
    turns = Turns()
    if system := system_parts(body.system):
        turns.add(Message(role="system", content=system))
    for i, message in enumerate(body.messages):
        for each in turns_of(message, f"messages[{i}]"):
            turns.add(each)
    return turns.messages()


def system_parts(system: str | list[ContentBlock] | None) -> list[ContentPart]:
    blocks = [ContentBlock(type="text", text=system)] if isinstance(system, str) else system or []
    parts = [text_part(block, f"system[{i}]", "system") for i, block in enumerate(blocks)]
    return [part for part in parts if part.text and not part.text.startswith(BILLING)]


def turns_of(message: AnthropicMessage, where: str) -> Iterator[Message]:
    content = message.content
    blocks = [ContentBlock(type="text", text=content)] if isinstance(content, str) else content
    if message.role == "assistant":
        return iter([assistant_turn(blocks, where)])
    if not blocks:
        raise bad_field("messages", f"{where}.content is empty: give it at least one block.")
    if message.role not in ("user", "system"):
        raise bad_field("messages", f"{where}.role is {message.role[:64]!r}, but it must be user or assistant.")
    return user_turns(blocks, where, message.role)


def user_turns(blocks: Sequence[ContentBlock], where: str, role: str) -> Iterator[Message]:
    """Text and results of tools, in their order."""
    for i, block in enumerate(blocks):
        at = f"{where}.content[{i}]"
        if block.type == "tool_result":
            yield result_of(block, at)
        else:
            yield Message(role=role, content=[part_of(block, at, "messages")])


def assistant_turn(blocks: Sequence[ContentBlock], where: str) -> Message:
    texts: list[ContentPart] = []
    calls: list[MessageToolCall] = []
    thoughts: list[str] = []
    for i, block in enumerate(blocks):
        at = f"{where}.content[{i}]"
        if block.type == "tool_use":
            calls.append(call_of(block, at))
        elif block.type == "thinking":
            thoughts.append(required(block.thinking, at, "thinking"))
        elif block.type != "redacted_thinking":  # others' redacted thinking cannot be read
            texts.append(text_part(block, at, "messages"))
    thought = "\n".join(filter(None, thoughts))
    return Message(role="assistant", content=texts, tool_calls=calls or None, reasoning_content=thought or None)
