"""The CPU backend: ops append structs to a tape, and native threads walk it."""

from collections.abc import Callable, Mapping, Sequence
from weakref import WeakValueDictionary

import numpy as np

from tahr import _native as native
from tahr._native import address_of
from tahr.backends.api import (
    INT8_BLOCK,
    PINNED_BYTES,
    AttentionSpec,
    Bytes,
    DeltaNet,
    EnergyCounter,
    Floats,
    Ints,
    JoinedLinears,
    KVShape,
    KVStore,
    LayerMemory,
    Linear,
    LinearShape,
    MemoryLayout,
    PageIO,
    Plan,
    Rotation,
    Rows,
    StateShape,
    StateSpace,
    StepInputs,
    StepLimits,
    Tensor,
    Vector,
    Weight,
    kv_sides,
)
from tahr.backends.cpu.expert_ops import StackOps
from tahr.backends.cpu.kv import KV_TYPES, PagedLayer, check_heads, make_layer, task_heads
from tahr.backends.cpu.lora import CpuLoraBank
from tahr.backends.cpu.memory import Arena, Buffer, Count
from tahr.backends.cpu.pager import PagedMatrix, awaited, panels_of
from tahr.backends.cpu.pages import CpuPageIO
from tahr.backends.cpu.processor.info import read_cpu_info
from tahr.backends.cpu.processor.isa import choose_isa, choose_threads, wants_plain_attention
from tahr.backends.cpu.queue import CpuPlan, Queue, offer_quantised
from tahr.backends.cpu.recurrence import check_delta_net, check_state_space, enqueue_delta_net, enqueue_state_space
from tahr.backends.cpu.sampling import NativeSampler
from tahr.backends.cpu.sleeping import drop_contents
from tahr.backends.cpu.slots import SlotMemory
from tahr.backends.cpu.weights import PackedMatrix, packed_format, stack_shape, table_bytes
from tahr.backends.sampling.sample_rows import Logprobs, Sampled, SampledAtOnce, SampleRows
from tahr.errors import ConfigError
from tahr.offload.homes import USUAL_HOMES, Home, Panels, SlotArena
from tahr.weights.tensor import HostTensor


