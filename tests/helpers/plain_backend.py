"""The least that a backend can be: the abstract methods, and the default body of every other one."""

from collections.abc import Sequence

from tahr.backends.api import (
    Activation,
    AttentionScaling,
    AttentionSpec,
    Backend,
    Bytes,
    ExpertMLPs,
    Floats,
    KVShape,
    KVStore,
    LayerMemory,
    Linear,
    MemoryLayout,
    Rope,
    Rotation,
    StepInputs,
    StepLimits,
    Tensor,
    Vector,
    Weight,
)
from tahr.backends.reference.backend import ReferenceBackend
from tahr.weights.tensor import HostTensor


class PlainBackend(Backend):
    """The reference computes; nothing but the abstract methods reaches it."""

    name = "plain"
    summary = "plain: the abstract methods alone"
    kv_dtypes = ReferenceBackend.kv_dtypes

    def __init__(self) -> None:
        self._reference = ReferenceBackend()

    # ---- memory -----------------------------------------------------------------------------------------------

    def weight(self, tensor: HostTensor) -> Weight:
        return self._reference.weight(tensor)

    def vector(self, values: Floats) -> Vector:
        return self._reference.vector(values)

    def tensor(self, values: Floats) -> Tensor:
        return self._reference.tensor(values)

    def read(self, tensor: Tensor) -> Floats:
        return self._reference.read(tensor)

    def step_inputs(self, limits: StepLimits) -> StepInputs:
        return self._reference.step_inputs(limits)

    def paged_layer(self, shape: KVShape, n_pages: int, layout: MemoryLayout) -> Bytes:
        return self._reference.paged_layer(shape, n_pages, layout)

    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        return self._reference.read_pages(kv, pages, group)

    def write_pages(self, kv: KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        self._reference.write_pages(kv, pages, layers, group)

    # ---- ops --------------------------------------------------------------------------------------------------

    def embed(self, table: Weight, step: StepInputs, scale: float = 1.0) -> Tensor:
        return self._reference.embed(table, step, scale)

    def embed_positions(self, table: Weight, step: StepInputs) -> Tensor:
        return self._reference.embed_positions(table, step)

    def rms_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        return self._reference.rms_norm(x, gain, eps)

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return self._reference.add(x, y, scale)

    def head_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        return self._reference.head_norm(x, gain, eps)

    def columns(self, x: Tensor, begin: int, width: int) -> Tensor:
        return self._reference.columns(x, begin, width)

    def join_heads(self, x: Tensor, y: Tensor, n_heads: int) -> Tensor:
        return self._reference.join_heads(x, y, n_heads)

    def head_linears(self, x: Tensor, stack: Linear) -> Tensor:
        return self._reference.head_linears(x, stack)

    def layer_norm(self, x: Tensor, gain: Vector, bias: Vector | None, eps: float) -> Tensor:
        return self._reference.layer_norm(x, gain, bias, eps)

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        return self.add_adapters(x, self._reference.linear(x, linear), linear)

    def activate(self, gate: Tensor, up: Tensor | None, act: Activation) -> Tensor:
        return self._reference.activate(gate, up, act)

    def experts(self, x: Tensor, scores: Tensor, mlps: ExpertMLPs) -> Tensor:
        return self._reference.experts(x, scores, mlps)

    def cos_sin(self, step: StepInputs, rope: Rope) -> Tensor:
        return self._reference.cos_sin(step, rope)

    def rope_and_cache(self, qkv: Sequence[Tensor], rotation: Rotation, memory: LayerMemory) -> Tensor:
        return self._reference.rope_and_cache(qkv, rotation, memory)

    def attention(self, q: Tensor, spec: AttentionSpec, memory: LayerMemory) -> Tensor:
        return self._reference.attention(q, spec, memory)

    def gate_rows(self, x: Tensor, scores: Tensor) -> Tensor:
        return self._reference.gate_rows(x, scores)

    def scale_queries(self, q: Tensor, attn_scaling: AttentionScaling, step: StepInputs) -> Tensor:
        return self._reference.scale_queries(q, attn_scaling, step)

    def gather_rows(self, x: Tensor, step: StepInputs) -> Tensor:
        return self._reference.gather_rows(x, step)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return self._reference.scale(x, factor)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return self._reference.softcap(x, cap)

    def clip(self, x: Tensor, limit: float) -> Tensor:
        return self._reference.clip(x, limit)
