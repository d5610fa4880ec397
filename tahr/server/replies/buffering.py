"""Replies that clients get when they are whole and keep to their grammar, or not at all."""

from collections.abc import Sequence

from tahr.generation.outputs import Chunk
from tahr.server.http.errors import HttpError
from tahr.server.replies.formatter import ChoiceOutput
from tahr.text.replies.deltas import merge

WHOLE = ("stop", "tool_calls")  # reasons to end a reply with a grammar where that allows it


def is_cut(finish_reason: str | None) -> bool:
    """Whether a choice ended where its grammar does not."""
    return finish_reason is not None and finish_reason not in WHOLE


def check_whole(outputs: Sequence[ChoiceOutput], field: str) -> None:
    """Refuse outputs in which a text ends before its grammar lets it."""
    if any(is_cut(output.finish_reason) for output in outputs):
        reason = f"The reply ended before it was what {field} asks for: allow more tokens, or send it again."
        raise HttpError(500, reason, param=field, code="incomplete_reply")


def as_chunk(output: ChoiceOutput) -> Chunk:
    """A whole choice, as a stream that holds nothing back would end with it."""
    assert output.completion
    return Chunk(
        deltas=tuple(merge(output.deltas)),
        token_ids=output.completion.token_ids,
        finish_reason=output.finish_reason,
        completion=output.completion,
        logprobs=output.logprobs,
    )
