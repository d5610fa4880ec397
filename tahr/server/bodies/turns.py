"""Turns of a conversation, put together from the pieces that other APIs send."""

from tahr.server.bodies.image_parts import ContentPart
from tahr.server.bodies.messages import Message

SIDES = ("system", "user", "assistant")  # whose neighbouring messages are one turn


class Turns:
    """A conversation that grows. Neighbours of one side become one message, because templates want turns to alternate.

    What belongs together is kept in lists until the end, so that many pieces cost no more than their size.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._thoughts: list[list[str]] = []  # one list for each message

    def add(self, message: Message) -> None:
        """A message whose content is a list, unless it is a tool's."""
        # Templates know instructions at the beginning alone: later ones are the user's words.
        if message.role == "system" and self._messages and self._messages[-1].role != "system":
            message.role = "user"
        thoughts = [message.reasoning_content] if message.reasoning_content else []
        if not self._messages or not continues(self._messages[-1], message):
            self._messages.append(message)
            self._thoughts.append(thoughts)
            return
        last = self._messages[-1]
        assert isinstance(last.content, list) and isinstance(message.content, list)
        last.content += message.content
        self._thoughts[-1] += thoughts
        if message.tool_calls:
            last.tool_calls = last.tool_calls or []
            last.tool_calls += message.tool_calls

    def messages(self) -> list[Message]:
        """The conversation; nothing may be added afterwards."""
        for message, thoughts in zip(self._messages, self._thoughts, strict=True):
            message.reasoning_content = "\n".join(thoughts) or None
        return self._messages


def continues(last: Message, message: Message) -> bool:
    """Whether a message belongs to the turn before. Calls end a turn: only other calls go with them."""
    if last.role != message.role or message.role not in SIDES:
        return False
    return not last.tool_calls or not (message.content or message.reasoning_content)


def text_parts(*texts: str | None) -> list[ContentPart]:
    """Parts of the texts that are not empty."""
    return [ContentPart("text", text) for text in texts if text]
