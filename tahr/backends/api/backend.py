"""Every op of the interface: what each computes, and what a backend may override."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tahr.backends.api.arguments import (
    Activation,
    AddedNorm,
    AttentionSpec,
    DeltaNet,
    ExpertMLPs,
    Rope,
    Rotation,
    StateSpace,
    Tempering,
)
from tahr.backends.api.lora import MAX_STACK, LinearShape, LoraBank
from tahr.backends.api.memory import KVShape, KVStore, LayerMemory, MemoryLayout, StateShape
from tahr.backends.api.pages import PINNED_BYTES, PageIO, PageIOAtOnce
from tahr.backends.api.step import Plan, StepDefaults, StepInputs, StepLimits
from tahr.backends.api.tensors import Bytes, Floats, Ints, JoinedLinears, Linear, Tensor, Vector, Weight
from tahr.backends.host.budget import host_kv_budget
from tahr.backends.host.memory import loadable_bytes
from tahr.backends.sampling import logprobs, numpy_sampler
from tahr.backends.sampling.sample_rows import Logprobs, Sampled, SampledAtOnce, SampleRows, Words, words
from tahr.errors import UnsupportedModel
from tahr.weights.source import Stamp, file_stamp
from tahr.weights.tensor import HostTensor


class Fetched(Protocol):
    """Rows on their way to the host."""

    def collect(self) -> Floats:
        """Wait for them."""


class HostRows:
    """Rows that are on the host already."""

    def __init__(self, rows: Floats):
        self._rows = rows

    def collect(self) -> Floats:
        return self._rows


class Backend(ABC):
    """A device and its ops. Fused ops have default bodies of smaller ones: right everywhere, fast where overridden."""

    name: str
    summary: str  # one line for people: which device, which instructions, how many threads
    deterministic: bool = True  # a row's result never depends on the other rows, to the last bit
    maps_tables: bool = False  # embedding tables stay in the mapped file, and are read there at every step
    file_stamp: Callable[[int], Stamp] = staticmethod(file_stamp)  # of that file, asked for at every step
    lora: LoraBank | None = None  # the adapters that linears add at present, see `adapting`
    rounds_to: Sequence[str] = ()  # what it can round float matrices to by itself when it takes them
    overlaps: bool = False  # a step may be launched before the one before it is collected; see `StepInputs.ids`
    keeps_lora_rows: bool = False  # see `join`
    has_own_memory: bool = False  # weights, keys and values are in a device's memory, not in the host's
    step_defaults: StepDefaults = StepDefaults()

    # ---- memory -----------------------------------------------------------------------------------------------

    def kv_budget(self, share: float | None) -> int:
        """The bytes that the memory of layers may take when nobody says how many, weights being there already.

        `share` is the part of a device's memory that Tahr may use in all. A host, which others need too, has none: the
        body refuses it.
        """
        return host_kv_budget(share)

    @abstractmethod
    def weight(self, tensor: HostTensor) -> Weight:
        """Take a matrix `[rows, cols]` or a stack `[n, rows, cols]` in the form this backend multiplies fastest."""

    def weight_bytes(self, tensor: HostTensor, n_taken: int = 0) -> int:
        """The `n_bytes` of what `weight` makes of a tensor, told without its data; `n_taken` bytes of other matrices
        are on the device by then that are not there yet."""
        return tensor.n_bytes

    def file_bytes(self, tensor: HostTensor) -> int:
        """The `file_bytes` of the same."""
        return 0

    def free_bytes(self) -> int | None:
        """The memory that weights may take; None where the system does not say."""
        return loadable_bytes()

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

    def join(self, linears: Sequence[Linear], lora_rows: int = 0) -> JoinedLinears:
        """Linears that will be computed together. Their own matrices may be given up for views of a common one.

        A backend that `keeps_lora_rows` keeps room for the first factors of adapters behind their matrices, so many
        rows for each linear, where it multiplies the matrices in a form that allows it.
        """
        return JoinedLinears(tuple(linears))

    def check_attention(self, spec: AttentionSpec, shape: KVShape, n_heads: int) -> None:
        """Refuse, when a model is loaded, a layer whose attention this backend cannot compute."""
        if extensions := spec.extensions():
            raise UnsupportedModel(
                f"This model needs {' and '.join(extensions)}, which the {self.name} backend does not have: "
                "choose another model, or a backend that has it."
            )

    def check_delta_net(self, net: DeltaNet) -> None:  # noqa: B027  (most backends compute any)
        """Refuse, when a model is loaded, a recurrent layer that this backend cannot compute."""

    def check_state_space(self, net: StateSpace) -> None:  # noqa: B027
        """The same."""

    def kv_store(self, layout: MemoryLayout) -> KVStore:
        """Room for the pages and the states of a layout, all zero."""
        group_of, made, n_bytes = layout.group_of(), [], 0
        for shape, group in zip(layout.layers, group_of, strict=True):
            if isinstance(shape, StateShape):
                made.append(self.state_layer(shape, layout.n_slots))
                n_bytes += layout.n_slots * shape.n_bytes
            else:
                made.append(self.paged_layer(shape, layout.n_pages[group], layout))
                n_bytes += layout.n_pages[group] * layout.page_size * shape.token_bytes(layout.dtype)
        return KVStore(layout, group_of, n_bytes, tuple(made))

    @abstractmethod
    def paged_layer(self, shape: KVShape, n_pages: int, layout: MemoryLayout) -> Any:
        """The handle of one layer's pages."""

    @abstractmethod
    def state_layer(self, shape: StateShape, n_slots: int) -> Any:
        """The handle of one layer's states: an f32 array [n_slots, *shape]."""

    @abstractmethod
    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        """The exact content of pages of a group: per layer [n_pages * page_size, n_heads, bytes of a key and a value].

        The layout is the same whatever the backend's own is. A q8_0 key or value is its codes, then its scales.
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

    def page_io(self, kv: KVStore, pinned_bytes: int = PINNED_BYTES) -> PageIO:
        """Copies of pages to the host and back, while steps go on where the device can do both.

        A device that copies from pinned memory locks at most `pinned_bytes` of it; copies beyond them take longer.
        """
        return PageIOAtOnce(self, kv)

    @abstractmethod
    def read_states(self, kv: KVStore, slots: Sequence[int]) -> list[Floats]:
        """The states in some slots: per layer that has them [n_slots, *shape]. Waits for everything enqueued before."""

    @abstractmethod
    def write_states(self, kv: KVStore, slots: Sequence[int], layers: Sequence[Floats]) -> None:
        """Put what `read_states` gave into as many slots; no other slot changes."""

    def copy_states(self, kv: KVStore, pairs: Sequence[tuple[int, int]]) -> None:
        """Exact copies of states in every layer, as (from, to): all are read before any is written.

        Runs at once, after everything enqueued before it.
        """
        content = self.read_states(kv, [source for source, _ in pairs])
        self.write_states(kv, [to for _, to in pairs], content)

    @property
    @abstractmethod
    def kv_dtypes(self) -> tuple[str, ...]:
        """KV element types this backend can read, the default first."""

    mixes_kv_dtypes: bool = True  # keys may be stored in another type than values

    @property
    def passing_kv_dtype(self) -> str:
        """The KV element type for texts of which nothing is kept after their step: the default, or a more exact one."""
        return self.kv_dtypes[0]

    # ---- running ----------------------------------------------------------------------------------------------

    @abstractmethod
    def flush(self) -> None:
        """Run what has been enqueued."""

    @abstractmethod
    def record(self, step: Callable[[], Tensor], inputs: StepInputs) -> Plan:
        """Keep the ops of `step`, which reads `inputs`, for running them later; pages and states stay as they are.

        Whatever the inputs hold at this moment does not matter.
        """

    def fetch(self, tensor: Tensor) -> Fetched:
        """Begin to bring the live rows of `tensor` to the host: what comes is as it is now, whatever runs next."""
        return HostRows(self.read(tensor))

    def buckets(self, limits: StepLimits, n_decode_tokens: int = 1) -> Sequence[StepLimits]:
        """Step sizes worth a plan of their own, smallest first; the last one holds everything.

        A backend whose plans have fixed shapes pads a step to the first bucket that holds it. `n_decode_tokens` is how
        many tokens a sequence that decodes may have in a step: 1, or more where some are drafted.
        """
        return [limits]

    def wants_warming(self) -> bool:
        """Whether plans should run before steps need them, because their first runs are slow, and memory is left."""
        return False

    def prepare(self, plan: Plan) -> bool:
        """Begin to make on other threads what the first run of a plan needs; whether it need not wait any more.

        Nothing may be in flight. False may also mean that those threads have enough to do: ask again.
        """
        return True

    # ---- adapters ---------------------------------------------------------------------------------------------

    @abstractmethod
    def lora_bank(self, shapes: Mapping[str, LinearShape], limits: StepLimits) -> LoraBank:
        """Room for adapters of the linears of these names, in steps within `limits`."""

    @contextmanager
    def adapting(self, bank: LoraBank, n_rounds: int = MAX_STACK) -> Iterator[None]:
        """Within, a linear adds to its rows what their adapters add, as the first rounds of the bank's `rows` say.

        To row r of round k comes, behind the bias and round after round, scale * (b @ (a @ x)): scale is that of the
        factors times that of the row, sums are f32, x is not rounded to int8. Rows without an adapter keep every bit.
        """
        assert self.lora is None, "adapters do not nest"
        self.lora, bank.n_rounds = bank, n_rounds
        try:
            yield
        finally:
            self.lora = None

    # ---- sampling ---------------------------------------------------------------------------------------------

    def sample(self, logits: Tensor | Floats, rows: SampleRows) -> Sampled:
        """Flush, then begin to take samples from the live rows of logits, which may lie in host memory already.

        `backends.sampling.numpy_sampler` says what each parameter means. The order of the stages is fixed, ties go to
        the lower id, and random numbers come from (key, counter). A sample depends on its own row and parameters alone;
        what is wrong with a row is its own error code. Backends agree on every token but for a random number that falls
        within rounding of the border between two. Without any sample, `collect` waits for what was enqueued before.
        """
        return SampledAtOnce(numpy_sampler.sample(self.host_rows(logits), rows))

    def mask_memory(self, n: int, n_words: int) -> Words:
        """Memory for `SampleRows.mask`, from which masks reach the device without another copy."""
        return words(n, n_words)

    def host_samples(self, rows: SampleRows) -> Sequence[int]:
        """The samples whose tokens the device does not know before they are collected: no step may refer to them."""
        return ()

    def logprobs(self, logits: Tensor | Floats, n_vocab: int, source: Ints, tokens: Ints, n_top: Ints) -> Logprobs:
        """Flush, then the log-probability of each token by row `source[i]`, and the `n_top[i]` likeliest there."""
        return logprobs.logprobs(self.host_rows(logits), n_vocab, source, tokens, n_top)

    def host_rows(self, logits: Tensor | Floats) -> Floats:
        """Live rows on the host, wherever they are."""
        return self.read(logits) if isinstance(logits, Tensor) else logits

    # ---- ops --------------------------------------------------------------------------------------------------

    @abstractmethod
    def embed(self, table: Weight, step: StepInputs, scale: float = 1.0) -> Tensor:
        """Row `ids[t]` of the table, dequantised exactly, times `scale`: [n_tokens, n_cols]."""

    @abstractmethod
    def embed_positions(self, table: Weight, step: StepInputs) -> Tensor:
        """Row `positions[t]` of the table, dequantised exactly: [n_tokens, n_cols]."""

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
    def head_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        """Every `gain.width` columns of a row RMS-normed by themselves."""

    @abstractmethod
    def columns(self, x: Tensor, begin: int, width: int) -> Tensor:
        """Columns begin .. begin + width of every row."""

    @abstractmethod
    def join_heads(self, x: Tensor, y: Tensor, n_heads: int) -> Tensor:
        """Rows whose every head is the numbers of that head of x, then those of y."""

    @abstractmethod
    def head_linears(self, x: Tensor, stack: Linear) -> Tensor:
        """Every head of a row times its own matrix of the stack [n_heads, n_rows, n_cols]: [n, n_heads * n_rows].

        Numerics are those of `linear`; there are no biases.
        """

    @abstractmethod
    def layer_norm(self, x: Tensor, gain: Vector, bias: Vector | None, eps: float) -> Tensor:
        """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * gain + bias."""

    def add_layer_norm(
        self, x: Tensor, y: Tensor, gain: Vector, bias: Vector | None, eps: float, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """(s, layer_norm(s)) for s = x + scale * y."""
        s = self.add(x, y, scale)
        return s, self.layer_norm(s, gain, bias, eps)

    @abstractmethod
    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        """x @ weight.T + bias: [n, n_rows]; see also `adapting`.

        Against F32, F16 and BF16 weights x stays f32. Against block-quantised weights x is first rounded to int8 per
        `INT8_BLOCK` columns (scale = max|x| / 127 in f32, ties to even; a subnormal scale: all 0): products are exact
        integers inside such a block and f32 across blocks. A format without a kernel is kept dense, as `Weight.kernel`
        says, and x stays f32.
        """

    def linears(self, x: Tensor, joined: JoinedLinears) -> list[Tensor]:
        """Several linears of the same rows: a backend prepares x once and balances the work over all of them."""
        return [self.linear(x, linear) for linear in joined.parts]

    @abstractmethod
    def activate(self, gate: Tensor, up: Tensor | None, act: Activation) -> Tensor:
        """act(gate) * up, or act(gate) without up. gelu_tanh is the tanh approximation, gelu the exact one.

        relu2 is max(gate, 0) squared.

        clamped_swiglu is g * sigmoid(1.702 g) * (u + 1) for g = min(gate, 7) and u = up held within +-7.
        """

    def gated(self, x: Tensor, gate_up: JoinedLinears, act: Activation) -> Tensor:
        """act(gate(x)) * up(x): the first half of a gated MLP."""
        gate, up = self.linears(x, gate_up)
        return self.activate(gate, up, act)

    def norm_linears(self, norm: AddedNorm, joined: JoinedLinears) -> tuple[Tensor, list[Tensor]]:
        """(s, linears of rms_norm(s)) for s = x + scale * y."""
        s, normed = self.add_rms_norm(norm.x, norm.y, norm.gain, norm.eps, norm.scale)
        return s, self.linears(normed, joined)

    def norm_gated(self, norm: AddedNorm, gate_up: JoinedLinears, act: Activation) -> tuple[Tensor, Tensor]:
        """(s, gated of rms_norm(s)) for s = x + scale * y."""
        s, normed = self.add_rms_norm(norm.x, norm.y, norm.gain, norm.eps, norm.scale)
        return s, self.gated(normed, gate_up, act)

    @abstractmethod
    def experts(self, x: Tensor, scores: Tensor, mlps: ExpertMLPs) -> Tensor:
        """Each row through its chosen experts' gated MLPs, summed by routing weight in order of falling score.

        `scores` are router logits `[n, n_experts]`; equal scores go to the lower expert index.
        """

    @abstractmethod
    def cos_sin(self, step: StepInputs, rope: Rope) -> Tensor:
        """cos then sin of position * inv_freq (product in f32): [n_tokens, 2 * len(inv_freq)]. Once per step."""

    @abstractmethod
    def rope_and_cache(self, qkv: Sequence[Tensor], rotation: Rotation, memory: LayerMemory) -> Tensor:
        """Norm (if any) and rope of the heads of q and k; k and v go to their slots; returns q for `attention`.

        Rope covers the first `2 * len(inv_freq)` numbers of each head; the rest pass through. Keys stored as q8_0 lose
        `rotation.key_mean`, and the heads of q are rotated as they are: see `KVStore`. Given q alone, it is made ready
        for the keys that `memory`, another layer's, holds already; given q and k, the layer is latent.
        """

    @abstractmethod
    def attention(self, q: Tensor, spec: AttentionSpec, memory: LayerMemory) -> Tensor:
        """softmax(scale * q.k) v over the sequence's pages, grouped heads sharing keys: [n, n_heads * value_dim].

        A token at position p sees positions max(0, p - window + 1) .. p, and up to p + window - 1 if it is not causal;
        what no token of the step sees is not read.
        Scores, the running softmax and the sums are f32 whatever the KV dtype. Sums of q8_0 values are rotated back.
        """

    def rope_attention(self, qkv: list[Tensor], rotation: Rotation, spec: AttentionSpec, memory: LayerMemory) -> Tensor:
        """`attention` of what `rope_and_cache` makes of q, k and v. Empties the list: their memory is free then."""
        q = self.rope_and_cache(qkv, rotation, memory)
        qkv.clear()
        return self.attention(q, spec, memory)

    @abstractmethod
    def delta_net(self, parts: Sequence[Tensor], net: DeltaNet, memory: LayerMemory) -> Tensor:
        """What `net` makes of (queries, keys and values as one; z; beta; alpha): [n, n_v_heads * v_dim].

        The layer's state is [state_width] per sequence; in it, a sequence goes on from where its last step ended.
        """

    @abstractmethod
    def state_space(self, parts: Sequence[Tensor], net: StateSpace, memory: LayerMemory) -> Tensor:
        """What `net` makes of (z; x, B and C as one; dt): [n, n_heads * head_dim]. The state is like `delta_net`'s."""

    @abstractmethod
    def gate_rows(self, x: Tensor, scores: Tensor) -> Tensor:
        """x * sigmoid(scores), one score `[n, 1]` per row."""

    @abstractmethod
    def temper(self, q: Tensor, tempering: Tempering, step: StepInputs) -> Tensor:
        """The rows of every token, multiplied by what `tempering` says for its position."""

    @abstractmethod
    def gather_rows(self, x: Tensor, step: StepInputs) -> Tensor:
        """The rows whose logits are wanted: x[step.logit_rows]."""

    @abstractmethod
    def scale(self, x: Tensor, factor: float) -> Tensor:
        """factor * x."""

    @abstractmethod
    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap)."""

    @abstractmethod
    def clip(self, x: Tensor, limit: float) -> Tensor:
        """min(max(x, -limit), limit)."""
