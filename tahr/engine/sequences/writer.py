"""The engine's view of a sequence's writer: tokens go in, deltas come out."""

from typing import Protocol

from tahr.text.replies.deltas import Deltas


class Writer(Protocol):
    """Takes tokens, gives deltas; `stopped` once a stop string has been found, or a limit of lines reached."""

    forced: tuple[int, ...]  # the tokens that must come next
    n_reasoning_tokens: int

    def push(self, token: int) -> Deltas: ...
    def flush(self) -> Deltas: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def is_cut(self) -> bool:
        """Whether that was a limit of lines."""

    @property
    def matched_stop(self) -> str | None:
        """The stop string that was found."""
