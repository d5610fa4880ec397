"""The CUDA backend: torch for memory and large products, Triton for everything an LLM does between them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from tahr.backends.api import (
    Activation,
    Backend,
    Bytes,
    Doubles,
    Floats,
    HeadNorms,
    Ints,
    KVShape,
    KVStore,
    Memory,
    Plan,
    Rope,
    RopeStyle,
    Routing,
    Rows,
    StepInputs,
    StepLimits,
    Tensor,
    Vector,
    Weight,
    layer_groups,
)
from tahr.backends.cuda import kv as cuda_kv
from tahr.backends.cuda.kernels import attention, experts, linear, rows
from tahr.backends.cuda.kernels import rope_kv as place
from tahr.backends.cuda.kernels import sample as draw
from tahr.backends.cuda.presence import describe, interprets
from tahr.backends.cuda.steps import Block, EagerPlan, GraphPlan, Stage, make_inputs
from tahr.backends.cuda.weights import joined, take
from tahr.errors import ConfigError
from tahr.weights.tensor import HostTensor

F32 = torch.float32


class CudaBackend(Backend):
    """One GPU. The residual stream is f32; what meets a matrix takes the type of the model's embedding table.

    A model in f32 is computed in f32 throughout (no TF32); in bf16 and f16 models the rows that enter products are
    rounded to that type and summed in f32. Block-quantised weights are stored dense in bf16 and activations are not
    rounded to int8.

    The fastest kernel depends on how many rows there are, so a row may change in its last bits with the size of its
    batch. A `deterministic` backend sums in one way whatever the size, and every row keeps to itself.
    """

    name = "cuda"
    kv_dtypes = tuple(cuda_kv.TYPES)

    def __init__(self, device: str = "cuda", deterministic: bool = False) -> None:
        self.device = torch.device(device)
        self.deterministic = deterministic
        self.draws = not deterministic  # a border between two tokens may lie elsewhere than on the host, by rounding
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self.summary = f"cuda: {', '.join(describe().values())}{', deterministic' if deterministic else ''}"
        self.stage = Stage()
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self._ropes: dict[int, tuple[Rope, torch.Tensor]] = {}
        self._landing = torch.empty(0)

    # ---- memory -----------------------------------------------------------------------------------------------

    def memory(self) -> Memory:
        if self.device.type == "cpu":
            return super().memory()
        free, total = torch.cuda.mem_get_info(self.device)
        held = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return Memory(free + held, total, own=True)  # what torch holds but does not use is free too

    def weight(self, tensor: HostTensor) -> Weight:
        return take(tensor, self.device)

    def vector(self, values: Floats) -> Vector:
        return Vector(len(values), torch.tensor(values, dtype=F32, device=self.device))

    def tensor(self, values: Floats) -> Tensor:
        return Tensor(values.shape[1], Rows.FIXED, Block(torch.tensor(values, dtype=F32, device=self.device), F32))

    def read(self, tensor: Tensor) -> Floats:
        live = tensor.data.live(tensor.rows)
        if tensor.data.inputs is None or self.device.type == "cpu":
            values: Floats = live.float().cpu().numpy()
            return values
        return self._land(live)

    def _land(self, live: torch.Tensor) -> Floats:
        """A plan's result through pinned memory that every such read shares. Waits even when there is nothing to
        fetch: from here on the step's inputs may be rewritten."""
        if self._landing.numel() < live.numel():
            self._landing = torch.empty(live.numel(), dtype=F32, pin_memory=True)
        landed = self._landing[: live.numel()].view(live.shape)
        landed.copy_(live.float(), non_blocking=True)
        torch.cuda.current_stream(self.device).synchronize()
        values: Floats = landed.numpy()
        return values

    def step_inputs(self, limits: StepLimits) -> StepInputs:
        return make_inputs(limits, self.device)

    def kv_store(
        self,
        shapes: Sequence[KVShape],
        n_pages: Sequence[int],
        page_size: int,
        dtype: str,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> KVStore:
        group_of = layer_groups(len(shapes), groups)
        layers = tuple(
            cuda_kv.make(shape, n_pages[group], page_size, dtype, self.device)
            for shape, group in zip(shapes, group_of, strict=True)
        )
        n_bytes = sum(layer.numel() * layer.element_size() for layer in layers)
        return KVStore(tuple(shapes), tuple(n_pages), group_of, page_size, dtype, n_bytes, layers)

    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        return [cuda_kv.read(layer, pages) for layer in kv.members(group)]

    def write_pages(self, kv: KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        for layer, content in zip(kv.members(group), layers, strict=True):
            cuda_kv.write(layer, pages, content)

    def copy_pages(self, kv: KVStore, pairs: Sequence[tuple[int, int]], group: int = 0) -> None:
        for layer in kv.members(group):
            cuda_kv.copy(layer, pairs)

    # ---- running ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        pass  # ops are on the stream already

    def record(self, step: Callable[[], Tensor]) -> Plan:
        inputs, result = self.stage.look(step)
        assert inputs is not None, "a step that reads no inputs need not be recorded"
        decodes = inputs.limits.n_tokens_per_seq == 1
        if decodes and self._pool is not None:
            del result  # its memory is the capture's to use
            return self._capture(step, inputs, self._pool)
        return EagerPlan(self.stage, step, inputs, result, padded=decodes)

    def _capture(self, step: Callable[[], Tensor], inputs: StepInputs, pool: tuple[int, int]) -> Plan:
        try:
            return GraphPlan(self.stage, step, inputs, pool)
        except Exception:
            self._pool = torch.cuda.graph_pool_handle()  # a capture that failed never lets go of its pool
            raise

    def draw(self, logits: Tensor, n_vocab: int, temperatures: Doubles, chances: Doubles) -> Ints:
        live = logits.data.live(logits.rows)
        with np.errstate(divide="ignore"):
            heats = np.where(temperatures == 0, 0, np.minimum(1 / temperatures, 1e30)).astype(np.float32)
        sent = (torch.from_numpy(values).to(self.device) for values in (heats, chances))
        tokens: Ints = draw.draw(live, n_vocab, *sent).cpu().numpy()
        return tokens

    def buckets(self, limits: StepLimits) -> Sequence[StepLimits]:
        sizes = [1 << i for i in range(limits.n_seqs.bit_length()) if 1 << i < limits.n_seqs] + [limits.n_seqs]
        decoding = [replace(limits, n_tokens=n, n_seqs=n, n_rows=n, n_tokens_per_seq=1) for n in sizes]
        return [*decoding, limits]

    # ---- ops --------------------------------------------------------------------------------------------------

    def embed(self, table: Weight, step: StepInputs, scale: float = 1.0) -> Tensor:
        inputs, values = self.stage.enter(step), table.data.values
        n = self._n_tokens(step)
        found = rows.gather(values, inputs.ids, inputs.counts, Rows.TOKENS.value, n, F32, scale)
        return Tensor(table.n_cols, Rows.TOKENS, Block(found, values.dtype))

    def rms_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        normed = rows.rms_norm(x.data.values, gain.data, eps, x.data.math)
        return like(x, normed)

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return like(x, torch.add(x.data.values.float(), y.data.values.float(), alpha=scale))

    def add_rms_norm(self, x: Tensor, y: Tensor, gain: Vector, eps: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        s, normed = rows.add_rms_norm(x.data.values, y.data.values, gain.data, eps, scale, x.data.math)
        return like(x, s), like(x, normed)

    def linear(self, x: Tensor, w: Weight, bias: Vector | None = None) -> Tensor:
        return like(x, self._multiply(x, w.data.values, None if bias is None else bias.data))

    def linears(self, x: Tensor, ws: Sequence[Weight], biases: Sequence[Vector | None] | None = None) -> list[Tensor]:
        one = joined(ws, biases or [None] * len(ws))
        if one is None:
            return super().linears(x, ws, biases)
        return [like(x, part) for part in self._multiply(x, one.values, one.bias).split(one.heights, dim=1)]

    def _multiply(self, x: Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x @ w.T + bias: f32 in our own tiles and for picked rows, which become logits; else the type of w."""
        values = x.data.values
        dtype = wider(x.data.math, w.dtype)
        if not self.deterministic and dtype != F32 and len(values) <= linear.N_VECTORS:
            return linear.vector_linear(values, w, bias, dtype)
        if self.deterministic or dtype == F32 or len(values) <= linear.FEW:
            return linear.tiled_linear(values, w, bias, dtype)
        return linear.blas_linear(values, w, bias, F32 if x.rows is Rows.PICKED else w.dtype)

    def activate(self, gate: Tensor, up: Tensor, act: Activation) -> Tensor:
        return like(gate, rows.activate(gate.data.values, up.data.values, act, gate.data.math))

    def experts(
        self, x: Tensor, scores: Tensor, gate: Weight, up: Weight, down: Weight, routing: Routing, act: Activation
    ) -> Tensor:
        mlp = experts.Mlp(gate.data.values, up.data.values, down.data.values, act)
        tile_size = experts.tile_size_for(len(x.data.values), self.deterministic)
        chosen = experts.assign(scores.data.values, routing, tile_size)
        dtype = wider(x.data.math, *(m.dtype for m in (mlp.gate, mlp.up, mlp.down)))
        return like(x, experts.run_experts(x.data.values, chosen, mlp, dtype))

    def cos_sin(self, step: StepInputs, rope: Rope) -> Tensor:
        inputs = self.stage.enter(step)
        if id(rope) not in self._ropes:  # the rope is kept too, so that its id stays its own
            self._ropes[id(rope)] = rope, torch.tensor(rope.inv_freq, dtype=F32, device=self.device)
        angle = inputs.positions[: self._n_tokens(step), None].float() * self._ropes[id(rope)][1]
        turned = torch.cat([angle.cos(), angle.sin()], dim=1) * rope.scale
        return Tensor(turned.shape[1], Rows.TOKENS, Block(turned, F32))

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
        inputs = self.stage.enter(step)
        gains = (norms.query.data, norms.key.data, norms.eps) if norms else None
        qkv = q.data.values, k.data.values, v.data.values
        store, slots = kv.layers[layer], inputs.slot_mapping[kv.group_of[layer]]
        return like(q, place.rope_and_cache(qkv, store, slots, angles.data.values, style, inputs, gains, q.data.math))

    def attention(
        self, q: Tensor, step: StepInputs, kv: KVStore, layer: int, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        inputs, store = self.stage.enter(step), kv.layers[layer]
        pages = inputs.page_tables[kv.group_of[layer]]
        dtype = attention.product_type(q.data.math, store.dtype)
        scoring = attention.Scoring(scale, window, softcap)
        call = attention.AttentionCall(q.data.values, store, pages, inputs, scoring, dtype)
        n_seqs = step.limits.n_seqs if self.stage.padded else step.n_seqs
        if self.deterministic:
            return like(q, attention.attend_exact(call, n_seqs))
        decodes = step.limits.n_tokens_per_seq == 1
        return like(q, attention.attend_decode(call) if decodes else attention.attend_mixed(call, n_seqs))

    def gather_rows(self, x: Tensor, step: StepInputs) -> Tensor:
        inputs, values = self.stage.enter(step), x.data.values
        n = step.limits.n_rows if self.stage.padded else step.n_rows
        picked = rows.gather(values, inputs.logit_rows, inputs.counts, Rows.PICKED.value, n, values.dtype)
        return Tensor(x.width, Rows.PICKED, Block(picked, x.data.math))

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return like(x, x.data.values.float() * factor)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return like(x, torch.tanh(x.data.values.float() / cap) * cap)

    def _n_tokens(self, step: StepInputs) -> int:
        return step.limits.n_tokens if self.stage.padded else step.n_tokens


def like(x: Tensor, values: torch.Tensor) -> Tensor:
    """New rows in place of x's."""
    return Tensor(values.shape[1], x.rows, Block(values, x.data.math))


def wider(math: torch.dtype, *stored: torch.dtype) -> torch.dtype:
    """The type products run in: f32 if anything is f32, else that of the matrices."""
    return F32 if F32 in (math, *stored) else stored[0]


def open_device(deterministic: bool = False) -> CudaBackend:
    """The backend on this machine's GPU, or on the CPU where Triton interprets its kernels."""
    if not interprets() and not torch.cuda.is_available():
        raise ConfigError(
            f"torch {torch.__version__} cannot use the GPU that is here. Install a build of torch for the driver's "
            "CUDA version, or use the cpu backend."
        )
    return CudaBackend("cpu" if interprets() else "cuda", deterministic)
