"""A sequence: its tokens, how many of them are computed, and everything else that belongs to one request."""

import itertools
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tahr.config import SamplingParams
from tahr.engine.stats import RequestStats
from tahr.errors import TahrError

if TYPE_CHECKING:
    from tahr.engine.output import Writer
    from tahr.engine.sampler import Picker

_ids = itertools.count(1)


@dataclass(eq=False, slots=True)
class Sequence:
    """Progress is one number: `computed` catches up with `len(tokens)`."""

    tokens: list[int]
    params: SamplingParams
    max_length: int  # tokens it may grow to: prompt + max_tokens, cut to the context
    picker: "Picker | None" = None
    writer: "Writer | None" = None
    id: int = field(default_factory=lambda: next(_ids))
    n_prompt: int = 0
    computed: int = 0
    pages: "array[int]" = field(default_factory=lambda: array("i"))
    finish_reason: str | None = None
    error: TahrError | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    arrived_s: float = field(default_factory=time.perf_counter)
    started_s: float = 0.0
    first_picked_s: float = 0.0

    def __post_init__(self) -> None:
        self.n_prompt = len(self.tokens)
        self.stats.n_prompt_tokens = self.n_prompt

    @property
    def behind(self) -> int:
        return len(self.tokens) - self.computed  # 1: decoding; more: prefill, or a text to recompute

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    def started(self, now: float) -> None:
        """Its first tokens are about to be computed."""
        if not self.started_s:
            self.started_s = now
            self.stats.queue_s = now - self.arrived_s

    def picked(self, token: int, now: float) -> None:
        """A new token: append it and keep the clock."""
        self.tokens.append(token)
        if not self.first_picked_s:
            self.first_picked_s = now
            self.stats.prefill_s = now - self.started_s
            self.stats.first_token_s = now - self.arrived_s
        self.stats.n_generated_tokens = self.n_generated
        self.stats.decode_s = now - self.first_picked_s
