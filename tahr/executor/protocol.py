"""The executor as the engine sees it. Its calls take effect in the order they are made, and that order is the protocol.

A step is four calls: the engine fills the executor's own `inputs` in place, then `launch`, `sample` and `collect`.
`sample` may come later than `launch`, where a grammar must see the tokens of the step before, but before the next
`launch` of the same model, which writes over the logits. What the engine decides (the size a step is padded to, first
runs, adapters) stands in the request; what a request refers to are arrays, and slots and numbers that both sides count
alike. So a request can be sent to another process, and several executors that are given the same calls stay alike.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tahr.backends.api import STATES as STATES  # the group of states, for `PagePort`
from tahr.backends.api import (
    Bytes,
    EnergyCounter,
    Floats,
    HostPage,
    Ints,
    LoraRows,
    Rows,
    StepInputs,
    StepLimits,
    Ticket,
)
from tahr.backends.sampling.sample_rows import Logprobs, SampledTokens, SampleRows, Words
from tahr.kv.layout import PageLayout
from tahr.kv.tables import PageCopy
from tahr.models.parts.encoding import Encoding

Handle = Any  # a launched step, which means something to its executor alone
PlanKey = tuple[int, int, int, int]  # output, bucket, rounds of adapters, extras
TOWER = 2  # the model that computes rows for another one
# What a drafter's step reads: rows that the model's layers stored, or rows of its own.
FOLLOWED = 0
CHAINED = 1


class StepRequest(NamedTuple):
    """A step whose inputs are filled in: numbers, and copies to make before it runs."""

    number: int  # counts the steps of this model; those of a warm-up are 0
    model: int  # 0: the model; 1: its draft model; `TOWER`
    output: int  # an `Output`; for a tower, the part of it that is run; for a drafter, which rows it reads
    bucket: int  # the plan's size, by its place in `DecoderFacts.buckets`
    adapter_rounds: int = 0  # 0: no sequence has an adapter
    sends_adapter_rows: bool = False  # the adapter rows have changed since the step before
    wants_rows: bool = False  # the host needs the rows themselves, besides the tokens sampled from them
    page_copies: Sequence[PageCopy] = ()
    state_copies: Sequence[tuple[int, int]] = ()  # (from, to) slots
    extras: int = 0  # some of `Extras`

    @property
    def plan(self) -> PlanKey:
        """The recorded plan that the step runs."""
        return self.output, self.bucket, self.adapter_rounds, self.extras


class StepResult(NamedTuple):
    """Output of a step."""

    sampled: SampledTokens | None  # None: nothing was sampled
    rows: Floats | None  # all rows in the order of the step, where the request wants them


class RowFacts(NamedTuple):
    """The row slots that a model's steps read."""

    n_slots: int
    width: int
    n_each: int = 0  # rows of an input, whose keys and values a slot holds; 0: it holds a row


NO_ROW_SLOTS = RowFacts(0, 0)


class FrameFacts(NamedTuple):
    """The frames that steps of a model that speaks draw."""

    n_codes: int  # codes of a frame; 0: it draws none
    n_sounds: int = 0  # first codes that are sounds; as a code that is drawn, the next one is the end
    no_first: int = 0  # first code that stands for no frame
    no_other: int = 0  # likewise, of the other codes


NO_FRAMES = FrameFacts(0)


class DecoderFacts(NamedTuple):
    """One model of an executor, in numbers."""

    n_vocab: int  # tokens that exist
    n_logits: int  # logits of a row: at least `n_vocab`
    width: int  # width of a hidden row
    head_width: int  # width of the text head's result; 0: the model has none
    encoding: Encoding | None  # the way from whole texts to vectors; None: the model generates
    has_states: bool
    buckets: tuple[tuple[StepLimits, ...], ...]  # sizes of plans by `Output`, smallest first
    n_decode_tokens: int  # tokens of one sequence in a step: its own and its drafts
    rows: RowFacts = NO_ROW_SLOTS  # row slots that its steps read
    has_axes: bool = False  # rope turns tokens by positions of several axes
    placeholder: int = -1  # token that stands for a row of an image; none: -1
    frames: FrameFacts = NO_FRAMES
    line_end: bytes = b""  # row behind each line of an image's tiles, in f32; empty: there is none


class TowerFacts(NamedTuple):
    """A tower in numbers: layers that see all of an input at once and compute rows for the model."""

    n_parts: int  # runs of its layers; a step runs one of them
    limits: StepLimits  # limits of a step: the longest input has so many tokens
    buckets: tuple[tuple[StepLimits, ...], ...]  # sizes of plans by part
    width_in: int  # numbers of an input row
    page_size: int  # tokens of a page in the memory of its steps; every input begins one
    windowed: tuple[bool, ...] = ()  # parts whose attention ends at the windows of an input
    n_joined: int = 0  # neighbours that become a row in the last part, which reads no others; 0: it reads all rows


class MemoryFacts(NamedTuple):
    """The keys, values and states of an executor, in numbers."""

    n_bytes: int
    page_size: int
    dtype: str
    state_shapes: tuple[tuple[int, ...], ...]  # shapes of layers that have a state
    layout: PageLayout  # layout of pages that are copied to the host


class ExecutorFacts(NamedTuple):
    """Constants of an executor."""

    overlaps: bool  # a step may be launched before the one before it is collected
    has_own_memory: bool  # weights, keys and values lie in a device's memory
    memory: MemoryFacts


