"""A codec in numbers."""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Its layers with attention."""

    n_layers: int
    width: int
    n_heads: int
    head_dim: int
    ffn_width: int
    window: int  # rows that a row sees, itself among them
    rope_theta: float
    eps: float


@dataclass(frozen=True, slots=True)
class CodecSizes:
    """A codec that makes sound of frames of codes."""

    layers: LayerSizes
    n_codes: int  # codes of a frame
    n_entries: int  # vectors that a code chooses from
    code_width: int
    latent_width: int
    width: int  # channels of the first of the blocks that make sound
    upsampling: tuple[int, ...]  # rows that a row becomes, before these blocks
    rates: tuple[int, ...]  # likewise, by block
    sample_rate: int

    @property
    def n_samples(self) -> int:
        """Samples of a frame."""
        return prod(self.upsampling) * prod(self.rates)

    @property
    def frames_a_second(self) -> float:
        return self.sample_rate / self.n_samples
