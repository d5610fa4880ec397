"""Arguments that belong together in one op."""

from dataclasses import dataclass
from typing import Literal

from tahr.backends.api.tensors import Floats, Linear, Tensor, Vector

Activation = Literal["silu", "gelu_tanh", "gelu"]
RopeStyle = Literal["halves", "pairs"]


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
class Rotation:
    """What happens to query and key heads before keys are cached: norms (if any), then rope by `cos_sin`."""

    cos_sin: Tensor
    style: RopeStyle
    norms: HeadNorms | None = None


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How one layer attends.

    `window` is how many positions a token sees, itself among them (0: all). A `softcap` c > 0 turns a score s into
    c * tanh(s / c). `sinks` are logits, one per query head, that take part in the softmax without a value. `cross`
    attends to keys of another text.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    causal: bool = True
    sinks: Vector | None = None
    cross: bool = False

    def extensions(self) -> list[str]:
        """What this spec asks for beyond causal attention to the sequence's own keys."""
        asked_for = {
            "bidirectional attention": not self.causal,
            "attention sinks": self.sinks,
            "cross-attention": self.cross,
        }
        return [name for name, asked in asked_for.items() if asked]


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens choose experts: softmax over all experts, the best `n_active`, renormalised to sum 1 or not."""

    n_active: int
    renormalise: bool


@dataclass(frozen=True, slots=True)
class ExpertMLPs:
    """The gated MLPs of all experts, as stacks of matrices without biases."""

    gate: Linear
    up: Linear
    down: Linear
    routing: Routing
    act: Activation


@dataclass(frozen=True, slots=True)
class AddedNorm:
    """The rows rms_norm(x + scale * y): how a residual stream enters a product."""

    x: Tensor
    y: Tensor
    gain: Vector
    eps: float
    scale: float
