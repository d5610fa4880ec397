"""Rope, the cache of keys and values, and attention over its pages."""

from collections.abc import Sequence

from tahr import _vulkan as native
from tahr.backends import api
from tahr.backends.api import INT8_BLOCK, Tensor
from tahr.backends.vulkan.inputs import SharedInputs
from tahr.backends.vulkan.kv import PagedBuffers, check_heads
from tahr.backends.vulkan.memory import RowBuffer, Span
from tahr.backends.vulkan.queue import address_of, packed
from tahr.backends.vulkan.row_ops import VulkanRowOps

SPAN = 64  # keys that are attended to together: that of spans.glsl
MOST_SHARING = 8  # query heads of a workgroup
ATTEND_THREADS = 128  # one for each pair of numbers of a head
UNIT = 8  # numbers of a head that are read at once
ROPE_THREADS = 64
MERGE_CODES_AT = 32  # bytes of constants before the address of codes
CAUSAL, CHUNKED = 1, 2
# Steps of many tokens are attended to in tiles, by units for small matrices: so many rows of a small matrix in each.
TILE_SUBGROUPS = 4
TILED_TYPES = ("f16", "bf16")  # f32 would lose what it has
MOST_TILED_DIM = 128
# Steps of few tokens share the spans of each out over the device, and keep partial results for so many bytes at most.
FEW_TOKENS = 64
MOST_PARTIAL_BYTES = 256 << 20


