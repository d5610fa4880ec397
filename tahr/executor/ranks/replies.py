"""Answers of ranks: that something is done, or the error that kept a rank from it."""

from typing import NamedTuple

from tahr import errors
from tahr.errors import GenerateError, TahrError
from tahr.executor.ranks.messages import RankMessage, text_message
from tahr.executor.ranks.region import REPLY_BYTES

DONE = 0
FAILED = 1
MOST_TEXT = REPLY_BYTES // 4 - 64  # characters of an answer, of four bytes at most


class RankReply(NamedTuple):
    """An answer of a rank: a text, and the shape of rows that lie in their place."""

    text: str = ""
    n_rows: int = 0
    width: int = 0


def reply_message(reply: RankReply) -> RankMessage:
    return text_message(DONE, reply.text[:MOST_TEXT], reply.n_rows, reply.width)


def error_message(error: BaseException) -> RankMessage:
    """An error by the name of its class, if it is one of ours."""
    name = type(error).__name__ if isinstance(error, TahrError) else ""
    text = str(error) if name else f"A rank failed: {error!r}."
    return text_message(FAILED, f"{name}\n{text}"[:MOST_TEXT])


def read_reply(message: RankMessage) -> RankReply | TahrError:
    """The answer in a message, or the error."""
    if message.kind == DONE:
        n_rows, width = message.numbers
        return RankReply(message.text, n_rows, width)
    name, _, text = message.text.partition("\n")
    kind = getattr(errors, name, GenerateError) if name else GenerateError
    is_ours = isinstance(kind, type) and issubclass(kind, TahrError) and kind.__init__ is TahrError.__init__
    return kind(text) if is_ours else GenerateError(text)
