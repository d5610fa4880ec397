"""Decoder layers: an attention and an MLP sublayer around a residual stream."""

from typing import Protocol

from tahr.backends.api import LayerShape, Tensor
from tahr.models.parts.stream import ForwardPass, NormedInput, ResidualStream
from tahr.models.parts.weights import Norm


class Sublayer(Protocol):
    """A sublayer of a decoder layer: the normed stream in, its addition to the stream out."""

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor: ...


class Mixer(Sublayer, Protocol):
    """The sublayer in which tokens read each other, through the layer's memory of their sequence."""

    @property
    def memory(self) -> LayerShape:
        """The layer's memory."""


class DecoderLayer:
    """An attention sublayer, then an MLP: a norm before either, after it, or both. Sublayers of a parallel layer
    read the same rows, to which their results are added at once."""

    def __init__(
        self,
        attention: Mixer,
        ffn: Sublayer,
        norms: tuple[Norm | None, Norm | None] = (None, None),
        after: tuple[Norm, Norm] | None = None,
        parallel: bool = False,
    ):
        self.memory = attention.memory
        self.sublayers: tuple[Sublayer, Sublayer] = attention, ffn
        self.norms = norms
        self.after = after
        self.parallel = parallel

    def attention(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Let tokens read each other."""
        stream.add(self._sublayer(0, run, stream))

    def mlp(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Work on each token alone."""
        stream.add(self._sublayer(1, run, stream.without_pending() if self.parallel else stream))

    def _sublayer(self, i: int, run: ForwardPass, stream: ResidualStream) -> Tensor:
        delta = self.sublayers[i](run, NormedInput(stream, self.norms[i]))
        return self.after[i].apply(run.backend, delta) if self.after else delta
