"""Arguments that belong together in one op."""

from dataclasses import dataclass
from typing import Literal

from tahr.backends.api.tensors import Floats, Linear, Tensor, Vector

Activation = Literal["silu", "gelu_tanh", "gelu", "sigmoid", "relu2", "clamped_swiglu", "quick_gelu"]
RopeStyle = Literal["halves", "pairs"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: angle = position * inv_freq[i], cos and sin multiplied by `scale`.

    `halves` rotates (x[i], x[i + d/2]), as Hugging Face checkpoints do; `pairs` rotates (x[2i], x[2i + 1]).

    With `axes`, frequency i takes its position from that row of `StepInputs.rope_positions` in steps that have them:
    in blocks or interleaved, of images as of texts.
    """

    inv_freq: Floats
    style: RopeStyle = "halves"
    scale: float = 1.0
    axes: tuple[int, ...] = ()  # axis by frequency; empty: the first for all


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norm gains applied to each query and each key head before rope."""

    query: Vector
    key: Vector
    eps: float


@dataclass(frozen=True, slots=True)
class Rotation:
    """Changes to query and key heads before keys are cached: norms (if any), then rope by `cos_sin`.

    `key_mean` is what the keys of all tokens have in common, [n_kv_heads * head_dim]. A constant added to every key
    changes all scores of a query alike, which softmax does not see: keys stored as q8_0 go without it.
    """

    cos_sin: Tensor
    style: RopeStyle
    norms: HeadNorms | None = None
    key_mean: Vector | None = None


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How one layer attends.

    `window` is how many positions a token sees, itself among them (0: all). A token that is not `causal` sees as many
    after itself too, if its sequence has them in the step or in its pages. `chunked` windows do not move with the
    token: it sees what follows the last multiple of `window`, and itself. A `softcap` c > 0 turns a score s into
    c * tanh(s / c). `sinks` are logits, one per query head, that take part in the softmax without a value. `slopes`,
    one per query head, add slope * (position of the key - position of the query) to a score (ALiBi).

    In cross-attention, which is not causal, the layer's group has the pages and lengths of another text. Where steps
    hold `whole` inputs, no token sees one that is not in its step.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    causal: bool = True
    sinks: Vector | None = None
    slopes: Vector | None = None
    chunked: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """The gated delta rule of one layer: linear attention whose memory of fixed size forgets and learns.

    Queries, keys and values go through a causal convolution of `kernel` taps and a SiLU, channel by channel; queries
    and keys are brought to length 1, queries then divided by sqrt(k_dim). For every value head, a matrix [k_dim, v_dim]
    is multiplied by exp(decay * softplus(alpha + dt_bias)), gets key * (value - what it recalls for the key) *
    sigmoid(beta) added, and gives what it recalls for the query. That is RMS-normed head by head and multiplied by
    silu(z). Value head h reads key head h // (n_v_heads / n_k_heads), or h % n_k_heads if `tiled`.
    """

    n_k_heads: int
    n_v_heads: int
    k_dim: int
    v_dim: int
    kernel: int
    tiled: bool
    conv: Vector  # [kernel * channels]: tap after tap, the oldest first
    decay: Vector  # [n_v_heads]
    dt_bias: Vector  # [n_v_heads]
    gain: Vector  # [v_dim]
    eps: float

    @property
    def channels(self) -> int:
        return 2 * self.n_k_heads * self.k_dim + self.n_v_heads * self.v_dim

    @property
    def state_width(self) -> int:
        """The last inputs of every channel, oldest first, then the matrices."""
        return (self.kernel - 1) * self.channels + self.n_v_heads * self.k_dim * self.v_dim


@dataclass(frozen=True, slots=True)
class StateSpaceSizes:
    """The sizes of a selective state space."""

    n_heads: int
    head_dim: int
    n_groups: int  # groups of heads that share inputs and outputs
    state_dim: int
    kernel: int
    n_norm_groups: int = 1  # parts of a row that are normed by themselves

    @property
    def width(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def channels(self) -> int:
        return self.width + 2 * self.n_groups * self.state_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace(StateSpaceSizes):
    """The selective state space of one layer (Mamba-2): linear attention whose memory of fixed size decays.

    x, B and C go through a causal convolution of `kernel` taps and a SiLU, channel by channel. For every head, a matrix
    [state_dim, head_dim] is multiplied by exp(decay * t), gets B * x * t added for t = softplus(dt + dt_bias), and
    gives what it holds for C, plus skip * x. That is multiplied by silu(z); with a `gain`, each of `n_norm_groups`
    equal parts of the row is then RMS-normed. `n_heads / n_groups` neighbouring heads share B and C.
    """

    conv: Vector  # [kernel * channels]: tap after tap, the oldest first
    conv_bias: Vector | None  # [channels]
    decay: Vector  # [n_heads]
    dt_bias: Vector  # [n_heads]
    skip: Vector  # [n_heads]
    gain: Vector | None  # [width]
    eps: float

    @property
    def state_width(self) -> int:
        """The last inputs of every channel, oldest first, then the matrices."""
        return (self.kernel - 1) * self.channels + self.width * self.state_dim


@dataclass(frozen=True, slots=True)
class AttentionScaling:
    """Queries are multiplied by 1 + beta * log(1 + floor((position + offset) / period)): sharper in long texts."""

    beta: float
    period: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens choose experts: softmax (or `sigmoid`) of all scores, the best `n_active`, renormalised to sum 1 or
    not, multiplied by `scale` and by the `factors` of the experts.

    `bias` is added to the results for the choice alone. With `n_groups`, a token chooses among the experts of its
    `n_best_groups` best groups; a group is worth the sum of its `group_top` best experts (1 or 2).

    With `scales_input`, an expert reads its row times the share, and results are added as they are. With a `jitter`,
    experts are chosen one after the other, and the share of each is a softmax over itself and those of the others left
    whose score s is not far below its own m: (m - s) / max(|s|, m) <= 2 * jitter. Nothing else applies then.
    """

    n_active: int
    renormalise: bool
    sigmoid: bool = False
    bias: Vector | None = None
    n_groups: int = 0
    n_best_groups: int = 0
    group_top: int = 1
    scale: float = 1.0
    scales_input: bool = False
    jitter: float = 0.0
    factors: Vector | None = None  # [n_experts]


@dataclass(frozen=True, slots=True)
class ExpertMLPs:
    """The gated MLPs of all experts, as stacks of matrices; a bias is that of all of them, one after the other."""

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
