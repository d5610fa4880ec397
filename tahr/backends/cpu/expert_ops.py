"""Ops of the CPU backend whose rows go through some matrices of a stack: those of experts, or of heads."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tahr import _native as native
from tahr._native import address_of
from tahr.backends.api import ExpertMLPs, Ints, Linear, Routing, Tensor
from tahr.backends.cpu.memory import Arena, Buffer, Routes
from tahr.backends.cpu.pager import awaited
from tahr.backends.cpu.queue import QuantisedRows
from tahr.backends.cpu.row_ops import RowOps


class StackOps(RowOps):
    """Sorts pairs of a row and a matrix by their matrices, which then meet all their rows at once."""

    def head_linears(self, x: Tensor, stack: Linear) -> Tensor:
        """Multiply head by head, as experts do: row r has one pair per head, and a head's pairs share its matrix."""
        n_heads = stack.weight.n_stack
        out = self._like(x, stack.weight.n_stack * stack.weight.n_rows)
        assert x.width == n_heads * stack.weight.n_cols
        heads = all_heads(n_heads, max(1, x.data.count.limit))
        self._queue.keep(heads)
        routes = self._group(x, address_of(heads), n_heads, n_heads)
        quantised = self._quantised(x, [stack])
        with awaited(self._queue, [stack]):
            self._queue.tape.experts(
                x=self._use(x),
                quantised=quantised,
                jobs=[self._job(stack, out)],
                starts=routes.starts.address,
                order=routes.order.address,
                n_experts=n_heads,
                pairs_per_row=1,
            )
        return out

    def _job(self, linear: Linear, out: Tensor) -> "native.Job":
        packed = linear.weight.data.packed
        self._queue.keep(packed)
        return packed, out.data.address, self._use_vector(linear.bias)

    def _quantised(self, x: Tensor, linears: Sequence[Linear]) -> int:
        """The address of the rows as int8 blocks, made once per tensor and only if one of the matrices wants it."""
        assert all(
            x.width in (linear.weight.n_cols, linear.weight.n_stack * linear.weight.n_cols) for linear in linears
        )
        if all(linear.weight.data.packed.dense for linear in linears):
            return 0
        buffer: Buffer = x.data
        if buffer.quantised is None or not buffer.quantised.ask(self._queue):
            buffer.quantised = QuantisedRows(self._queue, buffer.count, x.width)
            out = buffer.quantised.rows.address
            self._queue.tape.quantise(n_rows=buffer.count.address, cols=x.width, x=self._use(x), out=out)
        address: int = buffer.quantised.rows.address
        return address

    def experts(self, x: Tensor, scores: Tensor, mlps: ExpertMLPs) -> Tensor:
        return self._routed_experts(x, self._route(x, scores, mlps.routing), mlps)

    def chosen_experts(self, x: Tensor, experts: Buffer, shares: Buffer, mlps: ExpertMLPs) -> Tensor:
        """`experts`, where somebody else has chosen those of every row, and their shares."""
        routes = self._group(x, experts.address, mlps.gate.weight.n_stack, mlps.routing.n_active)
        routes.shares = shares
        return self._routed_experts(x, routes, mlps)

    def _routed_experts(self, x: Tensor, routes: Routes, mlps: ExpertMLPs) -> Tensor:
        routing = mlps.routing
        gate, up = self._each_expert(x, [mlps.gate, mlps.up], routes, routing.n_active, soon=[mlps.down])
        if routing.scales_input:
            assert not mlps.gate.bias
            gate, up = (self._mix(part, part, routes, 1) for part in (gate, up))
        (each,) = self._each_expert(self.activate(gate, up, mlps.act), [mlps.down], routes, 1)
        if routing.scales_input:
            routes.shares = self._ones(x, routing.n_active)
        return self._mix(x, each, routes, routing.n_active)

    def _ones(self, x: Tensor, n_active: int) -> Buffer:
        """Shares of experts that have been told theirs already."""
        ones = Buffer(Arena(), x.data.count, 4 * n_active)
        ones.block.bytes.view(np.float32)[:] = 1
        self._queue.keep(ones)
        return ones

    def _mix(self, x: Tensor, each: Tensor, routes: Routes, n_active: int) -> Tensor:
        """The results of a row's experts as one."""
        assert routes.shares is not None
        out = self._like(x, each.width)
        self._queue.tape.mix(
            n_rows=x.data.count.address,
            width=each.width,
            n_active=n_active,
            shares=routes.shares.address,
            x=self._use(each),
            out=out.data.address,
        )
        return out

    def _route(self, x: Tensor, scores: Tensor, routing: Routing) -> Routes:
        """Choose each row's experts and sort the (row, expert) pairs by expert."""
        assert routing.n_active <= scores.width <= native.MAX_EXPERTS
        shares, chosen = (Buffer(self._queue.arena, x.data.count, 4 * routing.n_active) for _ in range(2))
        self._queue.tape.route(
            n_rows=x.data.count.address,
            scores=self._use(scores),
            n_experts=scores.width,
            n_active=routing.n_active,
            renormalise=routing.renormalise,
            sigmoid=routing.sigmoid,
            bias=self._use_vector(routing.bias),
            n_groups=routing.n_groups,
            n_best_groups=routing.n_best_groups,
            group_top=routing.group_top,
            scale=routing.scale,
            jitter=routing.jitter,
            factors=self._use_vector(routing.factors),
            experts=chosen.address,
            shares=shares.address,
        )
        routes = self._group(x, chosen.address, scores.width, routing.n_active)
        routes.shares = shares
        return routes

    def _group(self, x: Tensor, experts: int, n_experts: int, n_active: int) -> Routes:
        """Sort (row, expert) pairs by expert, given the experts of every row."""
        routes = Routes(self._queue.arena, x.data.count, n_experts, n_active)
        self._queue.tape.group(
            n_rows=x.data.count.address,
            experts=experts,
            starts=routes.starts.address,
            order=routes.order.address,
            n_experts=n_experts,
            n_active=n_active,
        )
        return routes

    def _each_expert(
        self, x: Tensor, linears: Sequence[Linear], routes: Routes, pairs_per_row: int, soon: Sequence[Linear] = ()
    ) -> list[Tensor]:
        """Every pair's row times its expert's matrices."""
        assert all(linear.weight.n_stack == routes.n_experts for linear in linears)
        outs = [self._rows(linear.weight.n_rows, x.rows, routes.n_pairs) for linear in linears]
        quantised = self._quantised(x, linears)
        with awaited(self._queue, linears, routes.starts.address, soon):
            self._queue.tape.experts(
                x=self._use(x),
                quantised=quantised,
                jobs=[self._job(linear, out) for linear, out in zip(linears, outs, strict=True)],
                starts=routes.starts.address,
                order=routes.order.address,
                n_experts=routes.n_experts,
                pairs_per_row=pairs_per_row,
            )
        return outs

    def gate_rows(self, x: Tensor, scores: Tensor) -> Tensor:
        assert scores.width == 1
        routes = self._route(x, scores, Routing(1, renormalise=False, sigmoid=True))
        return self._mix(x, x, routes, 1)


@lru_cache(maxsize=64)
def all_heads(n_heads: int, n_rows: int) -> Ints:
    """0 .. n_heads - 1 for every row."""
    return np.tile(np.arange(n_heads, dtype=np.int32), n_rows)
