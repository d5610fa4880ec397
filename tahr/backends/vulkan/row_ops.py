"""Ops of the Vulkan backend that treat rows one by one, and how all its ops make and use rows."""

from collections.abc import Sequence

import numpy as np

from tahr.backends import api
from tahr.backends.api import (
    INT8_BLOCK,
    Rows,
    Tensor,
    Vector,
)
from tahr.backends.vulkan.memory import (
    Constants,
    DeviceMemory,
    RowBuffer,
    RowCount,
    Span,
)
from tahr.backends.vulkan.queue import (
    OpQueue,
    RoundedRows,
    address_of,
    packed,
)
from tahr.backends.vulkan.shaders import Kernels

# The ops of map.comp.
ADD, SCALE, SOFTCAP, CLIP, COLUMNS, GATE, GATHER, SCALE_QUERIES, JOIN, ACTIVATE, ACTIVATE_UP, COS_SIN = range(12)
# The activations of activation.glsl.
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "sigmoid": 3, "relu2": 4, "clamped_swiglu": 5, "quick_gelu": 6}
MAP_THREADS = 128
NORM_THREADS = (32, 64, 256, 512)
NORM_CODES_AT = 56  # bytes of constants before the address of codes


class VulkanRowOps(api.Backend):
    """Appends to `_queue`, whichever that is at the moment."""

    _queue: OpQueue
    _kernels: Kernels
    _memory: DeviceMemory
    _constants: Constants

    def _rows(self, width: int, rows: Rows, count: RowCount) -> Tensor:
        return Tensor(width, rows, RowBuffer(self._queue.arena, count, 4 * width))

    def _like(self, x: Tensor, width: int | None = None) -> Tensor:
        return self._rows(width or x.width, x.rows, x.data.count)

    def _per_token(self, step: api.StepInputs, width: int) -> Tensor:
        inputs = self._queue.keep_step(step)
        return self._rows(width, Rows.TOKENS, inputs.count(step, 0, step.limits.n_tokens))

    def _map(
        self,
        op: int,
        out: Tensor,
        x: Tensor | Span | None,
        y: Tensor | Span | None = None,
        sizes: tuple[int, int] = (0, 0),
        factor: float = 0.0,
        activation: int = 0,
    ) -> Tensor:
        """An op of map.comp; `sizes` are its two whole numbers."""
        both = (x, y)
        spans = [self._span(each) for each in both]
        widths = [each.width if isinstance(each, Tensor) else 0 for each in both]
        count = out.data.count
        addresses = [count.span.address, *map(address_of, spans), out.data.span.address]
        constants = packed(
            addresses,
            out.width,
            *widths,
            *sizes,
            float(factor),
            float(activation),
        )
        self._by_number("map", out, constants, spans, op)
        return out

    def _span(self, operand: Tensor | Span | None) -> Span | None:
        """Where an operand lies."""
        if isinstance(operand, Tensor):
            return self._queue.use(operand)
        return operand

    def _by_number(
        self,
        kernel: str,
        out: Tensor,
        constants: bytes,
        reads: Sequence[Span | None],
        *choices: int,
    ) -> None:
        """An op whose invocations each make one number of a row."""
        count = out.data.count
        n_threads = self._kernels.threads(MAP_THREADS)
        groups = -(-out.width // n_threads), max(1, count.limit), 1
        pipeline = self._kernels.get(kernel, n_threads, *choices)
        self._queue.add(pipeline, groups, constants, [count.span, *reads], [out.data.span])

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        out = self._like(x)
        return self._map(ADD, out, x, y, factor=scale)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        out = self._like(x)
        return self._map(SCALE, out, x, factor=factor)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        out = self._like(x)
        return self._map(SOFTCAP, out, x, factor=cap)

    def clip(self, x: Tensor, limit: float) -> Tensor:
        out = self._like(x)
        return self._map(CLIP, out, x, factor=limit)

    def columns(self, x: Tensor, begin: int, width: int) -> Tensor:
        out = self._like(x, width)
        return self._map(COLUMNS, out, x, sizes=(begin, 0))

    def join_heads(self, x: Tensor, y: Tensor, n_heads: int) -> Tensor:
        out = self._like(x, x.width + y.width)
        return self._map(JOIN, out, x, y, sizes=(x.width // n_heads, y.width // n_heads))

    def gate_rows(self, x: Tensor, scores: Tensor) -> Tensor:
        assert scores.width == 1
        out = self._like(x)
        return self._map(GATE, out, x, scores)

    def activate(self, gate: Tensor, up: Tensor | None, act: api.Activation) -> Tensor:
        op = ACTIVATE_UP if up else ACTIVATE
        out = self._like(gate)
        return self._map(op, out, gate, up, activation=ACTIVATIONS[act])

    def scale_queries(self, q: Tensor, attn_scaling: api.AttentionScaling, step: api.StepInputs) -> Tensor:
        positions = self._array(step, "positions")
        sizes = attn_scaling.period, attn_scaling.offset
        out = self._like(q)
        return self._map(SCALE_QUERIES, out, q, positions, sizes, attn_scaling.beta)

    def cos_sin(self, step: api.StepInputs, rope: api.Rope) -> Tensor:
        frequencies = self._frequencies(rope)
        out = self._per_token(step, 2 * len(rope.inv_freq))
        return self._map(COS_SIN, out, frequencies, self._array(step, "positions"), factor=rope.scale)

    def gather_rows(self, x: Tensor, step: api.StepInputs) -> Tensor:
        inputs = self._queue.keep_step(step)
        out = self._rows(x.width, Rows.LOGITS, inputs.count(step, 1, step.limits.n_rows))
        return self._map(GATHER, out, x, self._array(step, "logit_rows"))

    def _frequencies(self, rope: api.Rope) -> Span:
        """The frequencies of a rope on the device."""
        raise NotImplementedError

    def _array(self, step: api.StepInputs, name: str) -> Span:
        """An array of a step's inputs on the device."""
        inputs = self._queue.keep_step(step)
        return inputs.span.part(4 * inputs.begins[name], 4 * getattr(step, name).size)

    # ---- norms ------------------------------------------------------------------------------------------------

    def rms_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        return self._norm(x, None, (gain, None), eps)[1]

    def add_rms_norm(
        self,
        x: Tensor,
        y: Tensor,
        gain: Vector,
        eps: float,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        return self._norm(x, y, (gain, None), eps, scale)

    def layer_norm(self, x: Tensor, gain: Vector, bias: Vector | None, eps: float) -> Tensor:
        return self._norm(x, None, (gain, bias), eps, is_centred=True)[1]

    def add_layer_norm(
        self,
        x: Tensor,
        y: Tensor,
        gain: Vector,
        bias: Vector | None,
        eps: float,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        return self._norm(x, y, (gain, bias), eps, scale, is_centred=True)

    def head_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        return self._norm(x, None, (gain, None), eps, n_heads=x.width // gain.width)[1]

    def _norm(
        self,
        x: Tensor,
        y: Tensor | None,
        gain_bias: tuple[Vector, Vector | None],
        eps: float,
        scale: float = 1.0,
        is_centred: bool = False,
        n_heads: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """The sum (x where there is no y) and what is normed."""
        out = self._like(x)
        total = self._like(x) if y else x
        gain, bias = (vector.data if vector else None for vector in gain_bias)
        width = x.width // n_heads
        spans = [self._queue.use(x), self._queue.use(y) if y else None, gain, bias]
        written = [total.data.span if y else None, out.data.span]
        count = x.data.count
        addresses = [
            count.span.address,
            *map(address_of, spans),
            *map(address_of, written),
            0,
            0,
        ]
        constants = packed(addresses, width, n_heads, float(eps), float(scale))
        n_threads = next((n for n in NORM_THREADS if width <= 4 * n), NORM_THREADS[-1])
        choices = is_centred, y is not None, bias is not None, width % 4 != 0, count.limit > 1
        pipeline = self._kernels.get("norm", self._kernels.threads(n_threads), *choices)
        groups = n_heads, max(1, count.limit), 1
        op = self._queue.add(pipeline, groups, constants, [count.span, *spans], written)
        if n_heads == 1:
            self._offer(out, op, NORM_CODES_AT)
        return total, out

    # ---- rows that are rounded by the op that makes them ------------------------------------------------------

    def _offer(self, x: Tensor, op: int, push_at: int) -> None:
        """The op that makes x can round it as well."""
        if x.width % INT8_BLOCK == 0:
            x.data.rounded = RoundedRows(self._queue, x.data.count, x.width)
            x.data.rounded.offer(self._queue, op, push_at)

    def _rounded(self, x: Tensor) -> RoundedRows:
        """x as int8 codes, made once."""
        found: RoundedRows | None = x.data.rounded
        if found is None or not found.ask(self._queue):
            found = x.data.rounded = RoundedRows(self._queue, x.data.count, x.width)
            found.made()
            count = x.data.count
            own = self._queue.use(x)
            addresses = [
                count.span.address,
                own.address,
                found.codes.address,
                found.scales.address,
            ]
            n_threads = self._kernels.threads(MAP_THREADS)
            groups = -(-x.width // n_threads), max(1, count.limit), 1
            pipeline = self._kernels.get("quantise", n_threads)
            written = [found.codes, found.scales]
            constants = packed(addresses, x.width)
            self._queue.add(pipeline, groups, constants, [count.span, own], written)
        return found

    def _frozen(self, values: np.ndarray) -> Span:
        """A constant array on the device."""
        return self._memory.holding(values)
