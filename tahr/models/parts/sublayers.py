"""Decoder layers: an attention and an MLP sublayer around a residual stream."""

from typing import Protocol

from tahr.backends.api import LayerShape, Tensor
from tahr.models.parts.stream import ForwardPass, NormedInput, ResidualStream
from tahr.models.parts.weights import Norm


class Sublayer(Protocol):
    """One half of a decoder layer: the normed stream in, what to add to it out."""

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor: ...


class Mixer(Sublayer, Protocol):
    """The half in which tokens read each other, through what the layer remembers of their sequence."""

    @property
    def memory(self) -> LayerShape:
        """The layer's memory."""


class DecoderLayer:
    """Mix tokens, then transform each: a norm before either half, after it, or both. A parallel layer's halves read the
    same rows, and what they give is added to them at once."""

    def __init__(
        self,
        mix: Mixer,
        ffn: Sublayer,
        norms: tuple[Norm | None, Norm | None] = (None, None),
        after: tuple[Norm, Norm] | None = None,
        parallel: bool = False,
    ):
        self.memory = mix.memory
        self.halves: tuple[Sublayer, Sublayer] = mix, ffn
        self.norms = norms
        self.after = after
        self.parallel = parallel

    def mix(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Let tokens read each other."""
        stream.add(self._half(0, run, stream))

    def transform(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Work on each token alone."""
        stream.add(self._half(1, run, stream.without_pending() if self.parallel else stream))

    def _half(self, i: int, run: ForwardPass, stream: ResidualStream) -> Tensor:
        delta = self.halves[i](run, NormedInput(stream, self.norms[i]))
        return self.after[i].apply(run.backend, delta) if self.after else delta
