"""Arguments that belong together in one op."""

from dataclasses import dataclass
from typing import Literal

from tahr.backends.api.tensors import Floats, Vector

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
class Routing:
    """How tokens choose experts: softmax over all experts, the best `n_active`, renormalised to sum 1 or not."""

    n_active: int
    renormalise: bool
