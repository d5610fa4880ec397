"""Experts that lie in the host's memory: steps send rows there and wait for what the CPU makes of them.

The CPU backend records the experts of a layer as a tape, a native thread runs it, and no Python runs between layers:
see `native/experts/expert_worker.h`, and `kernels/meeting.py` for the device's side.
"""

import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

import torch

from tahr import _native as native
from tahr.backends.api import ExpertMLPs, Linear, StepCheck, Vector, Weight
from tahr.backends.cpu.backend import CpuBackend
from tahr.backends.cpu.expert_tapes import ExchangeSizes, ExpertTapes, open_host, refuse_form
from tahr.backends.cuda.compiling import COMPILE_ONLY
from tahr.backends.cuda.kernels.experts import choose, weighed
from tahr.backends.cuda.kernels.meeting import LINE, N_WORDS, ExchangeMemory, ExpertRequest, receive, send
from tahr.backends.cuda.pinned import PinnedBlock
from tahr.errors import LoadError, OffloadError
from tahr.weights.tensor import HostTensor

MOST_ROWS = 512  # rows of a request: a longer step makes several, so that the watchdog hears of each
STALL_S = 10.0  # limit of a request
WAIT_S = 1.0  # between two looks at whether the device still works
PAGE = 4096


class HostExchange:
    """Memory that host and device see, and the worker that serves it."""

    def __init__(self, sizes: ExchangeSizes, device: torch.device, stall_s: float):
        pairs = (sizes.most_rows, sizes.n_active)
        shapes = ((N_WORDS,), (sizes.most_rows, sizes.width), pairs, pairs, (sizes.most_rows, sizes.n_out))
        n_bytes = [-(-4 * prod(shape) // PAGE) * PAGE for shape in shapes]
        memory, self._block = host_memory(sum(n_bytes), device)
        parts = memory.split(n_bytes)
        words, experts = (parts[i].view(torch.int32) for i in (0, 2))
        rows, shares, result = (parts[i].view(torch.float32) for i in (1, 3, 4))
        notes = torch.zeros(2, dtype=torch.int32, device=device)
        self.memory = ExchangeMemory(words, rows, experts, shares, result, notes)
        self.worker = native.ExpertWorker(
            posted=words.data_ptr(),
            served=words[LINE:].data_ptr(),
            facts=words[2 * LINE :].data_ptr(),
            rows=rows.data_ptr(),
            experts=experts.data_ptr(),
            shares=shares.data_ptr(),
            result=result.data_ptr(),
            **sizes._asdict(),
            stall_s=stall_s,
        )
        self.n_checked = 0  # requests that a step has been asked about


def host_memory(n_bytes: int, device: torch.device) -> tuple[torch.Tensor, PinnedBlock | None]:
    """Zeros that the device sees, and what keeps them locked."""
    if device.type == "cpu":
        return torch.zeros(n_bytes, dtype=torch.uint8), None
    block = PinnedBlock(n_bytes)
    if not block.is_pinned:
        raise LoadError(
            f"The system locks no {n_bytes / 1e6:.0f} MB of memory, which experts on the host need to meet the GPU: "
            "raise the limit of locked memory (ulimit -l), or leave out cpu_experts."
        )
    return block.memory, block


class HostLayer(NamedTuple):
    """The experts of one layer: their number in an exchange."""

    mlps: ExpertMLPs  # kept, so that its id stays its own
    exchange: HostExchange
    number: int


class RequestSpan(NamedTuple):
    """Requests of an exchange after `first` up to `last`."""

    exchange: HostExchange
    first: int
    last: int


class HostExperts:
    """The experts of a backend that are computed on the CPU. Steps run one after the other, on one stream."""

    def __init__(self, device: torch.device, stall_s: float = STALL_S, cpu: CpuBackend | None = None):
        self.cpu = cpu or open_host()
        self.n_stacks = 0
        self.device = device
        self._stall_s = stall_s
        self._exchanges: dict[ExchangeSizes, tuple[HostExchange, ExpertTapes]] = {}
        self.layers: dict[int, HostLayer] = {}
        self._captured: Counter[HostExchange] = Counter()
        weakref.finalize(self, end, self._exchanges, device)

    def weight(self, tensor: HostTensor) -> Weight:
        """Take a stack of matrices."""
        refuse_form(tensor)
        weight = self.cpu.weight(tensor)
        self.n_stacks += 1
        return replace(weight, kernel=f"{weight.kernel}, on the host")

    def weight_bytes(self, tensor: HostTensor) -> int:
        """The host's memory that a stack takes, told without its data."""
        refuse_form(tensor)
        return self.cpu.weight_bytes(tensor)

    def run(self, x: torch.Tensor, scores: torch.Tensor, mlps: ExpertMLPs, counts: torch.Tensor | None) -> torch.Tensor:
        """Each row through its experts, in f32; `counts` is the number of rows that are alive, None if all are."""
        layer = self._layer(mlps)
        out = torch.empty((len(x), mlps.down.weight.n_rows), dtype=torch.float32, device=x.device)
        shares, experts = choose(scores, mlps.routing)
        shares, renormalise, scale, scales_input = weighed(shares, experts, mlps.routing)
        shares = shares.contiguous()  # choices within groups are parts of wider rows
        experts = experts.contiguous()
        how = (False, 1.0) if scales_input else (renormalise, scale)
        for begin in range(0, len(x), MOST_ROWS):
            some = slice(begin, begin + MOST_ROWS)
            request = ExpertRequest(x[some], experts[some], shares[some], layer.number, *how)
            self._expect(layer.exchange)
            send(layer.exchange.memory, request, counts, begin)
            receive(layer.exchange.memory, out[some])
        return out

    def _expect(self, exchange: HostExchange) -> None:
        """Say that a request comes now, or whenever the graph that is being captured runs."""
        if COMPILE_ONLY.active:
            return
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._captured[exchange] += 1
        else:
            exchange.worker.expect(1)

    def take_captured(self) -> Counter[HostExchange]:
        """The requests of all steps captured since the last call."""
        captured = self._captured
        self._captured = Counter()
        return captured

    def step_check(self) -> StepCheck:
        """A call that waits for the requests of the steps so far, and raises if one has failed that is not older than
        the last such call."""
        spans: list[RequestSpan] = []
        for exchange, _ in self._exchanges.values():
            last = exchange.worker.n_expected
            spans.append(RequestSpan(exchange, exchange.n_checked, last))
            exchange.n_checked = last
        return partial(check_all, spans, self.device)

    def _layer(self, mlps: ExpertMLPs) -> HostLayer:
        if id(mlps) not in self.layers:
            sizes = ExchangeSizes(MOST_ROWS, mlps.gate.weight.n_cols, mlps.routing.n_active, mlps.down.weight.n_rows)
            if sizes not in self._exchanges:
                made = HostExchange(sizes, self.device, self._stall_s), ExpertTapes(self.cpu, sizes)
                self._exchanges[sizes] = made
            exchange, tapes = self._exchanges[sizes]
            self.layers[id(mlps)] = HostLayer(mlps, exchange, tapes.add(exchange.worker, with_host_biases(mlps)))
        return self.layers[id(mlps)]


def with_host_biases(mlps: ExpertMLPs) -> ExpertMLPs:
    """Experts with biases that the CPU reads. It is told experts and shares, so it needs no vectors of the router."""
    routing = replace(mlps.routing, bias=None, factors=None)
    return replace(mlps, gate=biased(mlps.gate), up=biased(mlps.up), down=biased(mlps.down), routing=routing)


def biased(linear: Linear) -> Linear:
    bias = linear.bias
    return replace(linear, bias=bias and Vector(bias.width, bias.data.cpu().numpy()))


def check_all(spans: Sequence[RequestSpan], device: torch.device) -> None:
    """Wait until requests are served, and raise why one has failed."""
    for exchange, first, last in spans:
        while not exchange.worker.wait(last, WAIT_S):
            if device.type == "cuda":
                torch.cuda.current_stream().query()  # raises what ended the device
        if reason := exchange.worker.take_failure(first, last):
            raise OffloadError(
                f"Experts on the host: {reason}. The request was given up; look at what else runs on this machine, "
                "then ask again."
            )


def expect(requests: Counter[HostExchange]) -> None:
    """Say that a graph is about to make these requests."""
    for exchange, n in requests.items():
        exchange.worker.expect(n)


LEFT: list[object] = []  # memory of threads that hang


def end(exchanges: dict[ExchangeSizes, tuple[HostExchange, ExpertTapes]], device: torch.device) -> None:
    """End the threads; steps that are on their way are served before."""
    if device.type == "cuda":
        with suppress(RuntimeError):
            torch.cuda.synchronize()
    for exchange, tapes in exchanges.values():
        if not exchange.worker.close():
            LEFT.append((exchange, tapes))
