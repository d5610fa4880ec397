"""The op interface: everything a model may ask of a device, with the numerics each op promises.

Activations are flat rows `[n, width]` of f32-valued numbers with no batch axis. An op call enqueues and returns at
once; `flush` runs the queue; `record` keeps the queue as a `Plan` whose `run` replays it. Addresses stay fixed and
contents change: a step reads changing facts only from its `StepInputs`, so one plan serves every step that fits.

Ops are functional: they return new tensors and never write their arguments (the KV store is the one exception). A
backend may therefore reuse the memory of a tensor as soon as the last Python reference to it is gone.

Unless an op says otherwise: inputs and results are f32, sums are accumulated in f32, and a row's result does not
depend on which other rows are in the batch (on a backend that is not `deterministic`: but for its last bits).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tahr.errors import ConfigError
from tahr.weights.tensor import HostTensor

if TYPE_CHECKING:
    from tahr.backends.row_sampler import RowSampler

Activation = Literal["silu", "gelu_tanh", "gelu"]
RopeStyle = Literal["halves", "pairs"]
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]

INT8_BLOCK = 32  # activations meeting block-quantised weights are rounded to int8 in groups of this many columns
KV_BLOCK = 32  # numbers of a q8_0 head that share a scale


class Rows(Enum):
    """Which count of the step inputs says how many rows of a tensor are alive."""

    TOKENS = 0
    PICKED = 1
    FIXED = 2  # as many as the tensor was made with: eager use, tests


@dataclass(frozen=True, slots=True)
class Tensor:
    """Activation rows on a device; `data` is the backend's own handle."""

    width: int
    rows: Rows
    data: Any


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix `[n_rows, n_cols]` (or a stack of `n_stack` such) as a device keeps it.

    `format` is the name in the file, `kernel` what this backend will run for it: a reader of the load log sees both.
    """

    name: str
    format: str
    kernel: str
    n_rows: int
    n_cols: int
    n_bytes: int
    data: Any
    n_stack: int = 1


@dataclass(frozen=True, slots=True)
class Vector:
    """A norm gain or a bias: f32 on every backend."""

    width: int
    data: Any


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step a plan must hold."""

    n_tokens: int
    n_seqs: int
    n_rows: int
    n_pages_per_seq: int
    n_tokens_per_seq: int = 2**31 - 1  # 1: a step in which every sequence decodes
    n_groups: int = 1  # of layers, each with page tables of its own

    def hold(self, n_tokens: int, n_rows: int, n_seqs: int, n_tokens_per_seq: int) -> bool:
        """Whether a step with these counts fits."""
        return (
            n_tokens <= self.n_tokens
            and n_rows <= self.n_rows
            and n_seqs <= self.n_seqs
            and n_tokens_per_seq <= self.n_tokens_per_seq
        )


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Everything that changes from step to step: int32 host arrays at fixed addresses, filled before each run.

    Sequence s owns tokens `query_start[s]:query_start[s + 1]`; after the step its KV holds `seq_lens[s]` tokens, of
    which token p lives in slot `page_table[g, s, p // page_size] * page_size + p % page_size` of the layers of group g.
    `slot_mapping[g, t]` is that slot for token t. `logit_rows` lists the tokens whose logits are wanted.

    `ids[t] < 0` stands for a token that the host does not know yet: the one sampled from row `~ids[t]` of the step
    launched before this one. Only a backend that `overlaps` resolves such ids, on its device; the others never see one.

    `state_slots[s]` is where sequence s keeps its state in layers that have a fixed-size state in place of pages. Slot
    0 is the null slot, which belongs to nobody.

    Entries for pages that no token of the step attends to, because a window has left them, may hold any number.
    """

    limits: StepLimits
    counts: Ints  # [3]: n_tokens, n_rows, n_seqs
    ids: Ints
    positions: Ints
    slot_mapping: Ints  # [n_groups, n_tokens]
    query_start: Ints
    seq_lens: Ints
    state_slots: Ints  # [n_seqs]
    page_table: Ints  # [n_groups, n_seqs, n_pages_per_seq]
    logit_rows: Ints
    device: Any = None  # the backend's own copy, if it cannot read host memory

    @staticmethod
    def empty(limits: StepLimits) -> "StepInputs":
        """Arrays of the largest size, in ordinary memory."""
        n, s, g = limits.n_tokens, limits.n_seqs, limits.n_groups
        shapes = [(3,), (n,), (n,), (g, n), (s + 1,), (s,), (s,), (g, s, limits.n_pages_per_seq), (limits.n_rows,)]
        return StepInputs(limits, *(np.zeros(shape, np.int32) for shape in shapes))

    def within(self, limits: StepLimits) -> "StepInputs":
        """The same arrays, promised to hold no more than `limits`: what a plan for smaller steps is recorded on."""
        return replace(self, limits=limits)

    @property
    def n_tokens(self) -> int:
        return int(self.counts[0])

    @property
    def n_rows(self) -> int:
        return int(self.counts[1])

    @property
    def n_seqs(self) -> int:
        return int(self.counts[2])


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one layer stores for one token."""

    n_heads: int
    head_dim: int