class CpuBackend(StackOps):
    """Runs everything on the processor's cores with the kernels made for its instruction set."""

    name = "cpu"
    maps_tables = True
    homes = USUAL_HOMES | {"paged"}
    file_stamp = staticmethod(native.file_stamp)  # Python makes twenty objects of what it asks the system
    kv_dtypes = tuple(KV_TYPES)
    page_order = "heads"
    stores_cross = True
    runs_drafters = True
    draws_frames = True
    passing_kv_dtype = "f32"  # the pages of a step stay in the caches, and need no conversion

    def __init__(self, n_threads: int | None = None):
        self.isa = choose_isa()
        self.n_threads = choose_threads(n_threads)
        self._plain = wants_plain_attention()
        how = ", plain attention" if self._plain else ""
        self.summary = f"cpu: {read_cpu_info().model}, {self.isa}, {self.n_threads} threads{how}"
        self.pool = native.Pool(self.n_threads)
        self._sampler = NativeSampler(self.isa, self.pool)
        self._eager = self._queue = Queue(self.isa)
        self._slots: dict[bool, SlotMemory] = {}  # keys: whether stacks of matrices share them
        self._arenas: WeakValueDictionary[int, Arena] = WeakValueDictionary()  # keys are the inputs of live plans

    # ---- memory -----------------------------------------------------------------------------------------------

    def weight(self, tensor: HostTensor) -> Weight:
        return self._taken(PackedMatrix(tensor, self.isa, self.pool))

    def weight_elsewhere(self, tensor: HostTensor, home: Home) -> Weight:
        assert home.how == "paged"
        slots = self._slots[len(tensor.shape) > 2]
        return self._taken(PagedMatrix(tensor, self.isa, self.pool, slots))

    def panels(self, tensor: HostTensor) -> Panels | None:
        return panels_of(tensor, self.isa)

    def hold_arenas(self, arenas: Sequence[SlotArena]) -> None:
        self._slots |= {arena.by_usage: SlotMemory(arena) for arena in arenas}

    def _taken(self, matrix: PackedMatrix) -> Weight:
        tensor = matrix.host
        n_stack, n_rows, n_cols = matrix.shape
        name = tensor.name
        form = tensor.format.name
        in_file = table_bytes(tensor)
        return Weight(name, form, matrix.kernel, n_rows, n_cols, matrix.n_bytes, matrix, n_stack, in_file)

    def weight_bytes(self, tensor: HostTensor, n_taken: int = 0) -> int:
        return native.packed_bytes(packed_format(tensor.format), self.isa, *stack_shape(tensor.shape))

    def file_bytes(self, tensor: HostTensor) -> int:
        return table_bytes(tensor)

    def vector(self, values: Floats) -> Vector:
        return Vector(len(values), np.array(values, np.float32))

    def energy_counter(self) -> EnergyCounter | None:
        from tahr.backends.host.energy import rapl_counter  # only servers measure

        return rapl_counter()

    def tensor(self, values: Floats) -> Tensor:
        count = Count(np.array([len(values)], np.int32), 0, len(values))
        # Written now, not when the queue runs, so it must not be a block that an op in the queue still reads.
        buffer = Buffer(Arena(), count, 4 * values.shape[1])
        buffer.floats()[:] = values
        return Tensor(values.shape[1], Rows.FIXED, buffer)

    def read(self, tensor: Tensor) -> Floats:
        self.flush()
        rows: Floats = tensor.data.floats()
        # A plan's result stays in place until the plan runs again; anything else may be overwritten by the next op.
        return rows.copy() if tensor.data.arena is self._eager.arena else rows

    def step_inputs(self, limits: StepLimits) -> StepInputs:
        return StepInputs.empty(limits)

    def check_attention(self, spec: AttentionSpec, shape: KVShape, n_heads: int) -> None:
        check_heads(shape)

    def check_delta_net(self, net: DeltaNet) -> None:
        check_delta_net(net)

    def check_state_space(self, net: StateSpace) -> None:
        check_state_space(net)

    def paged_layer(self, shape: KVShape, n_pages: int, layout: MemoryLayout) -> PagedLayer:
        if not KV_TYPES.keys() >= set(kv_sides(layout.dtype)):
            raise ConfigError(
                f"The cpu backend cannot keep a KV cache of {layout.dtype}. Use one of: {', '.join(KV_TYPES)}."
            )
        return make_layer(shape, n_pages, layout.page_size, layout.dtype)

    def sleep(self, models: Sequence[object], stores: Sequence[KVStore]) -> int:
        return sum(map(drop_contents, stores))

    def state_layer(self, shape: StateShape, n_slots: int) -> Floats:
        return np.zeros((n_slots, *shape.shape), np.float32)

    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        self.flush()
        return [layer.read(pages) for layer in kv.paged(group)]

    def write_pages(self, kv: KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        self.flush()
        for layer, content in zip(kv.paged(group), layers, strict=True):
            layer.write(pages, content)

    def page_io(self, kv: KVStore, pinned_bytes: int = PINNED_BYTES) -> PageIO:
        return CpuPageIO(kv, self.flush)

    def copy_pages(self, kv: KVStore, pairs: Sequence[tuple[int, int]], group: int = 0) -> None:
        self.flush()
        sources, targets = np.array(pairs, np.int64).T
        for layer in kv.paged(group):
            layer.keys[targets] = layer.keys[sources]
            if layer.values is not None:
                layer.values[targets] = layer.values[sources]

    def read_states(self, kv: KVStore, slots: Sequence[int]) -> list[Floats]:
        self.flush()
        return [layer[list(slots)] for layer in kv.states()]

    def write_states(self, kv: KVStore, slots: Sequence[int], layers: Sequence[Floats]) -> None:
        self.flush()
        for layer, content in zip(kv.states(), layers, strict=True):
            layer[list(slots)] = content

    # ---- running ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        if not self._eager.kept:  # every op keeps what it reads: there are none
            return
        try:
            self._eager.run(self.pool)
        finally:
            self._eager.clear()

    def record(self, step: Callable[[], Tensor], inputs: StepInputs) -> Plan:
        queue = Queue(self.isa, self._shared_arena(inputs))
        before = self._queue
        self._queue = queue
        try:
            result = step()
        finally:
            self._queue = before
        return CpuPlan(queue, self.pool, result)

    def _shared_arena(self, inputs: StepInputs) -> Arena:
        """Plans on the same inputs run one after the other: all but their results may share memory."""
        key = id(inputs.counts)
        arena = self._arenas.get(key) or Arena()
        self._arenas[key] = arena
        return arena

    # ---- sampling ---------------------------------------------------------------------------------------------

    def sample(self, logits: Tensor | Floats, rows: SampleRows) -> Sampled:
        return SampledAtOnce(self._sampler.sample(self.host_rows(logits), rows))

    def logprobs(self, logits: Tensor | Floats, n_vocab: int, source: Ints, tokens: Ints, n_top: Ints) -> Logprobs:
        return self._sampler.logprobs(self.host_rows(logits), n_vocab, source, tokens, n_top)

    # ---- ops --------------------------------------------------------------------------------------------------

    def embed(self, table: Weight, step: StepInputs, scale: float = 1.0) -> Tensor:
        self._queue.tables.append((step, table))
        return self._embed(table, step, step.ids, scale)

    def _embed(self, table: Weight, step: StepInputs, indices: Ints, scale: float) -> Tensor:
        matrix: PackedMatrix = table.data
        format_name, rows = matrix.table
        self._queue.keep(rows)
        out = self._per_token(step, table.n_cols)
        self._queue.tape.embed(
            n_rows=out.data.count.address,
            format=format_name,
            table=address_of(rows),
            table_rows=table.n_rows,
            cols=table.n_cols,
            ids=address_of(indices),
            out=out.data.address,
            scale=scale,
        )
        return out

    def embed_positions(self, table: Weight, step: StepInputs) -> Tensor:
        return self._embed(table, step, step.positions, 1.0)

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        return self._multiply(x, [linear])[0]

    def linears(self, x: Tensor, joined: JoinedLinears) -> list[Tensor]:
        return self._multiply(x, joined.parts)

    def _multiply(self, x: Tensor, linears: Sequence[Linear]) -> list[Tensor]:
        outs = [self._like(x, linear.weight.n_rows) for linear in linears]
        jobs = [self._job(linear, out) for linear, out in zip(linears, outs, strict=True)]
        for first in range(0, len(jobs), native.MAX_LINEAR_JOBS):
            some = slice(first, first + native.MAX_LINEAR_JOBS)
            quantised = self._quantised(x, linears[some])
            with awaited(self._queue, linears[some]):
                self._queue.tape.linear(
                    n_rows=x.data.count.address, x=self._use(x), quantised=quantised, jobs=jobs[some]
                )
        if isinstance(self.lora, CpuLoraBank):
            names = [linear.name for linear in linears]
            self.lora.enqueue(self._queue, x, list(zip(names, outs, strict=True)))
        return outs

    def lora_bank(self, shapes: Mapping[str, LinearShape], limits: StepLimits) -> CpuLoraBank:
        return CpuLoraBank(shapes, limits)

    def rope_and_cache(self, qkv: Sequence[Tensor], rotation: Rotation, memory: LayerMemory) -> Tensor:
        (q, *kv) = qkv
        norms = rotation.norms
        k, v = (*map(self._use, kv), 0, 0)[:2]
        out = self._like(q)
        self._keep_memory(memory)
        self._queue.tape.rope_and_cache(
            n_rows=q.data.count.address,
            n_q_heads=q.width // memory.kv_shape.head_dim,
            q=self._use(q),
            k=k,
            v=v,
            cos_sin=self._use(rotation.cos_sin),
            n_freqs=rotation.cos_sin.width // 2,
            style=rotation.style,
            q_gain=self._use_vector(norms.query if norms else None),
            k_gain=self._use_vector(norms.key if norms else None),
            eps=norms.eps if norms else 0.0,
            key_mean=self._use_vector(rotation.key_mean),
            slots=address_of(memory.slot_mapping),
            kv=memory.data.native,
            out=out.data.address,
        )
        return out

    def attention(self, q: Tensor, spec: AttentionSpec, memory: LayerMemory) -> Tensor:
        step = memory.step
        shape = memory.kv_shape
        n_q_heads = q.width // shape.head_dim
        out = self._like(q, n_q_heads * shape.value_dim)
        n_spans = -(-step.limits.n_pages_per_seq * memory.store.page_size // native.KV_SPAN)
        n_split = min(native.SPLIT_TOKENS, step.limits.n_tokens)
        partials = Buffer(
            self._queue.arena, Count(step.counts, 0, n_split), 4 * n_q_heads * n_spans * (shape.value_dim + 2)
        )
        self._keep_memory(memory)
        self._queue.tape.attention(
            counts=address_of(step.counts),
            positions=address_of(step.positions),
            starts=address_of(step.query_start),
            lengths=address_of(memory.seq_lens),
            page_table=address_of(memory.page_table),
            n_pages_per_seq=step.limits.n_pages_per_seq,
            n_q_heads=n_q_heads,
            group=task_heads(n_q_heads, shape),
            q=self._use(q),
            out=out.data.address,
            kv=memory.data.native,
            scale=spec.scale,
            softcap=spec.softcap,
            window=spec.window,
            chunked=spec.chunked,
            partials=partials.address,
            n_spans=n_spans,
            sinks=self._use_vector(spec.sinks),
            slopes=self._use_vector(spec.slopes),
            causal=spec.causal,
            # Heads are shared out one by one, so each must be whole blocks.
            quantised_out=0 if shape.value_dim % INT8_BLOCK else offer_quantised(self._queue, out),
            plain=self._plain,
        )
        return out

    def delta_net(self, parts: Sequence[Tensor], net: DeltaNet, memory: LayerMemory) -> Tensor:
        out = self._like(parts[0], net.n_v_heads * net.v_dim)
        self._keep(parts, (net.conv, net.decay, net.dt_bias, net.gain), memory)
        enqueue_delta_net(self._queue, parts, net, memory, out)
        return out

    def state_space(self, parts: Sequence[Tensor], net: StateSpace, memory: LayerMemory) -> Tensor:
        out = self._like(parts[0], net.width)
        self._keep(parts, (net.conv, net.conv_bias, net.decay, net.dt_bias, net.skip, net.gain), memory)
        enqueue_state_space(self._queue, parts, net, memory, out)
        return out

    def _keep(self, parts: Sequence[Tensor], vectors: Sequence[Vector | None], memory: LayerMemory) -> None:
        """Keep alive everything a recurrent layer looks at."""
        self._keep_memory(memory)
        for part in parts:
            self._use(part)
        for vector in vectors:
            self._use_vector(vector)
