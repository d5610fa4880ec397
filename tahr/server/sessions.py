"""Conversations the server remembers, so that a client may send only what is new.

A session belongs to the key of whoever began it: the same id under another key is another session.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tahr.server.http.errors import bad_field
from tahr.server.observe.metrics import Number
from tahr.server.openai.bodies import Message
from tahr.server.openai.prompts import ROLES, conversation, text_of

if TYPE_CHECKING:
    from tahr.library.outputs import Chunk
    from tahr.server.engine_port import ServedEngine

MAX_ID_CHARS = 256
Owner = tuple[str, str]  # the key of a client, and the id it chose


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as sessions care: the key that was presented, and the session's id from the header."""

    key: str = ""
    session: str = ""


def session_of(caller: Caller, metadata: Any) -> str:
    """The id a request names, in the header or in its metadata; empty if it names none."""
    value = metadata.get("session_id", "") if isinstance(metadata, dict) else ""
    if not isinstance(value, str):
        raise bad_field("metadata.session_id", "metadata.session_id must be a text.")
    said, header = value.strip(), caller.session.strip()
    if said and header and said != header:
        raise bad_field("metadata.session_id", "The header X-Tahr-Session names another session: send one of the two.")
    if len(said or header) > MAX_ID_CHARS:
        raise bad_field(
            "metadata.session_id", f"The session's id is longer than {MAX_ID_CHARS} characters: shorten it."
        )
    return said or header


@dataclass(slots=True)
class Turn:
    """One request of a session. Only a reply that comes to its end is remembered."""

    sessions: "Sessions"
    owner: Owner
    new: Sequence[Message]
    n_tokens: int  # of these, and of the reply as it grows
    texts: list[str] = field(default_factory=list)

    def hear(self, chunk: "Chunk") -> None:
        """A piece of the reply."""
        self.texts.append(chunk.text)
        self.n_tokens += len(chunk.token_ids)
        if chunk.finish_reason:
            reply = Message(role="assistant", content="".join(self.texts))
            self.sessions.remember(self.owner, [*self.new, reply], self.n_tokens)


@dataclass(frozen=True, slots=True)
class Remembered:
    """A conversation, and about how long it is."""

    messages: Sequence[Message] = ()
    n_tokens: int = 0


NOTHING = Remembered()


class Sessions:
    """The newest part of many conversations; those not heard of for longest go first."""

    def __init__(self, max_entries: int, max_tokens: int, events: Mapping[str, Number], gauges: tuple[Number, Number]):
        self._max_entries, self._max_tokens = max_entries, max_tokens
        self._events, self._gauges = events, gauges  # the second: how many there are, and how many tokens
        self._entries: OrderedDict[Owner, Remembered] = OrderedDict()
        self._lock = threading.Lock()  # requests are prepared on several threads

    def begin(self, owner: Owner, new: Sequence[Message], engine: "ServedEngine") -> tuple[list[Message], Turn]:
        """The whole conversation, the new messages last."""
        conversation(new)  # what is wrong with them is said with their own numbers, not those of the whole
        with self._lock:
            stored = self._entries.get(owner, NOTHING)
            self._event("hit" if stored.messages else "miss")
        # Half of the context at most, so that a session can never grow until nothing fits any more.
        kept = newest(stored.messages, engine, min(self._max_tokens, engine.context_size // 2))
        with self._lock:
            if self._entries.get(owner) is stored:  # else another turn ended meanwhile
                self._entries[owner] = kept
                self._entries.move_to_end(owner)
                self._event("dropped_message", len(stored.messages) - len(kept.messages))
        n_new = sum(n_tokens_of(message, engine) for message in new)
        return joined(kept.messages, new), Turn(self, owner, new, n_new)

    def remember(self, owner: Owner, messages: Sequence[Message], n_tokens: int) -> None:
        """Add a turn, and let go of the session nobody asked about for longest."""
        with self._lock:
            stored = self._entries.pop(owner, NOTHING)
            self._entries[owner] = Remembered(joined(stored.messages, messages), stored.n_tokens + n_tokens)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
                self._event("evicted")
            n_entries, n_all = self._gauges
            n_entries.set((), len(self._entries))
            n_all.set((), sum(entry.n_tokens for entry in self._entries.values()))

    def _event(self, name: str, n: int = 1) -> None:
        self._events[name].add((), n)


def joined(stored: Sequence[Message], new: Sequence[Message]) -> list[Message]:
    """One conversation. Instructions stand first, as templates want them, and new ones replace the old."""
    old_system, old = split(stored)
    new_system, rest = split(new)
    return [*(new_system or old_system), *old, *rest]


def split(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """The instructions a conversation begins with, and what follows."""
    n = next((i for i, message in enumerate(messages) if ROLES[message.role] != "system"), len(messages))
    return list(messages[:n]), list(messages[n:])


def newest(messages: Sequence[Message], engine: "ServedEngine", n_tokens: int) -> Remembered:
    """The instructions, and of the rest as many of the last messages as fit, beginning with a user's."""
    system, rest = split(messages)
    sizes = [n_tokens_of(message, engine) for message in rest]
    n_fitting = bisect_right(list(accumulate(reversed(sizes))), n_tokens)
    first = next((at for at in range(len(rest) - n_fitting, len(rest)) if rest[at].role == "user"), len(rest))
    n_kept = sum(n_tokens_of(message, engine) for message in system) + sum(sizes[first:])
    return Remembered([*system, *rest[first:]], n_kept)


def n_tokens_of(message: Message, engine: "ServedEngine") -> int:
    return len(engine.tokenizer.encode(text_of(message, ""), add_special=False))