class AttentionOps(VulkanRowOps):
    """Layers with pages."""

    def rope_and_cache(self, qkv: Sequence[Tensor], rotation: api.Rotation, memory: api.LayerMemory) -> Tensor:
        q, *kv = qkv
        layer: PagedBuffers = memory.data
        shape = layer.shape
        check_heads(shape)
        out = self._like(q)
        count = q.data.count
        norms = rotation.norms
        gains = [norms.query.data, norms.key.data] if norms else [None, None]
        inputs = self._queue.keep_step(memory.step)
        self._queue.keep(memory.store)
        slots = self._slots(inputs, memory)
        rows = [self._queue.use(each) for each in (q, *kv)] + [None] * (2 - len(kv))
        stored = whole(layer) if kv else []
        spans = [*rows, self._queue.use(rotation.cos_sin), *gains, slots]
        addresses = [count.span.address, *map(address_of, spans), *[each.address for each in whole(layer)]]
        n_q_heads = q.width // shape.head_dim
        constants = packed(
            [*addresses, out.data.span.address],
            n_q_heads,
            shape.n_heads,
            shape.head_dim,
            rotation.cos_sin.width // 2,
            layer.page_size,
            float(norms.eps if norms else 0),
        )
        pairs = rotation.style == "pairs"
        pipeline = self._kernels.get(
            f"rope_cache_{layer.dtype}", self._kernels.threads(ROPE_THREADS), pairs, norms is not None
        )
        groups = n_q_heads + shape.n_heads * len(kv), max(1, count.limit), 1
        self._queue.add(pipeline, groups, constants, [count.span, *spans], [out.data.span, *stored])
        return out

    def _slots(self, inputs: SharedInputs, memory: api.LayerMemory) -> Span:
        n = memory.step.slot_mapping.shape[1]
        return inputs.span.part(4 * (inputs.begins["slot_mapping"] + memory.group * n), 4 * n)

    def attention(self, q: Tensor, spec: api.AttentionSpec, memory: api.LayerMemory) -> Tensor:
        step = memory.step
        limits = step.limits
        layer: PagedBuffers = memory.data
        check_heads(layer.shape)
        inputs = self._queue.keep_step(step)
        self._queue.keep(memory.store)
        out = self._like(q)
        n_heads = q.width // layer.shape.head_dim
        n_spans = -(-limits.n_pages_per_seq * layer.page_size // SPAN)
        part_bytes = 4 * n_heads * n_spans * (layer.shape.head_dim + 2)
        in_parts = limits.n_tokens * n_spans > 1 and limits.n_tokens <= FEW_TOKENS
        if not in_parts or limits.n_tokens * part_bytes > MOST_PARTIAL_BYTES:
            self._attend(q, spec, memory, out.data.span, 0)
            return out
        parts = RowBuffer(self._queue.arena, inputs.count(step, 0, limits.n_tokens), part_bytes)
        self._attend(q, spec, memory, parts.span, n_spans)
        op = self._merge(spec, memory, parts.span, out, n_spans)
        if layer.shape.head_dim % INT8_BLOCK == 0:
            self._offer(out, op, MERGE_CODES_AT)
        return out

    def _attend(self, q: Tensor, spec: api.AttentionSpec, memory: api.LayerMemory, out: Span, n_parts: int) -> None:
        """Attention as a whole, or into so many parts."""
        step = memory.step
        inputs: SharedInputs = step.device
        layer: PagedBuffers = memory.data
        head_dim = layer.shape.head_dim
        n_heads = q.width // head_dim
        n_sharing = n_heads // layer.shape.n_heads
        logits = [vector.data if vector else None for vector in (spec.sinks, spec.slopes)]
        rows = self._queue.use(q)
        addresses = [inputs.span.address, rows.address, out.address, *[each.address for each in whole(layer)]]
        begins = inputs.begins
        constants = packed(
            [*addresses, *map(address_of, logits)],
            begins["positions"],
            begins["page_table"] + memory.group * step.page_table.shape[2],
            inputs.table_stride,
            begins["query_start"],
            lengths_at(memory),
            n_heads | n_sharing << 16,
            head_dim,
            layer.page_size,
            spec.window,
            flags_of(spec),
            float(spec.scale),
            float(spec.softcap),
        )
        tall = 0 if n_parts else self._tile_height(layer, step.limits)
        choose = self._attending_tiles if tall else self._attending
        pipeline, groups = choose(spec, memory, n_heads, tall or n_parts)
        self._queue.add(pipeline, groups, constants, [inputs.span, rows, *whole(layer), *logits], [out])

    def _tile_height(self, layer: PagedBuffers, limits: api.StepLimits) -> int:
        """The tokens of a tile that is attended to at once; 0: one by one."""
        head_dim = layer.shape.head_dim
        if limits.n_tokens <= FEW_TOKENS or layer.dtype not in TILED_TYPES or head_dim > MOST_TILED_DIM:
            return 0
        size = self._matrix_size()
        if size is None or any(head_dim % n for n in size[1:]) or self._kernels.subgroup % size[0]:
            return 0
        return TILE_SUBGROUPS * size[0]

    def _attending_tiles(
        self, spec: api.AttentionSpec, memory: api.LayerMemory, n_heads: int, tall: int
    ) -> tuple[native.Pipeline, tuple[int, int, int]]:
        """The kernel for tiles of so many tokens, and its grid: each sequence fills whole tiles."""
        layer: PagedBuffers = memory.data
        limits = memory.step.limits
        size = "x".join(map(str, self._matrix_size() or ()))
        n_threads = TILE_SUBGROUPS * self._kernels.subgroup
        choices = n_threads, 0, spec.slopes is not None, spec.sinks is not None, layer.shape.head_dim
        pipeline = self._kernels.get(f"attend_tile_{layer.dtype}_{size}", n_threads, *choices)
        return pipeline, (n_heads, max(1, limits.n_tokens // tall + limits.n_seqs), 1)

    def _attending(
        self, spec: api.AttentionSpec, memory: api.LayerMemory, n_heads: int, n_parts: int
    ) -> tuple[native.Pipeline, tuple[int, int, int]]:
        """The kernel that has one token at a time, and its grid."""
        layer: PagedBuffers = memory.data
        head_dim = layer.shape.head_dim
        is_wide = head_dim % UNIT == 0
        most = MOST_SHARING if is_wide else 1
        n_sharing = n_heads // layer.shape.n_heads
        n_together = next(n for n in range(min(n_sharing, most), 0, -1) if n_sharing % n == 0)
        n_threads = self._kernels.threads(ATTEND_THREADS)
        features = [each is not None for each in (spec.slopes, spec.sinks)]
        choices = n_together, n_parts > 0, *features, head_dim, is_wide
        pipeline = self._kernels.get(f"attend_{layer.dtype}", n_threads, *choices)
        return pipeline, (n_heads // n_together, max(1, memory.step.limits.n_tokens), max(1, n_parts))

    def _matrix_size(self) -> tuple[int, int, int] | None:
        """The small matrices that the device multiplies as it should; None: none."""
        raise NotImplementedError

    def _merge(self, spec: api.AttentionSpec, memory: api.LayerMemory, parts: Span, out: Tensor, n_spans: int) -> int:
        step = memory.step
        inputs: SharedInputs = step.device
        head_dim = memory.kv_shape.head_dim
        n_heads = out.width // head_dim
        sinks: Span | None = spec.sinks.data if spec.sinks else None
        addresses = [inputs.span.address, parts.address, out.data.span.address, address_of(sinks), 0, 0]
        places = [inputs.begins["positions"], inputs.begins["query_start"], lengths_at(memory)]
        constants = packed(addresses, *places, n_heads, head_dim, n_spans, spec.window, flags_of(spec))
        pipeline = self._kernels.get(
            "merge", self._kernels.threads(-(-head_dim // INT8_BLOCK) * INT8_BLOCK), 0, 0, 0, sinks is not None
        )
        groups = n_heads, max(1, step.limits.n_tokens), 1
        return self._queue.add(pipeline, groups, constants, [inputs.span, parts, sinks], [out.data.span])


def lengths_at(memory: api.LayerMemory) -> int:
    """The place of the first length in a layer's group."""
    step = memory.step
    inputs: SharedInputs = step.device
    stride: int = step.seq_lens.shape[1]
    return inputs.begins["seq_lens"] + memory.group * stride


def whole(layer: PagedBuffers) -> list[Span]:
    """All keys, and all values."""
    return [Span(side, 0, side.n_bytes) for side in layer.sides]


def flags_of(spec: api.AttentionSpec) -> int:
    return CAUSAL * spec.causal | CHUNKED * spec.chunked
