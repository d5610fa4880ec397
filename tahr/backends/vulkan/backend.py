"""The Vulkan backend: ops append to a tape, whose command buffers are recorded once and submitted again."""

from collections.abc import Callable, Sequence

import numpy as np

from tahr import _vulkan as native
from tahr.backends import api
from tahr.backends.api import (
    Bytes,
    Floats,
    Rows,
    Tensor,
    Vector,
    Weight,
)
from tahr.backends.host.budget import device_kv_budget, host_kv_budget
from tahr.backends.sampling.numpy_sampler import groups as chains_of
from tahr.backends.sampling.sample_rows import (
    Sampled,
    SampledAtOnce,
    SampledTokens,
    SampleRows,
)
from tahr.backends.sampling.stages import TAKE_BEST
from tahr.backends.vulkan import weights
from tahr.backends.vulkan.attention import AttentionOps
from tahr.backends.vulkan.inputs import make_inputs
from tahr.backends.vulkan.kv import (
    KV_TYPES,
    PagedBuffers,
    check_heads,
    make_layer,
)
from tahr.backends.vulkan.memory import (
    BlockArena,
    Constants,
    DeviceMemory,
    RowBuffer,
    Span,
)
from tahr.backends.vulkan.presence import choose, describe_one, probed
from tahr.backends.vulkan.products import ProductOps
from tahr.backends.vulkan.queue import (
    PLAIN,
    OpQueue,
    Running,
    TapePlan,
    address_of,
    buckets,
    packed,
    raising,
)
from tahr.backends.vulkan.shaders import Kernels, cache_file, kept_pipelines
from tahr.backends.vulkan.weights import PlanedMatrix
from tahr.errors import (
    ConfigError,
    GenerateError,
    LoadError,
    UnsupportedModel,
)
from tahr.weights.tensor import HostTensor

BEST_THREADS = 512
MOST_BEST_PLANS = 64