# Bytes of KV_BLOCK stored numbers.
KV_BLOCK_BYTES = {"f32": 4 * KV_BLOCK, "f16": 2 * KV_BLOCK, "bf16": 2 * KV_BLOCK, "q8_0": KV_BLOCK + 2}


def stored_head_bytes(dtype: str, head_dim: int) -> int:
    """What one head of one token takes on either side of a KV store."""
    if dtype == "q8_0" and head_dim % KV_BLOCK:
        raise ConfigError(
            f"A q8_0 KV cache keeps the numbers of a head in groups of {KV_BLOCK}, but this model's heads have "
            f"{head_dim}: ask for f16."
        )
    return head_dim * KV_BLOCK_BYTES[dtype] // KV_BLOCK


@dataclass(frozen=True, slots=True)
class KVStore:
    """Paged keys and values of all layers; `layers[i]` is the backend's handle for layer i.

    Layers fall into groups, each with pages and page tables of its own: those with a window need fewer.

    f32, f16 and bf16 round to the nearest, ties to even. q8_0 rounds every `KV_BLOCK` numbers of a head of a token to
    int8 codes: scale = max|x| / 127 in f32, rounded to f16; code = x * (1 / scale) in f32, rounded to the nearest, ties
    to even, and held within +-127 (a scale of 0: all codes 0). What is read is code * scale, which f32 holds exactly.
    Numbers that are not finite, or need a scale beyond f16, turn their whole block into NaN.
    """

    shapes: tuple[KVShape, ...]
    n_pages: tuple[int, ...]  # of each group
    group_of: tuple[int, ...]  # by layer
    page_size: int
    dtype: str
    n_bytes: int
    layers: tuple[Any, ...]

    def members(self, group: int) -> list[Any]:
        """The layers of a group."""
        return [layer for layer, its_group in zip(self.layers, self.group_of, strict=True) if its_group == group]


