"""The device's side of a meeting with the CPU: rows go to memory that both see, and results come back from there.

Each word of the exchange has one writer. The device posts a number behind a request and waits until the host has served
it; only the host ends that wait. What the host writes is read past all caches.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language import constexpr

BLOCK = 1024  # numbers that a program sends at a time
N_PROGRAMS = 16  # programs that wait and receive
LINE = 32  # words of a cache line, and of a neighbour that is fetched with it
POSTED = constexpr(0)  # places of words
SERVED = constexpr(LINE)
N_ROWS = constexpr(2 * LINE)
LAYER = constexpr(2 * LINE + 1)
N_WORDS = 4 * LINE


class ExpertRequest(NamedTuple):
    """Rows of one layer, with the experts and the shares that each has."""

    x: torch.Tensor
    experts: torch.Tensor
    shares: torch.Tensor
    layer: int
    renormalise: bool
    scale: float


class ExchangeMemory(NamedTuple):
    """Memory that host and device see, and the device's own notes."""

    words: torch.Tensor
    rows: torch.Tensor
    experts: torch.Tensor
    shares: torch.Tensor
    result: torch.Tensor
    notes: torch.Tensor  # the number of the last request, and programs that have sent their part of the next


@triton.jit(do_not_specialize=["begin", "layer", "n_rows"])
def send_kernel(
    words, to_rows, to_experts, to_shares, notes, counts, x, experts, shares, begin, n_rows, layer, scale, x_stride,
    width, n_active: constexpr, renormalise: constexpr, has_counts: constexpr, block: constexpr,
    choices: constexpr,
):  # fmt: skip
    """Write a part of a row; the last program to do so posts the request."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n_live = n_rows
    if has_counts:
        n_live = tl.minimum(tl.maximum(tl.load(counts) - begin, 0), n_rows)
    if row < n_live:
        cols = part * block + tl.arange(0, block)
        found = tl.load(x + row * x_stride + cols, mask=cols < width, other=0.0)
        tl.store(to_rows + row * width + cols, found.to(tl.float32), mask=cols < width)
        if part == 0:
            at = tl.arange(0, choices)
            share = tl.load(shares + row * n_active + at, mask=at < n_active, other=0.0)
            if renormalise:
                share = share / tl.sum(share, 0)
            tl.store(to_shares + row * n_active + at, share * scale, mask=at < n_active)
            expert = tl.load(experts + row * n_active + at, mask=at < n_active, other=0)
            tl.store(to_experts + row * n_active + at, expert.to(tl.int32), mask=at < n_active)
    tl.debug_barrier()
    n_programs = tl.num_programs(0) * tl.num_programs(1)
    if tl.atomic_add(notes + 1, 1, sem="acq_rel", scope="sys") == n_programs - 1:
        number = tl.load(notes) + 1
        tl.store(notes, number)
        tl.store(notes + 1, 0)
        tl.store(words + N_ROWS, n_live)
        tl.store(words + LAYER, layer)
        tl.debug_barrier()
        tl.atomic_xchg(words + POSTED, number, sem="release", scope="sys")


@triton.jit(do_not_specialize=["n_rows"])
def receive_kernel(out, words, result, notes, n_rows, width, n_programs: constexpr, block: constexpr):
    """Wait until the last request was served, and read some rows of what came of it."""
    number = tl.load(notes)
    while tl.load(words + SERVED, volatile=True) != number:
        pass
    n_live = tl.load(words + N_ROWS, volatile=True)
    for first in range(0, n_rows, n_programs):
        row = first + tl.program_id(0)
        for begin in range(0, width, block):
            cols = begin + tl.arange(0, block)
            mask = (cols < width) & (row < n_rows)
            found = tl.load(result + row * width + cols, mask=mask & (row < n_live), other=0.0, volatile=True)
            tl.store(out + row * width + cols, found, mask=mask)


def send(shared: ExchangeMemory, request: ExpertRequest, counts: torch.Tensor | None, begin: int) -> None:
    """Post a request; of rows from `begin` on, `counts` says how many are alive."""
    n_rows, width = request.x.shape
    n_active = request.experts.shape[1]
    grid = (n_rows, triton.cdiv(width, BLOCK))
    send_kernel[grid](
        shared.words, shared.rows, shared.experts, shared.shares, shared.notes,
        shared.notes if counts is None else counts, request.x, request.experts, request.shares, begin, n_rows,
        request.layer, request.scale, request.x.stride(0), width, n_active, request.renormalise, counts is not None,
        BLOCK, triton.next_power_of_2(n_active),
    )  # fmt: skip


def receive(shared: ExchangeMemory, out: torch.Tensor) -> None:
    """Wait for the result of the last request."""
    n_rows, width = out.shape
    block = min(2048, triton.next_power_of_2(width))
    n = min(triton.next_power_of_2(n_rows), N_PROGRAMS)
    receive_kernel[(n,)](out, shared.words, shared.result, shared.notes, n_rows, width, n, block)
