"""Mixtures of experts on a CUDA device."""

from typing import Protocol

import torch

from tahr.backends.api import ExpertMLPs, Tensor
from tahr.backends.cpu.weights import PackedMatrix
from tahr.backends.cuda.kernels import experts, linear
from tahr.backends.cuda.ops.device_rows import like, values
from tahr.backends.cuda.ops.step_ops import StepOps
from tahr.backends.cuda.ops.vectors import F32, wider


class HostRunner(Protocol):
    """Experts in the host's memory."""

    def run(self, x: torch.Tensor, scores: torch.Tensor, mlps: ExpertMLPs, counts: torch.Tensor | None) -> torch.Tensor:
        """Each row through its experts, in f32; `counts` is the number of rows that are alive, None if all are."""


class ExpertOps(StepOps):
    """The part of the backend that sends rows to experts."""

    _host_experts: HostRunner | None = None  # None: all experts are in the device's memory

    def experts(self, x: Tensor, scores: Tensor, mlps: ExpertMLPs) -> Tensor:
        if self._host_experts and isinstance(mlps.gate.weight.data, PackedMatrix):
            return like(x, self._host_experts.run(values(x), values(scores), mlps, self.context.counts(x.rows)))
        self.context.need(*(each.weight.data for each in (mlps.gate, mlps.up, mlps.down)))
        stacks = stacks_of(mlps)
        rows = values(x)
        routed = values(scores)
        routing = mlps.routing
        dtype = wider(x.data.math, stacks.gate.dtype, stacks.up.dtype, stacks.down.dtype)
        if len(rows) <= linear.N_VECTORS and dtype != F32 and not self.deterministic:
            return like(x, experts.run_few(rows, routed, routing, stacks, dtype))

        tile_size = experts.tile_size_for(routed, routing, self.deterministic)
        chosen = experts.assign(routed, routing, tile_size)
        return like(x, experts.run_experts(rows, chosen, stacks, dtype))


def stacks_of(mlps: ExpertMLPs) -> experts.ExpertStacks:
    """The matrices of experts, one stack for each of their linears."""
    linears = (mlps.gate, mlps.up, mlps.down)
    gate, up, down = (linear.weight.data for linear in linears)
    biases = [linear.bias.data for linear in linears if linear.bias]
    in_all = (biases[0], biases[1], biases[2]) if len(biases) == len(linears) else None
    return experts.ExpertStacks(gate, up, down, mlps.act, in_all)
