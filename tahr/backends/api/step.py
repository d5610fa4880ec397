"""Inputs that change from step to step, and a recorded step."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from tahr.backends.api.frames import FrameInputs
from tahr.backends.api.row_store import Extras, RowStore
from tahr.backends.api.tensors import Ints, Tensor, Weight
from tahr.errors import GenerateError

N_AXES = 3  # axes of rope: time, height, width


def no_ints() -> Ints:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step a plan must hold."""

    n_tokens: int
    n_seqs: int
    n_rows: int
    n_pages_per_seq: int
    n_tokens_per_seq: int = 2**31 - 1  # 1: a step in which every sequence decodes
    n_groups: int = 1  # groups of layers, each with page tables of its own
    extras: int = 0  # some of `Extras`

    def hold(self, n_tokens: int, n_rows: int, n_seqs: int, n_tokens_per_seq: int) -> bool:
        """Whether a step with these counts fits."""
        return (
            n_tokens <= self.n_tokens
            and n_rows <= self.n_rows
            and n_seqs <= self.n_seqs
            and n_tokens_per_seq <= self.n_tokens_per_seq
        )


class StepDefaults(NamedTuple):
    """A backend's defaults for the sizes of steps."""

    n_seqs: int = 16  # sequences that run at once
    n_prefill_seqs: int = 8  # running sequences that prefill in one step
    prefill_chunk: int = 512  # tokens of one sequence
    n_prefill_tokens: int | None = None  # tokens of all that prefill; None: one chunk
    mixed_s: float = 0.1  # goal for a step with prompts while others decode
    tower_tokens: int = 1024  # tokens of a step of a tower with small images
    tower_speed: int = 1  # speed of a tower's layers; 1: that of two cores. Parts have as many more of them


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Everything that changes from step to step: int32 host arrays at fixed addresses, filled before each run.

    Sequence s owns tokens `query_start[s]:query_start[s + 1]`; after the step its KV in the layers of group g holds
    `seq_lens[g, s]` tokens, of which token p lives in slot
    `page_table[g, s, p // page_size] * page_size + p % page_size`. `slot_mapping[g, t]` is that slot for token t. Where
    queries look at the keys of another text, as in cross-attention, the group has lengths of its own.
    `logit_rows` lists the tokens whose logits are wanted.

    `ids[t] < 0` stands for a token that the host does not know yet: the one sampled last for token slot `~ids[t]` (see
    `SampleRows.slots`). Only a backend that `overlaps` resolves such ids, on its device; the others never see one.

    `state_slots[s]` is where sequence s keeps its state in layers that have a fixed-size state in place of pages. Slot
    0 is the null slot, which belongs to nobody.

    Entries for pages that no token of the step attends to, because a window has left them, may hold any number.

    Those of `Extras` have arrays only where the limits say so. `row_of[t]` names the slot of `rows` that token t reads,
    `row_target[i]` the slot of `target_rows` that row i of what is stored goes to; -1: none. Rope turns token t by
    `rope_positions[:, t]`, each frequency by the axis that `Rope.axes` says; causality and slots go by `positions`.
    """

    limits: StepLimits
    counts: Ints  # [3]: n_tokens, n_rows, n_seqs
    ids: Ints
    positions: Ints
    slot_mapping: Ints  # [n_groups, n_tokens]
    query_start: Ints
    seq_lens: Ints  # [n_groups, n_seqs]
    state_slots: Ints  # [n_seqs]
    page_table: Ints  # [n_groups, n_seqs, n_pages_per_seq]
    logit_rows: Ints
    device: Any = None  # the backend's own copy, if it cannot read host memory
    row_of: Ints = field(default_factory=no_ints)
    row_target: Ints = field(default_factory=no_ints)
    rope_positions: Ints = field(default_factory=no_ints)  # [N_AXES, n_tokens]
    rows: RowStore | None = None
    target_rows: RowStore | None = None
    # Memory of layers where an encoder stores keys and values of its rows, each at the place that `row_target` names.
    target_memory: Any = None  # a `KVStore`
    frames: FrameInputs | None = None  # frames of a model that speaks

    @staticmethod
    def empty(limits: StepLimits) -> "StepInputs":
        """Arrays of the largest size, in ordinary memory."""
        n = limits.n_tokens
        s = limits.n_seqs
        g = limits.n_groups
        shapes = [(3,), (n,), (n,), (g, n), (s + 1,), (g, s), (s,), (g, s, limits.n_pages_per_seq), (limits.n_rows,)]
        arrays: list[Any] = [np.zeros(shape, np.int32) for shape in shapes]
        extras: dict[str, Any] = {name: np.zeros(shape, np.int32) for name, shape in extra_shapes(limits).items()}
        return StepInputs(limits, *arrays, **extras)

    def within(self, limits: StepLimits) -> "StepInputs":
        """These arrays with smaller limits: plans for smaller steps are recorded on them."""
        return replace(self, limits=limits)

    def counted_by(self, counts: Ints) -> "StepInputs":
        """These arrays with counts that several steps share."""
        return replace(self, counts=counts)

    @property
    def n_tokens(self) -> int:
        return int(self.counts[0])

    @property
    def n_rows(self) -> int:
        return int(self.counts[1])

    @property
    def n_seqs(self) -> int:
        return int(self.counts[2])


def extra_shapes(limits: StepLimits) -> dict[str, tuple[int, ...]]:
    """The arrays of `Extras` that steps within these limits have, by field."""
    n = limits.n_tokens
    shapes = {
        Extras.ROWS: ("row_of", (n,)),
        Extras.ROPE: ("rope_positions", (N_AXES, n)),
        Extras.TARGETS: ("row_target", (n,)),
    }
    return dict(shape for extra, shape in shapes.items() if extra & limits.extras)


def check_ids(step: StepInputs, table: Weight) -> None:
    """Refuse ids outside of the table before every run: the kernel does not check them."""
    ids = step.ids[: step.n_tokens]
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < table.n_rows:
        raise GenerateError(
            f"A token id is outside of the model's {table.n_rows} embeddings: the lowest is {ids.min()}, the highest "
            f"{ids.max()}. The tokenizer does not belong to this model."
        )


class Plan(Protocol):
    """A recorded step."""

    @property
    def result(self) -> Tensor:
        """The output of the last run. Fetch, read or sample it before the inputs are filled again."""

    def run(self) -> None:
        """Run the step on the present contents of its inputs, which may be rewritten as soon as this returns.

        A backend that `overlaps` returns before the step is done; everything asked of it later happens after the step.
        """
