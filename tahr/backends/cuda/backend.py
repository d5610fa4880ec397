"""The CUDA backend: torch for memory and large products, Triton for everything an LLM does between them."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from tahr.backends.api import (
    PINNED_BYTES,
    Activation,
    AddedNorm,
    AttentionScaling,
    AttentionSpec,
    Bytes,
    DeltaNet,
    EnergyCounter,
    ExpertMLPs,
    Extras,
    Fetched,
    Floats,
    HostRows,
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
    Rope,
    Rotation,
    Rows,
    StateShape,
    StateSpace,
    StepDefaults,
    StepInputs,
    StepLimits,
    Tensor,
    Vector,
    Weight,
)
from tahr.backends.cuda.ahead import Ahead
from tahr.backends.cuda.kernels import attention, experts, latent, linear, packed, recurrence, rope_attention
from tahr.backends.cuda.kernels.common import rope_kv, rows
from tahr.backends.cuda.late_rows import LateRows
from tahr.backends.cuda.layouts import kv as cuda_kv
from tahr.backends.cuda.layouts.fp8 import converts_fp8
from tahr.backends.cuda.layouts.packed import CodedMatrix
from tahr.backends.cuda.layouts.presence import build_problem, describe, interprets
from tahr.backends.cuda.logprobs import begin_logprobs
from tahr.backends.cuda.lora import CudaLoraBank
from tahr.backends.cuda.pages import CudaPageIO
from tahr.backends.cuda.products import Products
from tahr.backends.cuda.profile import time_ops
from tahr.backends.cuda.sampling import CudaSampler, host_rows
from tahr.backends.cuda.slot_ops import SlotOps
from tahr.backends.cuda.steps import (
    EagerPlan,
    FetchedRows,
    GraphMemory,
    GraphPlan,
    RecordingContext,
    buckets,
    like,
    made,
    make_inputs,
    values,
)
from tahr.backends.cuda.vectors import Compact, wider
from tahr.backends.cuda.weights import free_and_total, join, refusing_unfit, take, taken_bytes
from tahr.backends.host.budget import device_kv_budget
from tahr.backends.host.energy import nvml_counter
from tahr.backends.host.profile import VARIABLE
from tahr.backends.sampling.sample_rows import Logprobs, Sampled, SampleRows, Words
from tahr.errors import ConfigError
from tahr.weights.tensor import HostTensor

F32 = torch.float32
N_TOKEN_SLOTS = 1 << 16  # limit above the sequences that may run at once


class RopeOnDevice(NamedTuple):
    """Numbers of a rope; the rope is kept too, so that its id stays its own."""

    rope: Rope
    frequencies: torch.Tensor
    axes: torch.Tensor


class CudaBackend(SlotOps):
    """One GPU. The residual stream is f32; what meets a matrix takes the type of the model's embedding table.

    A model in f32 is computed in f32 throughout (no TF32); in bf16 and f16 models the rows that enter products are
    rounded to that type and summed in f32. Block-quantised weights are multiplied from packed codes, or stored dense
    in bf16 where no kernel knows their format; rows are not rounded to int8.

    The fastest kernel depends on how many rows there are, so a row may change in its last bits with the size of its
    batch. A `deterministic` backend sums in one way whatever the size, and every row keeps to itself; it stores
    block-quantised weights dense.
    """

    name = "cuda"
    overlaps = True
    free_share = 0.6  # share of the card's memory that dense copies of packed matrices leave free
    # Shorter steps of prompts cost bursts of requests up to a tenth of their tokens/s.
    step_defaults = StepDefaults(n_seqs=256, n_prefill_seqs=256, prefill_chunk=4096, n_prefill_tokens=8192, mixed_s=0.2)
    mixes_kv_dtypes = False

    def __init__(self, device: str = "cuda", deterministic: bool = False) -> None:
        self.device = torch.device(device)
        self.deterministic = deterministic
        self.has_own_memory = self.device.type == "cuda"
        self.keeps_lora_rows = not deterministic
        self._products = Products(deterministic)
        self.rounds_to = ("fp8",) if converts_fp8(self.device) and not deterministic else ()
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self.summary = f"cuda: {', '.join(describe().values())}{', deterministic' if deterministic else ''}"
        self.context = RecordingContext()
        # The tokens sampled last, by token slot: what negative ids of the next steps point at.
        self.last_tokens = torch.zeros(N_TOKEN_SLOTS, dtype=torch.int32, device=self.device)
        self._page_size = 0  # smallest page size of its KV stores
        self.sampler = CudaSampler(self.last_tokens)
        self._graphs = GraphMemory() if self.device.type == "cuda" else None
        self._ropes: dict[int, RopeOnDevice] = {}

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        return tuple(name for name in cuda_kv.TYPES if name != "fp8" or converts_fp8(self.device))

    # ---- memory -----------------------------------------------------------------------------------------------

    def kv_budget(self, share: float | None) -> int:
        if self.device.type == "cpu":
            return super().kv_budget(share)
        return device_kv_budget(*free_and_total(self.device), share)

    def weight(self, tensor: HostTensor) -> Weight:
        with refusing_unfit(tensor.name):
            return take(tensor, self.device, not self.deterministic, self.free_share)

    def weight_bytes(self, tensor: HostTensor, n_taken: int = 0) -> int:
        return taken_bytes(tensor, self.device, not self.deterministic, self.free_share, n_taken)

    def free_bytes(self) -> int | None:
        return free_and_total(self.device)[0] if self.has_own_memory else super().free_bytes()

    def energy_counter(self) -> EnergyCounter | None:
        if self.device.type == "cpu":
            return super().energy_counter()
        return nvml_counter(f"GPU-{torch.cuda.get_device_properties(self.device).uuid}")

    def vector(self, values: Floats) -> Vector:
        return Vector(len(values), torch.tensor(values, dtype=F32, device=self.device))

    def join(self, linears: Sequence[Linear], lora_rows: int = 0) -> JoinedLinears:
        with refusing_unfit(linears[0].weight.name):
            return join(linears, lora_rows if self.keeps_lora_rows else 0)

    def tensor(self, values: Floats) -> Tensor:
        return made(torch.tensor(values, dtype=F32, device=self.device), Rows.FIXED, F32)

    def read(self, tensor: Tensor) -> Floats:
        return self.fetch(tensor).collect()

    def fetch(self, tensor: Tensor) -> Fetched:
        live = tensor.data.live()
        return HostRows(live.float().numpy()) if self.device.type == "cpu" else FetchedRows(live)

    def step_inputs(self, limits: StepLimits) -> StepInputs:
        return make_inputs(limits, self.last_tokens, self._page_size or 1)

    def paged_layer(self, shape: KVShape, n_pages: int, layout: MemoryLayout) -> torch.Tensor:
        self._page_size = min(self._page_size or layout.page_size, layout.page_size)
        return cuda_kv.make(shape, n_pages, layout.page_size, layout.dtype, self.device)

    def state_layer(self, shape: StateShape, n_slots: int) -> torch.Tensor:
        return torch.zeros((n_slots, *shape.shape), dtype=F32, device=self.device)

    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        return [cuda_kv.read(layer, pages) for layer in kv.paged(group)]

    def write_pages(self, kv: KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        for layer, content in zip(kv.paged(group), layers, strict=True):
            cuda_kv.write(layer, pages, content)

    def copy_pages(self, kv: KVStore, pairs: Sequence[tuple[int, int]], group: int = 0) -> None:
        for layer in kv.paged(group):
            cuda_kv.copy(layer, pairs)

    def page_io(self, kv: KVStore, pinned_bytes: int = PINNED_BYTES) -> PageIO:
        if self.device.type == "cpu":
            return super().page_io(kv, pinned_bytes)
        return CudaPageIO(kv, pinned_bytes)

    @property
    def page_order(self) -> str:
        return super().page_order if self.device.type == "cpu" else "layers"

    def read_states(self, kv: KVStore, slots: Sequence[int]) -> list[Floats]:
        return [layer[list(slots)].cpu().numpy() for layer in kv.states()]

    def write_states(self, kv: KVStore, slots: Sequence[int], layers: Sequence[Floats]) -> None:
        for layer, content in zip(kv.states(), layers, strict=True):
            layer[list(slots)] = torch.from_numpy(np.array(content)).to(self.device)

    def copy_states(self, kv: KVStore, pairs: Sequence[tuple[int, int]]) -> None:
        for layer in kv.states():
            layer[[to for _, to in pairs]] = layer[[source for source, _ in pairs]]

    # ---- running ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        pass  # ops are on the stream already

    def record(self, step: Callable[[], Tensor], inputs: StepInputs) -> Plan:
        if self._graphs is None:
            return EagerPlan(self.context, step, inputs)
        return GraphPlan(self.context, step, inputs, self._graphs)

    def buckets(self, limits: StepLimits, n_decode_tokens: int = 1) -> Sequence[StepLimits]:
        return buckets(limits, n_decode_tokens)

    def wants_warming(self) -> bool:
        return self._graphs is not None and self._graphs.free_memory()

    def prepare(self, plan: Plan) -> bool:
        return not isinstance(plan, GraphPlan) or plan.prepare()

    # ---- sampling ---------------------------------------------------------------------------------------------

    def sample(self, logits: Tensor | Floats, rows: SampleRows) -> Sampled:
        if not isinstance(logits, Tensor):
            return super().sample(logits, rows)
        return self.sampler.sample(logits.data.live(), rows)

    def mask_memory(self, n: int, n_words: int) -> Words:
        if self.device.type != "cuda":
            return super().mask_memory(n, n_words)
        words: Words = torch.empty((n, n_words), dtype=torch.int32, pin_memory=True).numpy().view(np.uint32)
        return words

    def host_samples(self, rows: SampleRows) -> Sequence[int]:
        return host_rows(rows)

    def logprobs(self, logits: Tensor | Floats, n_vocab: int, source: Ints, tokens: Ints, n_top: Ints) -> Logprobs:
        if not isinstance(logits, Tensor):
            return super().logprobs(logits, n_vocab, source, tokens, n_top)
        of = torch.from_numpy(np.array(tokens)).to(self.device)
        pending = begin_logprobs(logits.data.live(), n_vocab, source, of, n_top)
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return pending.collect()

    # ---- ops --------------------------------------------------------------------------------------------------

    def embed(self, table: Weight, step: StepInputs, scale: float = 1.0) -> Tensor:
        inputs = self.context.enter(step)
        n = self._n_tokens(step)
        embed = packed.packed_embed if isinstance(table.data, CodedMatrix) else rows.embed
        found = embed(table.data, inputs, n, scale)
        return made(found, Rows.TOKENS, table.data.dtype)

    def embed_positions(self, table: Weight, step: StepInputs) -> Tensor:
        inputs = self.context.enter(step)
        n = self._n_tokens(step)
        dense = packed.unpacked_matrix(table.data, F32) if isinstance(table.data, CodedMatrix) else table.data
        return made(rows.embed_positions(dense, inputs, n), Rows.TOKENS, table.data.dtype)

    def rms_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        return like(x, rows.rms_norm(values(x), gain.data, eps, x.data.math))

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return like(x, torch.add(values(x).float(), values(y).float(), alpha=scale))

    def add_rms_norm(self, x: Tensor, y: Tensor, gain: Vector, eps: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        added = y.data.summands() if isinstance(y.data, LateRows) else values(y)
        s, normed = rows.add_rms_norm(values(x), added, gain.data, eps, scale, x.data.math)
        return like(x, s), like(x, normed)

    def head_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        heads = values(x).float().view(len(values(x)), -1, gain.width)
        normed = heads * torch.rsqrt(heads.square().mean(dim=2, keepdim=True) + eps) * gain.data
        return like(x, normed.view(len(heads), -1).to(x.data.math))

    def columns(self, x: Tensor, begin: int, width: int) -> Tensor:
        return like(x, values(x)[:, begin : begin + width].contiguous())

    def join_heads(self, x: Tensor, y: Tensor, n_heads: int) -> Tensor:
        parts = [values(part).unflatten(1, (n_heads, -1)).to(x.data.math) for part in (x, y)]
        return like(x, torch.cat(parts, dim=2).flatten(1))

    def head_linears(self, x: Tensor, stack: Linear) -> Tensor:
        w = stack.weight.data
        return like(x, latent.head_linears(values(x), w, wider(x.data.math, w.dtype)).to(x.data.math))

    def layer_norm(self, x: Tensor, gain: Vector, bias: Vector | None, eps: float) -> Tensor:
        shift = None if bias is None else bias.data
        normed = torch.nn.functional.layer_norm(values(x).float(), (x.width,), gain.data, shift, eps)
        return like(x, normed.to(x.data.math))

    def head_layer_norm(self, x: Tensor, gain: Vector, eps: float, n_heads: int) -> Tensor:
        heads = values(x).float().unflatten(1, (n_heads, -1))
        normed = torch.nn.functional.layer_norm(heads, heads.shape[-1:], eps=eps).flatten(1) * gain.data
        return like(x, normed.to(x.data.math))

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        bias = None if linear.bias is None else linear.bias.data
        if not self.lora and (late := self._products.later(x, linear.weight.data, bias)):
            return Tensor(linear.weight.n_rows, x.rows, late)
        return like(x, self._adapted(x, linear.weight.data, bias, [linear]))

    def lora_bank(self, shapes: Mapping[str, LinearShape], limits: StepLimits) -> CudaLoraBank:
        return CudaLoraBank(shapes, limits, self.device)

    def _adapted(
        self, x: Tensor, w: torch.Tensor | Compact, bias: torch.Tensor | None, linears: Sequence[Linear]
    ) -> torch.Tensor:
        """The outputs of linears, which lie side by side, with what adapters add to them."""
        if not isinstance(self.lora, CudaLoraBank):
            return self._products.multiply(x, w, bias)
        heights = [linear.weight.n_rows for linear in linears]
        names = [linear.name for linear in linears]
        if spare := self.lora.spare_rows_of(names):
            found = self._products.multiply(x, *spare.begin(self.lora.n_used))
            self.lora.finish_behind(found, x.rows, names, heights)
            return found[:, : spare.n_out]
        begun = self.lora.begin(values(x), x.rows, names, heights)
        found = self._products.multiply(x, w, bias)
        self.lora.finish(found, begun)
        return found

    def linears(self, x: Tensor, joined: JoinedLinears) -> list[Tensor]:
        one = joined.data
        if one is None:
            return super().linears(x, joined)
        found = self._adapted(x, one.values, one.bias, joined.parts)
        return [like(x, part) for part in found.split(one.heights, dim=1)]

    def gated(self, x: Tensor, gate_up: JoinedLinears, act: Activation) -> Tensor:
        one = gate_up.data
        found = self._products.gated(x, one.values, one.bias, act) if one and not self.lora else None
        return super().gated(x, gate_up, act) if found is None else like(x, found)

    def norm_linears(self, norm: AddedNorm, joined: JoinedLinears) -> tuple[Tensor, list[Tensor]]:
        one = joined.data
        if one is None or self.lora or not self._norms_vector(norm, one.values):
            return super().norm_linears(norm, joined)
        s, result = linear.norm_vector_linear(row_norm(norm), one.values, one.bias, one.values.dtype)
        return like(norm.x, s), [like(norm.x, part) for part in result.split(one.heights, dim=1)]

    def norm_gated(self, norm: AddedNorm, gate_up: JoinedLinears, act: Activation) -> tuple[Tensor, Tensor]:
        one = gate_up.data
        if one is None or self.lora or not self._norms_vector(norm, one.values):
            return super().norm_gated(norm, gate_up, act)
        s, result = linear.norm_vector_linear(row_norm(norm), one.values, one.bias, one.values.dtype, act)
        return like(norm.x, s), like(norm.x, result)

    def _norms_vector(self, norm: AddedNorm, w: torch.Tensor | Compact) -> bool:
        fits = norm.x.width <= linear.NORM_COLS and values(norm.x).dtype == F32
        return fits and self._products.is_vector(norm.x, w) and isinstance(w, torch.Tensor)

    def activate(self, gate: Tensor, up: Tensor | None, act: Activation) -> Tensor:
        return like(gate, rows.activate(values(gate), None if up is None else values(up), act, gate.data.math))

    def experts(self, x: Tensor, scores: Tensor, mlps: ExpertMLPs) -> Tensor:
        gate = mlps.gate
        up = mlps.up
        down = mlps.down
        biases = (gate.bias.data, up.bias.data, down.bias.data) if gate.bias and up.bias and down.bias else None
        stacks = experts.ExpertStacks(gate.weight.data, up.weight.data, down.weight.data, mlps.act, biases)
        dtype = wider(x.data.math, *(s.dtype for s in (stacks.gate, stacks.up, stacks.down)))
        n_rows = len(values(x))
        if n_rows <= linear.N_VECTORS and dtype != F32 and not self.deterministic:
            return like(x, experts.run_few(values(x), values(scores), mlps.routing, stacks, dtype))
        tile_size = experts.tile_size_for(values(scores), mlps.routing, self.deterministic)
        chosen = experts.assign(values(scores), mlps.routing, tile_size)
        return like(x, experts.run_experts(values(x), chosen, stacks, dtype))

    def cos_sin(self, step: StepInputs, rope: Rope) -> Tensor:
        inputs = self.context.enter(step)
        if id(rope) not in self._ropes:
            axes = torch.tensor(rope.axes or (0,) * len(rope.inv_freq), dtype=torch.int32, device=self.device)
            frequencies = torch.tensor(rope.inv_freq, dtype=F32, device=self.device)
            self._ropes[id(rope)] = RopeOnDevice(rope, frequencies, axes)
        there = self._ropes[id(rope)]
        positions = inputs.positions
        begins = None
        if step.limits.extras & Extras.ROPE:
            positions = inputs.extras["rope_positions"]
            begins = there.axes * positions.shape[1]
        found = rope_kv.cos_sin(positions, self._n_tokens(step), there.frequencies, rope.scale, begins)
        return made(found, Rows.TOKENS, F32)

    def rope_and_cache(self, qkv: Sequence[Tensor], rotation: Rotation, memory: LayerMemory) -> Tensor:
        return self._rope_and_cache(qkv, rotation, memory, None)

    def _rope_and_cache(
        self, qkv: Sequence[Tensor], rotation: Rotation, memory: LayerMemory, new_keys: torch.Tensor | None
    ) -> Tensor:
        inputs = self.context.enter(memory.step)
        (q, *kv) = qkv
        heads = (values(q), [values(x) for x in kv])
        slots = inputs.slot_mapping[memory.group]
        found = rope_kv.rope_and_cache(*heads, rotation, memory.data, slots, inputs.counts, q.data.math, new_keys)
        return like(q, found)

    def rope_attention(self, qkv: list[Tensor], rotation: Rotation, spec: AttentionSpec, memory: LayerMemory) -> Tensor:
        q, *kv = (values(x) for x in qkv)
        if self.deterministic or spec.chunked:
            return super().rope_attention(qkv, rotation, spec, memory)
        if attention.fuses_rope(len(qkv), spec, memory):
            call = self._attention_call(qkv[0], spec, memory)
            slots = call.inputs.slot_mapping[memory.group]
            return like(qkv[0], rope_attention.rope_decode(call, kv, rotation, slots, qkv[0].data.math))
        if attention.reads_rows(q, kv, spec, memory):
            new = attention.StepRows(torch.empty_like(kv[0], memory_format=torch.contiguous_format), kv[1])
            call = self._attention_call(self._rope_and_cache(qkv, rotation, memory, new.keys), spec, memory)
            return like(qkv[0], attention.attend_mixed(call, self._n_seqs(memory.step), new))
        return super().rope_attention(qkv, rotation, spec, memory)

    def _attention_call(self, q: Tensor, spec: AttentionSpec, memory: LayerMemory) -> attention.AttentionCall:
        inputs = self.context.enter(memory.step)
        dtype = attention.product_type(q.data.math, memory.data.dtype)
        lengths = inputs.seq_lens[memory.group]
        pages = inputs.page_tables[memory.group]
        return attention.AttentionCall(values(q), memory.data, pages, inputs, spec, dtype, lengths)

    def attention(self, q: Tensor, spec: AttentionSpec, memory: LayerMemory) -> Tensor:
        call = self._attention_call(q, spec, memory)
        step = memory.step
        if memory.kv_shape.latent:
            return like(q, latent.attend_latent(call, memory.kv_shape.latent))
        n_seqs = self._n_seqs(step)
        if self.deterministic or not spec.causal or spec.chunked:
            return like(q, attention.attend_exact(call, n_seqs))
        one_each = step.limits.n_tokens_per_seq == 1
        return like(q, attention.attend_decode(call) if one_each else attention.attend_mixed(call, n_seqs))

    def delta_net(self, parts: Sequence[Tensor], net: DeltaNet, memory: LayerMemory) -> Tensor:
        inputs = self.context.enter(memory.step)
        step = memory.step
        n_seqs = self._n_seqs(step)
        found = recurrence.run_delta_net([values(part) for part in parts], net, memory.data, inputs, n_seqs)
        return like(parts[0], found.to(parts[0].data.math))

    def state_space(self, parts: Sequence[Tensor], net: StateSpace, memory: LayerMemory) -> Tensor:
        inputs = self.context.enter(memory.step)
        step = memory.step
        n_seqs = self._n_seqs(step)
        found = recurrence.run_state_space([values(part) for part in parts], net, memory.data, inputs, n_seqs)
        return like(parts[0], found.to(parts[0].data.math))

    def gate_rows(self, x: Tensor, scores: Tensor) -> Tensor:
        return like(x, values(x).float() * torch.sigmoid(values(scores).float()))

    def scale_queries(self, q: Tensor, attn_scaling: AttentionScaling, step: StepInputs) -> Tensor:
        positions = self.context.enter(step).positions[: len(values(q))]
        n_periods = torch.div(positions + attn_scaling.offset, attn_scaling.period, rounding_mode="floor")
        factors = 1 + attn_scaling.beta * torch.log1p(n_periods.float())
        return like(q, (values(q).float() * factors[:, None]).to(values(q).dtype))

    def gather_rows(self, x: Tensor, step: StepInputs) -> Tensor:
        inputs = self.context.enter(step)
        n = step.limits.n_rows if self.context.inside else step.n_rows
        return made(rows.gather(values(x), inputs, n), Rows.LOGITS, x.data.math)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return like(x, values(x).float() * factor)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return like(x, torch.tanh(values(x).float() / cap) * cap)

    def clip(self, x: Tensor, limit: float) -> Tensor:
        return like(x, values(x).clamp(-limit, limit))

    def _n_seqs(self, step: StepInputs) -> int:
        return step.limits.n_seqs if self.context.inside else step.n_seqs


def row_norm(norm: AddedNorm) -> linear.RowNorm:
    x = values(norm.x)
    return linear.RowNorm(x, x, values(norm.y), norm.gain.data, norm.eps, norm.scale)


def open_device(deterministic: bool = False, ahead: Ahead | None = None) -> CudaBackend:
    """The backend on this machine's GPU, or on the CPU where Triton interprets its kernels."""
    if not interprets() and (problem := build_problem()):
        raise ConfigError(f"The cuda backend cannot run here: {problem}.")
    backend = CudaBackend("cpu" if interprets() else "cuda", deterministic)
    if os.environ.get(VARIABLE) == "1":
        time_ops(backend)
    if ahead:
        backend.sampler.load_kernels(ahead)
    return backend