class VulkanBackend(ProductOps, AttentionOps):
    """One device. `deterministic` multiplies row by row; `mode` is how tapes run: other than plainly in tests."""

    name = "vulkan"
    kv_dtypes = tuple(KV_TYPES)
    mixes_kv_dtypes = False

    def __init__(self, device: str = "", mode: str = PLAIN, deterministic: bool = False):
        number = choose(device)
        self.deterministic = deterministic
        with raising(ConfigError):
            self.device = native.open(number, kept_pipelines(cache_file(probed()[0][number])))
            self._kernels = Kernels(self.device)
            self._memory = DeviceMemory(self.device)
            self._constants = Constants(self._memory)
        self.has_own_memory = not self.device.is_unified
        self.summary = f"vulkan: {describe_one(self.device.facts)}"
        self._running = Running(self.device, self._kernels, mode)
        self._given = BlockArena(self._memory)  # rows that the host writes
        self._planned = BlockArena(self._memory)  # blocks of all plans, which run one after the other
        self._eager = self._queue = OpQueue(self._running, BlockArena(self._memory))
        self._ropes: dict[int, tuple[api.Rope, Span]] = {}
        self._best_plans: dict[tuple[int, ...], tuple[TapePlan, api.Ints]] = {}

    # ---- memory -----------------------------------------------------------------------------------------------

    def kv_budget(self, share: float | None) -> int:
        if not self.has_own_memory:
            return host_kv_budget(share)
        return device_kv_budget(*self.device.memory_bytes(), share)

    def free_bytes(self) -> int | None:
        return self.device.memory_bytes()[0] if self.has_own_memory else super().free_bytes()

    def weight(self, tensor: HostTensor) -> Weight:
        with raising(LoadError):
            return weights.take(tensor, self._memory, self._kernels, self._running.settle)

    def weight_bytes(self, tensor: HostTensor, n_taken: int = 0) -> int:
        return weights.taken_bytes(tensor)

    def vector(self, values: Floats) -> Vector:
        with raising(LoadError):
            return Vector(len(values), self._frozen(np.array(values, np.float32)))

    def tensor(self, values: Floats) -> Tensor:
        count = self._constants.count(len(values))
        buffer = RowBuffer(self._given, count, 4 * values.shape[1])
        with raising(GenerateError):
            self._memory.write(buffer.span, np.ascontiguousarray(values, np.float32))
        return Tensor(values.shape[1], Rows.FIXED, buffer)

    def read(self, tensor: Tensor) -> Floats:
        self.flush()
        self._running.settle()
        n = tensor.data.count.now
        with raising(GenerateError):
            found = self._memory.read(tensor.data.span, 4 * n * tensor.width)
        rows: Floats = found.view(np.float32).reshape(n, tensor.width)
        return rows

    def step_inputs(self, limits: api.StepLimits) -> api.StepInputs:
        with raising(LoadError):
            return make_inputs(self.device, limits)

    def check_attention(self, spec: api.AttentionSpec, shape: api.KVShape, n_heads: int) -> None:
        super().check_attention(spec, shape, n_heads)
        check_heads(shape)

    def paged_layer(self, shape: api.KVShape, n_pages: int, layout: api.MemoryLayout) -> PagedBuffers:
        keys, values = api.kv_sides(layout.dtype)
        if keys != values or keys not in KV_TYPES:
            raise ConfigError(
                f"The vulkan backend cannot keep a KV cache of {layout.dtype}. Use one of: {', '.join(KV_TYPES)}."
            )
        with raising(LoadError):
            return make_layer(shape, n_pages, layout.page_size, keys, self._memory)

    def read_pages(self, kv: api.KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        self._rest()
        with raising(GenerateError):
            return [layer.read(pages, self._memory) for layer in kv.paged(group)]

    def write_pages(
        self,
        kv: api.KVStore,
        pages: Sequence[int],
        layers: Sequence[Bytes],
        group: int = 0,
    ) -> None:
        self._rest()
        with raising(GenerateError):
            for layer, content in zip(kv.paged(group), layers, strict=True):
                layer.write(pages, content, self._memory)

    def copy_pages(self, kv: api.KVStore, pairs: Sequence[tuple[int, int]], group: int = 0) -> None:
        if {source for source, _ in pairs} & {to for _, to in pairs}:
            super().copy_pages(kv, pairs, group)
            return
        self._rest()
        with raising(GenerateError):
            for layer in kv.paged(group):
                layer.copy(pairs)

    # ---- running ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        self._eager.run()

    def _rest(self) -> None:
        """Run everything enqueued, and wait for it."""
        self.flush()
        self._running.settle()

    def record(self, step: Callable[[], Tensor], inputs: api.StepInputs) -> api.Plan:
        queue = OpQueue(self._running, self._planned)
        before = self._queue
        self._queue = queue
        try:
            result = step()
        finally:
            self._queue = before
        return TapePlan(queue, self._running, result)

    def buckets(self, limits: api.StepLimits, n_decode_tokens: int = 1) -> Sequence[api.StepLimits]:
        return buckets(limits, n_decode_tokens)

    def sample(self, logits: Tensor | Floats, rows: SampleRows) -> Sampled:
        plain = rows.edits is None and rows.mask is None and rows.n_logprobs is None
        if not isinstance(logits, Tensor) or not plain or not len(rows) or {*chains_of(rows)} != {TAKE_BEST}:
            return super().sample(logits, rows)
        best = self._best(logits, rows.n_vocab)
        return SampledAtOnce(SampledTokens(best[rows.source], np.ones(len(rows))))

    def _best(self, logits: Tensor, n_vocab: int) -> api.Ints:
        """The likeliest token of every row, found behind the step that computes them."""
        self.flush()
        count = logits.data.count
        key = logits.data.span.address, count.span.address, logits.width, n_vocab
        if key not in self._best_plans:
            if len(self._best_plans) >= MOST_BEST_PLANS:
                self._best_plans.clear()
            self._best_plans[key] = self._best_plan(logits, n_vocab)
        plan, found = self._best_plans[key]
        plan.follow()
        self._running.settle()
        return found[: count.now].copy()

    def _best_plan(self, logits: Tensor, n_vocab: int) -> tuple[TapePlan, api.Ints]:
        """A plan that finds the likeliest tokens of rows at that place, and host memory that gets them."""
        count = logits.data.count
        queue = OpQueue(self._running, self._planned)
        n_rows = max(1, count.limit)
        buffer = native.Buffer(self.device, 4 * n_rows, native.Home.HOST)
        written = Span(buffer, 0, buffer.n_bytes)
        own: Span = logits.data.span
        addresses = [count.span.address, own.address, written.address]
        constants = packed(addresses, logits.width, n_vocab)
        pipeline = self._kernels.get("argmax", self._kernels.threads(BEST_THREADS))
        queue.add(pipeline, (n_rows, 1, 1), constants, [count.span, own], [written])
        found: api.Ints = buffer.view().view(np.int32)
        return TapePlan(queue, self._running, Tensor(1, logits.rows, None)), found

    # ---- ops --------------------------------------------------------------------------------------------------

    def embed(self, table: Weight, step: api.StepInputs, scale: float = 1.0) -> Tensor:
        self._queue.keep_table(step, table)
        return self._embed(table.data, step, "ids", scale)

    def embed_positions(self, table: Weight, step: api.StepInputs) -> Tensor:
        return self._embed(table.data, step, "positions", 1.0)

    def _embed(self, matrix: PlanedMatrix, step: api.StepInputs, name: str, scale: float) -> Tensor:
        out = self._per_token(step, matrix.n_cols)
        count = out.data.count
        spans = [self._array(step, name), matrix.codes, matrix.scales]
        addresses = [count.span.address, *map(address_of, spans), out.data.span.address]
        constants = packed(addresses, matrix.n_cols, matrix.n_rows, float(scale))
        self._by_number(f"embed_{matrix.kind}", out, constants, spans)
        return out

    def head_linears(self, x: Tensor, stack: api.Linear) -> Tensor:
        raise lacking("products of heads with matrices of their own")

    def row_store(self, n_slots: int, width: int) -> api.RowStore:
        raise lacking("rows as input")

    def experts(self, x: Tensor, scores: Tensor, mlps: api.ExpertMLPs) -> Tensor:
        raise lacking("experts")

    def _frequencies(self, rope: api.Rope) -> Span:
        if id(rope) not in self._ropes:  # the rope is kept too, so that its id stays its own
            frequencies = np.ascontiguousarray(rope.inv_freq, np.float32)
            self._ropes[id(rope)] = rope, self._frozen(frequencies)
        return self._ropes[id(rope)][1]


def lacking(needed: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"This model needs {needed}, which the vulkan backend does not have yet: choose another model, or a backend "
        "that has it."
    )