class PreparedAdapter(NamedTuple):
    """An adapter that was read, checked and brought into the executor's memory, ready for a slot."""

    path: str
    digest: str
    rank: int
    n_bytes: int
    base: str  # the model it says it was trained on
    notes: tuple[str, ...]  # remarks for the user
    data: Any  # the executor's


class AdapterPort(Protocol):
    """The adapters an executor keeps, by slot."""

    def prepare(self, path: Path, model_name: str) -> PreparedAdapter:
        """Read an adapter and check that it fits the model. Any thread may call this; nothing changes yet."""

    def put(self, slot: int, prepared: PreparedAdapter) -> None:
        """Let steps that are launched from now on find the adapter in this slot."""

    def clear(self, slot: int) -> None:
        """Release an adapter that no step uses any more."""

    @property
    def plan_key(self) -> tuple[int, ...]:
        """Changes whenever `put` changes what steps with adapters are made of."""

    @property
    def note(self) -> str:
        """How linears add adapters, for the load log; empty if there is only one way."""

    def rows(self, rows: Rows) -> LoraRows:
        """Which rows of a step meet which adapters: the executor's own arrays, filled in place before a launch."""

    def warm_next(self) -> bool:
        """Run one more kind of step as if there were adapters, with nothing in flight; False if none is left."""


class PagePort(Protocol):
    """The content of pages and states.

    `read` and `write` take them in the form in which they are exchanged, and wait. `store` and `load` copy them to the
    host and back while steps go on: see `PageIO`. What lies on the host is the executor's own, and is passed on as
    bytes only.
    """

    def reserve(self, n_bytes: int) -> None:
        """Use so much memory of the host for copies, before the first one is made."""

    def n_storable(self, n_pages: int, group: int = 0) -> int: ...
    def store(self, pages: Sequence[int], group: int = 0) -> Ticket: ...
    def load(self, pages: Sequence[int], group: int, contents: Sequence[HostPage]) -> Ticket: ...
    def blank(self, n_pages: int, group: int = 0) -> Sequence[HostPage]: ...
    def read(self, pages: Sequence[int], group: int = 0) -> list[Bytes]: ...
    def write(self, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None: ...
    def read_states(self, slots: Sequence[int]) -> list[Floats]: ...
    def write_states(self, slots: Sequence[int], layers: Sequence[Floats]) -> None: ...


class Executor(Protocol):
    """Runs the steps of one model, and of a draft model beside it."""

    @property
    def facts(self) -> ExecutorFacts: ...
    @property
    def models(self) -> Sequence[DecoderFacts]: ...
    @property
    def tower(self) -> TowerFacts | None: ...
    @property
    def adapters(self) -> AdapterPort: ...
    @property
    def pages(self) -> PagePort: ...
    @property
    def fault(self) -> str:
        """Why no step can be computed any more, in a sentence without paths; empty if they can."""

    @property
    def cpu_s(self) -> float:
        """CPU time of processes of its own."""

    def restart(self, reason: str) -> None:
        """After `ExecutorLost`: begin again with empty pages and the same adapters, or have a `fault`."""

    def close(self) -> None:
        """End processes of its own."""

    def inputs(self, model: int = 0) -> StepInputs:
        """The arrays that a step reads. They may be filled again as soon as `launch` has returned."""

    def launch(self, step: StepRequest) -> Handle:
        """Begin a step."""

    def put_rows(self, slots: Sequence[int], rows: Floats, model: int = 0) -> None:
        """Put rows into the slots that steps of a model read, those that are launched from now on."""

    def sample(self, handle: Handle, rows: SampleRows) -> None:
        """Begin to sample from the step's logits. Token i goes to the token slot `rows.slots[i]` too."""

    def collect(self, handle: Handle) -> StepResult:
        """Wait for a step."""

    def prepare(self, steps: Sequence[StepRequest]) -> StepRequest | None:
        """The first of some steps that could run without waiting, while others are being prepared; None: ask again."""

    def wants_warming(self) -> bool:
        """Whether steps should run before requests need them, because first runs are slow, and memory is left."""

    def warm(self, step: StepRequest) -> None:
        """Run a step without tokens, which changes no page and no state, and wait for it. Nothing may be in flight."""

    def weights_changed(self) -> bool:
        """Whether the files of the weights are no longer what was loaded; any thread may ask."""

    def sleep(self) -> int:
        """Give memory back until `wake`, with all that is in pages and states; the bytes that it was. Nothing may be
        in flight."""

    def wake(self) -> None:
        """Take the memory again; an error leaves everything asleep."""

    def energy_counter(self) -> EnergyCounter | None:
        """A counter of the energy that its devices use, where there is one; another thread may read it."""

    def mask_memory(self, n: int, n_words: int) -> Words:
        """Memory for `SampleRows.mask`, from which masks reach the device without another copy."""

    def host_samples(self, rows: SampleRows) -> Sequence[int]:
        """The samples whose tokens the device never knows by itself: no step may refer to them by their slots."""

    def sample_host_rows(self, logits: Floats, rows: SampleRows) -> SampledTokens:
        """Tokens from logits that are on the host already."""

    def logprobs(self, logits: Floats, n_vocab: int, source: Ints, tokens: Ints, n_top: Ints) -> Logprobs:
        """The log-probability of each token by row `source[i]` of logits on the host, and the likeliest there."""

    def apply_text_head(self, rows: Floats) -> Floats:
        """Apply the model's text head to pooled hidden rows."""
