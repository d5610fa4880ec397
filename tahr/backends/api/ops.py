"""Every op: what each computes, and the numerics it promises."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from tahr.backends.api import recurrence
from tahr.backends.api.arguments import (
    Activation,
    AddedNorm,
    AttentionScaling,
    AttentionSpec,
    DeltaNet,
    ExpertMLPs,
    Rope,
    Rotation,
    StateSpace,
)
from tahr.backends.api.frame_ops import FrameOps
from tahr.backends.api.memory import KVShape, LayerMemory
from tahr.backends.api.step import StepInputs
from tahr.backends.api.tensors import Floats, JoinedLinears, Linear, Tensor, Vector, Weight
from tahr.errors import UnsupportedModel

Net = TypeVar("Net", DeltaNet, StateSpace)


class Ops(FrameOps):
    """The ops of a device. Fused ops have default bodies of smaller ones: right everywhere, fast where overridden.

    Recurrent ones have default bodies that compute on the host.
    """

    stores_cross: ClassVar[bool] = False  # steps read where `store_cross` stores from arrays of the host
    runs_drafters: ClassVar[bool] = False  # steps of drafters were tried

    def check_attention(self, spec: AttentionSpec, shape: KVShape, n_heads: int) -> None:
        """Refuse, when a model is loaded, a layer whose attention this backend cannot compute."""

    def check_drafter(self) -> None:
        """Refuse, when a model is loaded, a drafter that reads rows of its layers, where none has run yet."""
        if not self.runs_drafters:
            raise UnsupportedModel(
                f"Drafters that are trained for a model do not run on the {self.name} backend yet: take a smaller "
                "model of the same vocabulary, --spec-ngram, or the cpu backend."
            )

    def check_delta_net(self, net: DeltaNet) -> None:
        """Refuse, when a model is loaded, a recurrent layer that this backend cannot compute."""
        self.check_host_body(type(self).delta_net is Ops.delta_net, "a gated delta rule")

    def check_state_space(self, net: StateSpace) -> None:
        """Refuse, when a model is loaded, nets that this backend cannot run."""
        self.check_host_body(type(self).state_space is Ops.state_space, "a selective state space")

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

    def add_rms_norm(
        self,
        x: Tensor,
        y: Tensor,
        gain: Vector,
        eps: float,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """(s, rms_norm(s)) for s = x + scale * y: the seam between two blocks of a residual stream."""
        s = self.add(x, y, scale)
        return s, self.rms_norm(s, gain, eps)

    @abstractmethod
    def head_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        """Every `gain.width` columns of a row RMS-normed by themselves."""

    def check_head_layer_norm(self) -> None:
        """Refuse, when a model is loaded, one whose heads are layer-normed, where this backend cannot."""
        self.check_host_body(type(self).head_layer_norm is Ops.head_layer_norm, "layer norms of single heads")

    def head_layer_norm(self, x: Tensor, gain: Vector, eps: float, n_heads: int) -> Tensor:
        """Every head of a row layer-normed by itself, without biases; `gain` holds the gains of all heads."""
        rows = self.read(x)
        heads = rows.reshape(len(rows), n_heads, -1)
        centred = heads - heads.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        normed = centred / np.sqrt(variance + np.float32(eps))
        return self.rows_like(x, normed.reshape(rows.shape) * self.vector_values(gain))

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

        relu2 is max(gate, 0) squared, quick_gelu is gate * sigmoid(1.702 gate).

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
        """cos then sin of position * inv_freq (product in f32): [n_tokens, 2 * len(inv_freq)]. Once per step.

        Positions are `rope_positions` in steps that have them.
        """

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

    def check_cross(self) -> None:
        """Refuse, when a model is loaded, one whose tokens look at rows of an encoder, where this backend cannot."""
        if not self.stores_cross:
            raise UnsupportedModel(
                f"This model's tokens look at the rows of a recording, which the {self.name} backend does not have "
                "yet: choose the cpu backend, or another model."
            )

    def store_cross(self, keys: Tensor, values: Tensor, rotation: Rotation, memory: LayerMemory) -> None:
        """The key and value of row i go to the place `step.row_target[i]` of a layer of `step.target_memory`, each as
        `rope_and_cache` stores it."""
        step = memory.step
        places = np.broadcast_to(step.row_target, (memory.group + 1, len(step.row_target)))
        stored = replace(memory, step=replace(step, slot_mapping=places))
        self.rope_and_cache([keys, keys, values], rotation, stored)

    def delta_net(self, parts: Sequence[Tensor], net: DeltaNet, memory: LayerMemory) -> Tensor:
        """Apply `net` to (queries, keys and values as one; z; beta; alpha): [n, n_v_heads * v_dim].

        The layer's state is [state_width] per sequence; in it, a sequence goes on from where its last step ended.
        """
        host_net = self.with_host_vectors(net)
        rows = [np.array(self.read(part)) for part in parts]
        out = recurrence.delta_net(rows, host_net, memory)
        return self.rows_like(parts[0], out)

    def state_space(self, parts: Sequence[Tensor], net: StateSpace, memory: LayerMemory) -> Tensor:
        """Apply `net` to (z; x, B and C as one; dt): [n, n_heads * head_dim]. The state is like `delta_net`'s."""
        host_net = self.with_host_vectors(net)
        rows = [np.array(self.read(part)) for part in parts]
        out = recurrence.state_space(rows, host_net, memory)
        return self.rows_like(parts[0], out)

    def vector_values(self, vector: Vector) -> Floats:
        """A vector on the host: the layer norm of zeros has it as a bias, and nothing else."""
        zeros = self.tensor(np.zeros((1, vector.width), np.float32))
        return np.array(self.read(self.layer_norm(zeros, vector, vector, 1.0))[0])

    def with_host_vectors(self, net: Net) -> Net:
        """A copy of the net with its vectors on the host."""
        changes: dict[str, Any] = {}
        for field in fields(net):
            value = getattr(net, field.name)
            if isinstance(value, Vector):
                changes[field.name] = Vector(value.width, self.vector_values(value))
        return replace(net, **changes)

    @abstractmethod
    def gate_rows(self, x: Tensor, scores: Tensor) -> Tensor:
        """x * sigmoid(scores), one score `[n, 1]` per row."""

    @abstractmethod
    def scale_queries(self, q: Tensor, attn_scaling: AttentionScaling, step: StepInputs) -> Tensor:
        """The rows of every token, multiplied by what `attn_scaling` says for its position."""

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
