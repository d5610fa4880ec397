"""Conversations the server remembers, so that a client may send only what is new.

A session belongs to the key of the client that began it: the same id under another key is another session.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tahr.server.bodies.image_parts import is_image
from tahr.server.bodies.messages import ROLES, Message, MessageFunction, MessageToolCall, conversation, text_of
from tahr.server.http.errors import bad_field
from tahr.text.replies.deltas import Delta, ToolCall, tool_calls_of
from tahr.text.replies.deltas import text_of as text_of_deltas

if TYPE_CHECKING:
    from tahr.generation.outputs import Chunk
    from tahr.server.models.engine_port import ServedEngine

MAX_ID_CHARS = 256
FRAME_TOKENS = 8  # about what a template adds to each message
Owner = tuple[str, str]  # the key of a client, and the id it chose


@dataclass(frozen=True, slots=True)
class Caller:
    """The key a client presented, and the session's id from its header."""

    key: str = ""
    session: str = ""
    salt: str = ""  # keeps what it puts into the prefix cache apart


def session_of(caller: Caller, metadata: Any) -> str:
    """The id a request names, in the header or in its metadata; empty if it names none."""
    value = metadata.get("session_id", "") if isinstance(metadata, dict) else ""
    if not isinstance(value, str):
        raise bad_field("metadata.session_id", "metadata.session_id must be a text.")
    named = value.strip()
    header = caller.session.strip()
    if named and header and named != header:
        raise bad_field("metadata.session_id", "The header X-Tahr-Session names another session: send one of the two.")
    if len(named or header) > MAX_ID_CHARS:
        raise bad_field(
            "metadata.session_id", f"The session's id is longer than {MAX_ID_CHARS} characters: shorten it."
        )
    return named or header


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message without the fields no template reads, and about how many tokens it takes in a prompt."""

    message: Message
    n_tokens: int


Conversation = tuple[StoredMessage, ...]


@dataclass(slots=True)
class SessionStats:
    """Contents of the session cache, and counts of its work."""

    entries: int = 0
    tokens: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    dropped_messages: int = 0


@dataclass(slots=True)
class Turn:
    """One request of a session. It is remembered when its reply has finished."""

    sessions: "Sessions"
    owner: Owner
    stored: Conversation  # the session at the beginning of the turn
    history: Conversation  # the part of it that goes into the prompt
    new: Conversation
    max_tokens: int  # limit on the session
    deltas: list[Delta] = field(default_factory=list)
    n_reply_tokens: int = 0

    @property
    def messages(self) -> list[Message]:
        return [each.message for each in joined(self.history, self.new)]

    def shorten(self) -> bool:
        """Drop the older half of the history; False if none is left."""
        system, rest = split(self.history)
        self.history = (*system, *from_user(rest, (len(rest) + 1) // 2))
        return bool(rest)

    def add(self, chunk: "Chunk") -> None:
        """A chunk of the reply."""
        self.deltas += chunk.deltas
        self.n_reply_tokens += len(chunk.token_ids)
        if chunk.finish_reason:
            calls = [stored_call(call) for call in tool_calls_of(self.deltas)]
            reply = Message(role="assistant", content=text_of_deltas(self.deltas), tool_calls=calls or None)
            self.sessions.remember(self, StoredMessage(reply, self.n_reply_tokens + FRAME_TOKENS))


class Sessions:
    """The newest part of many conversations; the one unused for longest is evicted first. Any thread may use it."""

    def __init__(self, max_entries: int, max_tokens: int):
        self.stats = SessionStats()
        self._max_entries = max_entries
        self._max_tokens = max_tokens
        self._entries: OrderedDict[Owner, Conversation] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, owner: Owner, new: Sequence[Message], engine: "ServedEngine") -> Turn:
        """A turn whose messages are the whole conversation, the new ones last."""
        conversation(new)  # its errors number the messages as they were sent
        added = tuple(StoredMessage(bare(message, i), n_tokens_of(message, engine)) for i, message in enumerate(new))
        # Half of the context at most, so that new messages and replies fit.
        max_tokens = min(self._max_tokens, engine.context_size // 2)
        with self._lock:
            stored = self._entries.get(owner, ())
            self.stats.hits += bool(stored)
            self.stats.misses += not stored
            if stored:
                self._entries.move_to_end(owner)
        return Turn(self, owner, stored, stored, added, max_tokens)

    def remember(self, turn: Turn, reply: StoredMessage) -> None:
        """Add a turn, and evict the sessions unused for longest."""
        with self._lock:
            stored = self._entries.pop(turn.owner, ())
            base = turn.history if stored is turn.stored else stored  # another turn may have finished meanwhile
            whole = joined(base, (*turn.new, reply))
            kept = newest(whole, turn.max_tokens)
            self._entries[turn.owner] = kept
            self.stats.dropped_messages += len(whole) - len(kept)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
                self.stats.evictions += 1
            self.stats.entries = len(self._entries)
            self.stats.tokens = sum(n_tokens(each) for each in self._entries.values())


def bare(message: Message, number: int) -> Message:
    """A message with the fields templates read: clients may put anything into the others."""
    if isinstance(message.content, list) and any(map(is_image, message.content)):
        wrong = "has an image, but sessions keep texts alone: send the whole conversation, without a session."
        raise bad_field("messages", f"messages[{number}] {wrong}")
    text = text_of(message, "")
    return Message(
        role=message.role,
        content=text,
        name=message.name,
        tool_call_id=message.tool_call_id,
        tool_calls=message.tool_calls,
        function_call=message.function_call,
    )


def stored_call(call: ToolCall) -> MessageToolCall:
    return MessageToolCall(id=call.id, function=MessageFunction(call.name, call.arguments))


def n_tokens_of(message: Message, engine: "ServedEngine") -> int:
    calls = "".join(f"{call.function.name}{call.function.arguments}" for call in message.tool_calls or ())
    text = "".join((text_of(message, ""), message.name or "", message.tool_call_id or "", calls))
    return len(engine.tokenizer.encode(text, add_special=False)) + FRAME_TOKENS


def n_tokens(messages: Conversation) -> int:
    return sum(each.n_tokens for each in messages)


def joined(stored: Conversation, new: Conversation) -> Conversation:
    """One conversation. Instructions stand first, as templates want them, and new ones replace the old."""
    old_system, old = split(stored)
    new_system, rest = split(new)
    return (*(new_system or old_system), *old, *rest)


def split(messages: Conversation) -> tuple[Conversation, Conversation]:
    """The instructions a conversation begins with, and what follows."""
    n = next((i for i, each in enumerate(messages) if ROLES[each.message.role] != "system"), len(messages))
    return messages[:n], messages[n:]


def newest(messages: Conversation, max_tokens: int) -> Conversation:
    """The instructions, and of the rest as many of the last messages as fit, beginning with a user's."""
    system, rest = split(messages)
    n_fitting = bisect_right(list(accumulate(each.n_tokens for each in reversed(rest))), max_tokens)
    return (*system, *from_user(rest, len(rest) - n_fitting))


def from_user(messages: Conversation, first: int) -> Conversation:
    """The messages from the first of a user on, at or after a position."""
    begin = next((at for at in range(first, len(messages)) if messages[at].message.role == "user"), len(messages))
    return messages[begin:]