def layer_groups(n_layers: int, groups: Sequence[Sequence[int]] | None) -> tuple[int, ...]:
    """The group of every layer, given the layers of every group; without any, all layers are one group."""
    found = {layer: group for group, layers in enumerate(groups or [range(n_layers)]) for layer in layers}
    return tuple(found[layer] for layer in range(n_layers))


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: angle = position * inv_freq[i], cos and sin multiplied by `scale`.

    `halves` rotates (x[i], x[i + d/2]), as Hugging Face checkpoints do; `pairs` rotates (x[2i], x[2i + 1]).
    """

    inv_freq: Floats
    style: RopeStyle = "halves"
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norm gains applied to each query and each key head before rope."""

    query: Vector
    key: Vector
    eps: float


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens choose experts: softmax over all experts, the best `n_active`, renormalised to sum 1 or not."""

    n_active: int
    renormalise: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """What a device has for keys and values, weights and all."""

    free_bytes: int
    total_bytes: int
    own: bool = False  # nothing but models lives there, as on a GPU


class Plan(Protocol):
    """A recorded step."""

    result: Tensor

    def run(self) -> None:
        """Run the step on the present contents of its step inputs."""


class Backend(ABC):
    """A device and its ops. Fused ops have default bodies of smaller ones: right everywhere, fast where overridden."""

    name: str
    summary: str  # one line for people: which device, which instructions, how many threads
    deterministic: bool = True  # a row's result never depends on the other rows, to the last bit
    overlaps: bool = False  # a step may be launched before the one before it is collected; see `StepInputs.ids`
    draws: bool = False  # it has `draw`, and tokens are drawn faster there than on the host
    row_sampler: "RowSampler | None" = None  # picks tokens on the host; None: NumPy does

    # ---- memory -----------------------------------------------------------------------------------------------

    def memory(self) -> Memory:
        """The memory this backend computes in, as it is now: the host's unless it has its own."""
        from tahr.backends.host_memory import host_memory

        return host_memory()

    @abstractmethod
    def weight(self, tensor: HostTensor) -> Weight:
        """Take a matrix `[rows, cols]` or a stack `[n, rows, cols]` in the form this backend multiplies fastest."""

    @abstractmethod
    def vector(self, values: Floats) -> Vector:
        """Take a norm gain or a bias."""

    @abstractmethod
    def tensor(self, values: Floats) -> Tensor:
        """Rows from host memory, for tests and probes."""

    @abstractmethod
    def read(self, tensor: Tensor) -> Floats:
        """Flush, then the live rows of `tensor` on the host. The array may be a view that the next run overwrites."""

    @abstractmethod
    def step_inputs(self, limits: StepLimits) -> StepInputs:
        """Input arrays this backend can read."""

    @abstractmethod
    def kv_store(
        self,
        shapes: Sequence[KVShape],
        n_pages: Sequence[int],
        page_size: int,
        dtype: str,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> KVStore:
        """Room for `n_pages[g]` pages of `page_size` tokens in every layer of group g; dtype is one of `kv_dtypes`.

        `groups` are the layers of each group; None makes all layers one.
        """

    @abstractmethod
    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        """The exact content of pages of a group: per layer [2, n_pages * page_size, n_heads, bytes of one head].

        Keys, then values; token after token; the same layout whatever the backend's own is. A q8_0 head is its codes,
        then its scales.
        """

    @abstractmethod
    def write_pages(self, kv: KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        """Put what `read_pages` gave into as many pages; no other page changes."""

    def copy_pages(self, kv: KVStore, pairs: Sequence[tuple[int, int]], group: int = 0) -> None:
        """Exact copies of pages in every layer of a group, as (from, to): all are read before any is written.

        Runs at once, after everything enqueued before it.
        """
        content = self.read_pages(kv, [source for source, _ in pairs], group)
        self.write_pages(kv, [to for _, to in pairs], content, group)

    @property
    @abstractmethod
    def kv_dtypes(self) -> tuple[str, ...]:
        """KV element types this backend can read, the default first."""

    # ---- running ----------------------------------------------------------------------------------------------

    @abstractmethod
    def flush(self) -> None:
        """Run what has been enqueued."""

    @abstractmethod
    def record(self, step: Callable[[], Tensor]) -> Plan:
        """Call `step` once, keeping its ops instead of running them."""

    def draw(self, logits: Tensor, n_vocab: int, temperatures: Doubles, chances: Doubles) -> Ints:
        """Flush, then a token of each live row among its first `n_vocab`; -1 where the best logit is not finite.

        At temperature 0 the best one, the lower id of equals; else the one on which `chances[i]` falls when the weights
        exp(logit / temperature) are counted up as `engine.sampling` counts them.
        """
        raise NotImplementedError(f"the {self.name} backend leaves drawing to the host, as `draws` says")

    def buckets(self, limits: StepLimits) -> Sequence[StepLimits]:
        """Step sizes worth a plan of their own, smallest first; the last one holds everything.

        A backend whose plans have fixed shapes pads a step to the first bucket that holds it.
        """
        return [limits]

    # ---- ops --------------------------------------------------------------------------------------------------

    @abstractmethod
    def embed(self, table: Weight, step: StepInputs, scale: float = 1.0) -> Tensor:
        """Row `ids[t]` of the table, dequantised exactly, times `scale`: [n_tokens, n_cols]."""

    @abstractmethod
    def rms_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * gain."""

    @abstractmethod
    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        """x + scale * y."""

    def add_rms_norm(self, x: Tensor, y: Tensor, gain: Vector, eps: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """(s, rms_norm(s)) for s = x + scale * y: the seam between two blocks of a residual stream."""
        s = self.add(x, y, scale)
        return s, self.rms_norm(s, gain, eps)

    @abstractmethod
    def linear(self, x: Tensor, w: Weight, bias: Vector | None = None) -> Tensor:
        """x @ w.T + bias: [n, n_rows].

        Against F32, F16 and BF16 weights x stays f32. Against block-quantised weights x is first rounded to int8 per
        `INT8_BLOCK` columns (scale = max|x| / 127 in f32, ties to even): products are exact integers inside such a
        block and f32 across blocks. A format without a kernel is kept dense, as `Weight.kernel` says, and x stays f32.
        """

    def linears(self, x: Tensor, ws: Sequence[Weight], biases: Sequence[Vector | None] | None = None) -> list[Tensor]:
        """Several linears of the same rows: a backend prepares x once and balances the work over all of them."""
        return [self.linear(x, w, b) for w, b in zip(ws, biases or [None] * len(ws), strict=True)]

    @abstractmethod
    def activate(self, gate: Tensor, up: Tensor, act: Activation) -> Tensor:
        """act(gate) * up. gelu_tanh is the tanh approximation, gelu the exact one."""

    def gated(self, x: Tensor, gate: Weight, up: Weight, act: Activation) -> Tensor:
        """act(x @ gate.T) * (x @ up.T): the first half of a gated MLP."""
        g, u = self.linears(x, [gate, up])
        return self.activate(g, u, act)

    @abstractmethod
    def experts(
        self, x: Tensor, scores: Tensor, gate: Weight, up: Weight, down: Weight, routing: Routing, act: Activation
    ) -> Tensor:
        """Each row through its chosen experts' gated MLPs, summed by routing weight in order of falling score.

        `scores` are router logits `[n, n_experts]`; equal scores go to the lower expert index.
        """

    @abstractmethod
    def cos_sin(self, step: StepInputs, rope: Rope) -> Tensor:
        """cos then sin of position * inv_freq (product in f32): [n_tokens, 2 * len(inv_freq)]. Once per step."""

    @abstractmethod
    def rope_and_cache(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        angles: Tensor,
        style: RopeStyle,
        step: StepInputs,
        kv: KVStore,
        layer: int,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Norm (if any) and rotate the heads of q and k, write k and v to their slots, return the rotated q.

        Rotation covers the first `2 * len(inv_freq)` numbers of each head; the rest pass through.
        """

    @abstractmethod
    def attention(
        self, q: Tensor, step: StepInputs, kv: KVStore, layer: int, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """Causal softmax(scale * q.k) v over the sequence's pages, grouped heads sharing keys: same shape as q.

        A token at position p sees positions max(0, p - window + 1) .. p (window 0: all); what no token of the step sees
        is not read. softcap c > 0 turns a score s into c * tanh(s / c). Scores, the running softmax and the sums are
        f32 whatever the KV dtype.
        """

    @abstractmethod
    def gather_rows(self, x: Tensor, step: StepInputs) -> Tensor:
        """The rows whose logits are wanted: x[step.logit_rows]."""

    @abstractmethod
    def scale(self, x: Tensor, factor: float) -> Tensor:
        """factor * x."""

    @abstractmethod
    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap)."""
