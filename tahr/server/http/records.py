"""Plain facts about a request: the whole input of metrics, logs, traces and dumps."""

import itertools
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from tahr.config import SamplingParams
    from tahr.engine.sequences.stats import RequestStats

MIXED = "mixed"
_numbers = itertools.count(1)


class GenerationRecord(Struct):
    """A request that generates, while it runs and afterwards."""

    id: str  # id in the reply
    route: str
    model: str
    backend: str
    context_size: int
    params: "SamplingParams"  # params of the first prompt
    prompts: list[list[int]]
    stream: bool
    texts: dict[int, list[str]] | None = None  # texts by choice, only for dumps
    number: int = field(default_factory=_numbers.__next__)  # joins the lines of the log
    began: float = field(default_factory=perf_counter)
    # arrival, before the model was loaded and the prompt tokenised
    arrived: float = field(default_factory=perf_counter)
    n_tokens: int = 0
    n_cached: int = 0
    n_reasoning: int = 0  # tokens of the choices that are finished
    token_at: dict[int, float] = {}  # time of each choice's last token
    finish: str = ""  # the finish reason of all choices, MIXED, or how else it ended
    finishes: dict[int, str] = {}  # why each choice that is finished has
    stats: "list[RequestStats]" = []  # finished choices
    account: str = ""  # whose key it came with
    n_submitted_tokens: int = 0  # tokens of prompts that the engine has taken

    @property
    def n_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.params.n

    @property
    def reasons(self) -> list[str]:
        """How each choice ended: for its own reason, unless one word says it of all."""
        if self.finish == MIXED:
            return [self.finishes[choice] for choice in sorted(self.finishes)]
        return [self.finish or "error"] * self.n_choices

    @property
    def last_token_at(self) -> float:
        return max(self.token_at.values(), default=0.0)


class RecordingRecord(Struct):
    """A recording that was written down, as far as anybody waited for it."""

    model: str
    seconds: float  # length of what was read
    n_windows: int
    n_fallbacks: int  # texts that were written again at a higher temperature
    took_s: float
    account: str = ""  # whose key it came with


class SpeechRecord(Struct):
    """A text that was spoken, as far as anybody waited for it."""

    model: str
    n_frames: int
    reason: str  # "stop", or why it was stopped
    took_s: float
    account: str = ""  # whose key it came with


class InputRecord(Struct):
    """Texts that were embedded or compared."""

    account: str
    model: str
    n_tokens: int


class RequestRecord(Struct):
    """One HTTP request."""

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    began: float = field(default_factory=perf_counter)
    arrived: float = 0.0  # arrival of the whole body
    ended: float = 0.0
    route: str = "other"  # the path, if there is such a route
    body: bytes = b""
    status: int = 0  # 0: the client left before there was a response
    error_code: str | None = None
    generation: GenerationRecord | None = None
    inputs: InputRecord | None = None
