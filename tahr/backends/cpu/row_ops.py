"""Ops of the CPU backend that treat rows one by one, and how all its ops make and use rows."""

from collections.abc import Callable

import numpy as np

from tahr._native import address_of
from tahr.backends.api import (
    Activation,
    AttentionScaling,
    Backend,
    Extras,
    Ints,
    LayerMemory,
    Linear,
    Rope,
    Rows,
    StepInputs,
    Tensor,
    Vector,
)
from tahr.backends.cpu.memory import Buffer, Count, JoinedBuffer
from tahr.backends.cpu.queue import Queue, offer_quantised
from tahr.backends.cpu.sampling import edit_addresses
from tahr.backends.sampling.code_draws import CodeDraws


def axis_begins(step: StepInputs, rope: Rope, n_freqs: int) -> Ints:
    """By frequency, where the positions that it takes begin in `rope_positions`."""
    axes = np.array(rope.axes or (0,) * n_freqs, np.int32)
    return np.ascontiguousarray(axes * step.rope_positions.shape[1], np.int32)


class RowOps(Backend):
    """Appends to `_queue`, whichever that is at the moment."""

    _queue: Queue

    def _rows(self, width: int, rows: Rows, count: Count) -> Tensor:
        return Tensor(width, rows, Buffer(self._queue.arena, count, 4 * width))

    def _like(self, x: Tensor, width: int | None = None) -> Tensor:
        return self._rows(width or x.width, x.rows, x.data.count)

    def _per_token(self, step: StepInputs, width: int) -> Tensor:
        self._queue.keep(step)
        return self._rows(width, Rows.TOKENS, Count(step.counts, 0, step.limits.n_tokens))

    def _use(self, x: Tensor) -> int:
        """The address of a tensor that an op is going to read."""
        buffer: Buffer = x.data
        if buffer.arena is not self._queue.arena:
            self._queue.keep(buffer)
        self._queue.keep(buffer.count)
        return buffer.address

    def _keep_memory(self, memory: LayerMemory) -> None:
        """Keep alive what an op reads and writes of a layer's memory."""
        self._queue.keep(memory.step)
        self._queue.keep(memory.store)

    def _use_vector(self, vector: Vector | None) -> int:
        if vector is None:
            return 0
        self._queue.keep(vector.data)
        return address_of(vector.data)

    def rms_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        out = self._like(x)
        self._norm(x, None, gain, None, out, eps, 1.0)
        return out

    def add_rms_norm(
        self,
        x: Tensor,
        y: Tensor,
        gain: Vector,
        eps: float,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        total = self._like(x)
        out = self._like(x)
        self._norm(x, y, gain, total, out, eps, scale)
        return total, out

    def _norm(
        self, x: Tensor, y: Tensor | None, gain: Vector, total: Tensor | None, out: Tensor, eps: float, scale: float
    ) -> None:
        self._queue.tape.norm(
            n_rows=x.data.count.address,
            width=x.width,
            x=self._use(x),
            y=self._use(y) if y else 0,
            gain=self._use_vector(gain),
            sum=total.data.address if total else 0,
            out=out.data.address,
            eps=eps,
            scale=scale,
            quantised_out=offer_quantised(self._queue, out),
        )

    def head_norm(self, x: Tensor, gain: Vector, eps: float) -> Tensor:
        heads = {"n_heads": x.width // gain.width, "dim": gain.width, "gain": self._use_vector(gain), "eps": eps}
        return self._per_row(x, x.width, self._queue.tape.head_norm, **heads)

    def head_layer_norm(self, x: Tensor, gain: Vector, eps: float, n_heads: int) -> Tensor:
        nothing = dict.fromkeys(("y", "bias", "sum", "quantised_out"), 0)
        heads = {
            "n_heads": n_heads,
            "width": x.width // n_heads,
            "gain": self._use_vector(gain),
            "eps": eps,
            "scale": 1,
        }
        return self._per_row(x, x.width, self._queue.tape.layer_norm, **heads, **nothing)

    def columns(self, x: Tensor, begin: int, width: int) -> Tensor:
        return self._per_row(x, width, self._queue.tape.columns, width=width, x_width=x.width, begin=begin)

    def join_heads(self, x: Tensor, y: Tensor, n_heads: int) -> Tensor:
        dims = {"x_dim": x.width // n_heads, "y_dim": y.width // n_heads}
        return self._per_row(x, x.width + y.width, self._queue.tape.join_heads, n_heads=n_heads, y=self._use(y), **dims)

    def layer_norm(self, x: Tensor, gain: Vector, bias: Vector | None, eps: float) -> Tensor:
        out = self._like(x)
        self._layer_norm(x, None, (gain, bias), None, out, eps, 1.0)
        return out

    def add_layer_norm(
        self, x: Tensor, y: Tensor, gain: Vector, bias: Vector | None, eps: float, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        total = self._like(x)
        out = self._like(x)
        self._layer_norm(x, y, (gain, bias), total, out, eps, scale)
        return total, out

    def _layer_norm(
        self,
        x: Tensor,
        y: Tensor | None,
        gain_bias: tuple[Vector, Vector | None],
        total: Tensor | None,
        out: Tensor,
        eps: float,
        scale: float,
    ) -> None:
        self._queue.tape.layer_norm(
            n_rows=x.data.count.address,
            n_heads=1,
            width=x.width,
            x=self._use(x),
            y=self._use(y) if y else 0,
            gain=self._use_vector(gain_bias[0]),
            bias=self._use_vector(gain_bias[1]),
            sum=total.data.address if total else 0,
            out=out.data.address,
            eps=eps,
            scale=scale,
            quantised_out=offer_quantised(self._queue, out),
        )

    def add(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return self._add(x, self._use(y), scale)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return self._add(x, 0, factor)

    def _add(self, x: Tensor, y: int, scale: float) -> Tensor:
        return self._each_number(x, self._queue.tape.add, y=y, scale=scale)

    def activate(self, gate: Tensor, up: Tensor | None, act: Activation) -> Tensor:
        out = self._like(gate)
        self._queue.tape.activate(
            n_rows=gate.data.count.address,
            width=gate.width,
            gate=self._use(gate),
            up=self._use(up) if up else 0,
            out=out.data.address,
            act=act,
            quantised_out=offer_quantised(self._queue, out),
        )
        return out

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return self._each_number(x, self._queue.tape.softcap, cap=cap)

    def clip(self, x: Tensor, limit: float) -> Tensor:
        return self._each_number(x, self._queue.tape.clip, limit=limit)

    def _each_number(self, x: Tensor, op: Callable[..., None], **number: float) -> Tensor:
        return self._per_row(x, x.width, op, width=x.width, **number)

    def _per_row(self, x: Tensor, out_width: int, op: Callable[..., None], **more: float) -> Tensor:
        out = self._like(x, out_width)
        op(n_rows=x.data.count.address, x=self._use(x), out=out.data.address, **more)
        return out

    def scale_queries(self, q: Tensor, attn_scaling: AttentionScaling, step: StepInputs) -> Tensor:
        self._queue.keep(step)
        out = self._like(q)
        self._queue.tape.temper(
            n_rows=q.data.count.address,
            width=q.width,
            positions=address_of(step.positions),
            x=self._use(q),
            out=out.data.address,
            beta=attn_scaling.beta,
            period=attn_scaling.period,
            offset=attn_scaling.offset,
        )
        return out

    def take_rows(self, step: StepInputs, width: int, begin: int = 0, meets: Linear | None = None) -> Tensor:
        return self._with_rows(self._per_token(step, width), 0, step, False, begin)

    def with_rows(self, x: Tensor, step: StepInputs, add: bool = False, begin: int = 0) -> Tensor:
        return self._with_rows(self._like(x), self._use(x), step, add, begin)

    def _with_rows(self, out: Tensor, x: int, step: StepInputs, add: bool, begin: int) -> Tensor:
        buffer = step.rows
        assert buffer
        self._queue.keep(step)
        self._queue.tape.with_rows(
            n_rows=out.data.count.address,
            width=out.width,
            buffer_width=buffer.width,
            begin=begin,
            row_of=address_of(step.row_of),
            buffer=address_of(buffer.data),
            x=x,
            out=out.data.address,
            add=add,
        )
        return out

    def store_rows(self, x: Tensor, step: StepInputs, begin: int = 0) -> None:
        buffer = step.target_rows
        assert buffer
        self._queue.keep(step)
        self._queue.tape.store_rows(
            n_rows=x.data.count.address,
            width=x.width,
            buffer_width=buffer.width,
            begin=begin,
            row_target=address_of(step.row_target),
            x=self._use(x),
            buffer=address_of(buffer.data),
        )

    def choose(self, logits: Tensor, draw: CodeDraws) -> None:
        self._queue.keep(draw)
        self._queue.tape.choose(
            n_rows=logits.data.count.address,
            logits=self._use(logits),
            stride=logits.width,
            n_vocab=logits.width,
            params=address_of(draw.params),
            edits=edit_addresses(draw.edits),
            tokens=address_of(draw.codes),
            ids=address_of(draw.ids),
        )

    def join_rows(self, x: Tensor, n: int, step: StepInputs) -> Tensor:
        self._queue.keep(step)
        buffer: Buffer = x.data
        count = Count(step.counts, 1, buffer.count.limit // n)
        return Tensor(n * x.width, Rows.LOGITS, JoinedBuffer(buffer, count, n))

    def cos_sin(self, step: StepInputs, rope: Rope) -> Tensor:
        inv_freq = np.ascontiguousarray(rope.inv_freq, np.float32)
        self._queue.keep(inv_freq)
        out = self._per_token(step, 2 * len(inv_freq))
        turns = bool(step.limits.extras & Extras.ROPE)
        begins = axis_begins(step, rope, len(inv_freq)) if turns else None
        self._queue.keep(begins)
        self._queue.tape.cos_sin(
            n_rows=out.data.count.address,
            n_freqs=len(inv_freq),
            positions=address_of(step.rope_positions if turns else step.positions),
            inv_freq=address_of(inv_freq),
            axis_begins=0 if begins is None else address_of(begins),
            out=out.data.address,
            scale=rope.scale,
        )
        return out

    def gather_rows(self, x: Tensor, step: StepInputs) -> Tensor:
        self._queue.keep(step)
        out = self._rows(x.width, Rows.LOGITS, Count(step.counts, 1, step.limits.n_rows))
        self._queue.tape.gather_rows(
            n_rows=out.data.count.address,
            width=x.width,
            rows=address_of(step.logit_rows),
            x=self._use(x),
            out=out.data.address,
        )
        return out
