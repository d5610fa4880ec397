"""The residual stream, its norms, and the state that sublayers share while a step is computed."""

from collections.abc import Mapping

from tahr.backends.api import (
    Activation,
    AddedNorm,
    Backend,
    JoinedLinears,
    KVStore,
    LayerMemory,
    Rope,
    StepInputs,
    Tensor,
)
from tahr.models.config.rope import RopeConfig
from tahr.models.parts.weights import Norm


class ForwardPass:
    """State that sublayers share while one step is computed: the device, the step, the memory of layers, ropes."""

    def __init__(
        self,
        backend: Backend,
        step: StepInputs,
        kv: KVStore,
        ropes: Mapping[RopeConfig, Rope],
        first_layer: int = 0,
    ):
        self.backend = backend
        self.step = step
        self.kv = kv
        self._ropes = ropes
        self._first_layer = first_layer  # the one whose memory is the store's first
        self.per_layer: Tensor | None = None  # input of all layers beside the stream
        self._cos_sin: dict[RopeConfig, Tensor] = {}

    def cos_sin(self, rope: RopeConfig) -> Tensor:
        """The cosines and sines of every token, computed once for all layers that share a rope."""
        if rope not in self._cos_sin:
            self._cos_sin[rope] = self.backend.cos_sin(self.step, self._ropes[rope])
        return self._cos_sin[rope]

    def memory(self, layer: int) -> LayerMemory:
        """The memory of a layer."""
        return LayerMemory(self.step, self.kv, layer - self._first_layer)


class ResidualStream:
    """The residual stream. What a sublayer adds is added only when the next norm reads it, so both are one op."""

    def __init__(self, backend: Backend, rows: Tensor, scale: float):
        self.backend = backend
        self.rows = rows
        self.scale = scale
        self.pending: Tensor | None = None

    def normed(self, norm: Norm | None) -> Tensor:
        """The rows through a norm (or as they are), everything added so far included."""
        if self.pending is None:
            return norm.apply(self.backend, self.rows) if norm else self.rows
        pending = self.pending
        self.pending = None
        if norm is None:
            self.rows = self.backend.add(self.rows, pending, self.scale)
            return self.rows
        self.rows, normed = norm.apply_to_sum(self.backend, self.rows, pending, self.scale)
        return normed

    def summed(self) -> Tensor:
        """The rows with everything added so far; what is pending stays so."""
        return self.rows if self.pending is None else self.backend.add(self.rows, self.pending, self.scale)

    def without_pending(self) -> "ResidualStream":
        """The stream as it was before the last addition: what the second half of a parallel layer reads."""
        return ResidualStream(self.backend, self.rows, self.scale)

    def take_pending(self, norm: Norm) -> AddedNorm:
        """Take the pending addition for the next norm, as an op that also returns the new rows of the stream."""
        assert self.pending is not None
        pending = self.pending
        self.pending = None
        return AddedNorm(self.rows, pending, norm.gain, norm.eps, self.scale)

    def add(self, delta: Tensor) -> None:
        """Add `delta` before the next norm."""
        self.pending = delta if self.pending is None else self.backend.add(self.pending, delta)

    def gather_rows(self, step: StepInputs) -> None:
        """Go on with the rows whose logits are wanted."""
        self.rows = self.backend.gather_rows(self.rows, step)
        self.pending = self.backend.gather_rows(self.pending, step) if self.pending else None


class NormedInput:
    """The residual stream as a sublayer reads it, once: through a norm, in one op with the product that follows."""

    def __init__(self, stream: ResidualStream, norm: Norm | None):
        self._stream = stream
        self._norm = norm

    def rows(self) -> Tensor:
        """The normed rows themselves."""
        return self._stream.normed(self._norm)

    def unnormed(self) -> Tensor:
        """The rows before the norm, everything added so far included; asked for after the normed ones."""
        return self._stream.normed(None)

    def linears(self, joined: JoinedLinears) -> list[Tensor]:
        """Several linears of the normed rows."""
        stream = self._stream
        norm = self._norm
        if stream.pending is None or norm is None or norm.centred:
            return stream.backend.linears(self.rows(), joined)
        stream.rows, results = stream.backend.norm_linears(stream.take_pending(norm), joined)
        return results

    def gated(self, gate_up: JoinedLinears, act: Activation) -> Tensor:
        """act(gate) * up of the normed rows."""
        stream = self._stream
        norm = self._norm
        if stream.pending is None or norm is None or norm.centred:
            return stream.backend.gated(self.rows(), gate_up, act)
        stream.rows, result = stream.backend.norm_gated(stream.take_pending(norm), gate_up, act)
        return result
