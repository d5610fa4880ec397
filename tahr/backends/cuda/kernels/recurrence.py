"""Recurrent layers: a convolution per channel, then a matrix per head that goes from token to token."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.api import DeltaNet, StateSpace

BLOCK = 256  # channels of a program
BLOCK_V = 32  # columns of a head's matrix that a program keeps


@triton.jit
def channel_at(x, state, start, offset, channels, cols, is_new, n_past):
    """The input of channels `offset` tokens after the first of a step: before it, what the state remembers."""
    # Columns that are read from the rows of the step, or from the state.
    n_here, n_before = tl.where(offset >= 0, channels, 0), tl.where((offset < 0) & (is_new == 0), channels, 0)
    here = tl.load(x + (start + offset).to(tl.int64) * channels + cols, mask=cols < n_here, other=0.0)
    before = tl.load(state + (offset + n_past) * channels + cols, mask=cols < n_before, other=0.0)
    return here.to(tl.float32) + before


@triton.jit
def conv_kernel(
    mixed, x, state, conv, bias, query_start, positions, slots, counts, state_width, channels,
    has_bias: constexpr, kernel: constexpr, block: constexpr,
):  # fmt: skip
    """One program per sequence and block of channels."""
    seq = tl.program_id(0)
    if seq >= tl.load(counts + 2):
        return
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask, start, end = cols < channels, tl.load(query_start + seq), tl.load(query_start + seq + 1)
    is_new = tl.load(positions + start) == 0
    state += tl.load(slots + seq).to(tl.int64) * state_width
    for offset in range(end - start):
        total = tl.zeros((block,), tl.float32)
        if has_bias:
            total += tl.load(bias + cols, mask=mask, other=0.0)
        for j in tl.static_range(kernel):
            tap = tl.load(conv + j * channels + cols, mask=mask, other=0.0)
            past = channel_at(x, state, start, offset - (kernel - 1) + j, channels, cols, is_new, kernel - 1)
            total += tap * past
        tl.store(mixed + (start + offset).to(tl.int64) * channels + cols, total * tl.sigmoid(total), mask=mask)
    # A place is read by no later one than itself, so those before it may be overwritten.
    for j in tl.static_range(kernel - 1):
        last = channel_at(x, state, start, end - start - (kernel - 1) + j, channels, cols, is_new, kernel - 1)
        tl.store(state + j * channels + cols, last, mask=mask)


@triton.jit
def rule_kernel(
    out, mixed, beta, alpha, decay, dt_bias, state, query_start, positions, slots, counts, state_width, channels,
    matrices, n_k, n_v, k_dim, v_dim, root, tiled: constexpr, block_k: constexpr, block_v: constexpr,
):  # fmt: skip
    """One program per sequence, value head and block of the columns of its matrix."""
    seq, head = tl.program_id(0), tl.program_id(1)
    if seq >= tl.load(counts + 2):
        return
    k_head = head % n_k if tiled else head // (n_v // n_k)
    rows, cols = tl.arange(0, block_k), tl.program_id(2) * block_v + tl.arange(0, block_v)
    in_key, in_value = rows < k_dim, cols < v_dim
    start, end = tl.load(query_start + seq), tl.load(query_start + seq + 1)
    state += tl.load(slots + seq).to(tl.int64) * state_width + matrices + head * k_dim * v_dim
    at = rows[:, None] * v_dim + cols[None, :]
    mask = in_key[:, None] & in_value[None, :]
    is_new = tl.load(positions + start) == 0
    n_rows = tl.where(is_new, 0, k_dim)
    memory = tl.load(state + at, mask=(rows < n_rows)[:, None] & in_value[None, :], other=0.0)
    for offset in range(end - start):
        token = (start + offset).to(tl.int64)
        row = mixed + token * channels
        q = tl.load(row + k_head * k_dim + rows, mask=in_key, other=0.0)
        k = tl.load(row + (n_k + k_head) * k_dim + rows, mask=in_key, other=0.0)
        v = tl.load(row + 2 * n_k * k_dim + head * v_dim + cols, mask=in_value, other=0.0)
        q = q / tl.sqrt(tl.sum(q * q, 0) + 1e-6) / root
        k = k / tl.sqrt(tl.sum(k * k, 0) + 1e-6)
        rate = tl.load(alpha + token * n_v + head).to(tl.float32) + tl.load(dt_bias + head)
        rate = tl.where(rate > 20.0, rate, tl.log(1.0 + tl.exp(tl.minimum(rate, 20.0))))
        memory = memory * tl.exp(tl.load(decay + head) * rate)
        learned = tl.sigmoid(tl.load(beta + token * n_v + head).to(tl.float32))
        delta = (v - tl.sum(memory * k[:, None], 0)) * learned
        memory += k[:, None] * delta[None, :]
        answer = tl.sum(memory * q[:, None], 0)
        tl.store(out + (token * n_v + head) * v_dim + cols, answer, mask=in_value)
    tl.store(state + at, memory, mask=mask)


@triton.jit
def space_kernel(
    out, mixed, dt, decay, dt_bias, skip, state, query_start, positions, slots, counts, state_width, channels,
    matrices, n_heads, n_shared, width, state_dim, head_dim, group_width, block_s: constexpr, block_d: constexpr,
):  # fmt: skip
    """One program per sequence, head and block of the columns of its matrix."""
    seq, head = tl.program_id(0), tl.program_id(1)
    if seq >= tl.load(counts + 2):
        return
    rows, cols = tl.arange(0, block_s), tl.program_id(2) * block_d + tl.arange(0, block_d)
    in_state, in_head = rows < state_dim, cols < head_dim
    start, end = tl.load(query_start + seq), tl.load(query_start + seq + 1)
    state += tl.load(slots + seq).to(tl.int64) * state_width + matrices + head * state_dim * head_dim
    at = rows[:, None] * head_dim + cols[None, :]
    n_rows = tl.where(tl.load(positions + start) == 0, 0, state_dim)
    memory = tl.load(state + at, mask=(rows < n_rows)[:, None] & in_head[None, :], other=0.0)
    first = width + head // n_shared * state_dim
    for offset in range(end - start):
        token = (start + offset).to(tl.int64)
        row = mixed + token * channels
        x = tl.load(row + head * head_dim + cols, mask=in_head, other=0.0)
        b = tl.load(row + first + rows, mask=in_state, other=0.0)
        c = tl.load(row + first + group_width + rows, mask=in_state, other=0.0)
        t = tl.load(dt + token * n_heads + head).to(tl.float32) + tl.load(dt_bias + head)
        t = tl.where(t > 20.0, t, tl.log(1.0 + tl.exp(tl.minimum(t, 20.0))))
        memory = memory * tl.exp(tl.load(decay + head) * t) + b[:, None] * (x * t)[None, :]
        answer = tl.sum(memory * c[:, None], 0) + tl.load(skip + head) * x
        tl.store(out + token * width + head * head_dim + cols, answer, mask=in_head)
    tl.store(state + at, memory, mask=in_state[:, None] & in_head[None, :])


def sequences(net: DeltaNet | StateSpace, inputs: Any) -> tuple[Any, ...]:
    """Inputs of a step that kernels with a state per sequence read."""
    return inputs.query_start, inputs.positions, inputs.state_slots, inputs.counts, net.state_width, net.channels


def convolved(
    x: torch.Tensor, net: DeltaNet | StateSpace, state: torch.Tensor, step: tuple[Any, ...], n_seqs: int
) -> torch.Tensor:
    """The convolved channels, in f32; rows of padding are zero."""
    mixed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    bias = net.conv_bias if isinstance(net, StateSpace) else None
    conv_kernel[(n_seqs, triton.cdiv(net.channels, BLOCK))](
        mixed, x, state, net.conv.data, mixed if bias is None else bias.data, *step, bias is not None, net.kernel, BLOCK
    )
    return mixed


def run_state_space(
    parts: Sequence[torch.Tensor], net: StateSpace, state: torch.Tensor, inputs: Any, n_seqs: int
) -> torch.Tensor:
    """The rows of every token in f32; rows of padding hold anything finite."""
    z, xbc, dt = (part.contiguous() for part in parts)
    step = sequences(net, inputs)
    mixed = convolved(xbc, net, state, step, n_seqs)
    out = torch.zeros((len(z), net.width), dtype=torch.float32, device=z.device)
    space_kernel[(n_seqs, net.n_heads, triton.cdiv(net.head_dim, BLOCK_V))](
        out, mixed, dt, net.decay.data, net.dt_bias.data, net.skip.data, state, *step, (net.kernel - 1) * net.channels,
        net.n_heads, net.n_heads // net.n_groups, net.width, net.state_dim, net.head_dim, net.n_groups * net.state_dim,
        triton.next_power_of_2(net.state_dim), BLOCK_V,
    )  # fmt: skip
    gated = out * torch.nn.functional.silu(z.float())
    if net.gain is None:
        return gated
    groups = gated.view(len(out), net.n_norm_groups, -1)
    normed = groups * torch.rsqrt(groups.square().mean(dim=2, keepdim=True) + net.eps)
    return normed.view_as(out) * net.gain.data


def run_delta_net(
    parts: Sequence[torch.Tensor], net: DeltaNet, state: torch.Tensor, inputs: Any, n_seqs: int
) -> torch.Tensor:
    """The rows of every token in f32; rows of padding hold anything finite."""
    qkv, z, beta, alpha = (part.contiguous() for part in parts)
    step = sequences(net, inputs)
    mixed = convolved(qkv, net, state, step, n_seqs)
    out = torch.zeros((len(qkv), net.n_v_heads * net.v_dim), dtype=torch.float32, device=qkv.device)
    rule_kernel[(n_seqs, net.n_v_heads, triton.cdiv(net.v_dim, BLOCK_V))](
        out, mixed, beta, alpha, net.decay.data, net.dt_bias.data, state, *step, (net.kernel - 1) * net.channels,
        net.n_k_heads, net.n_v_heads, net.k_dim, net.v_dim, net.k_dim**0.5, net.tiled,
        triton.next_power_of_2(net.k_dim), BLOCK_V,
    )  # fmt: skip
    heads = out.view(len(out), net.n_v_heads, net.v_dim)
    normed = heads * torch.rsqrt(heads.square().mean(dim=2, keepdim=True) + net.eps) * net.gain.data
    return normed.view_as(out) * torch.nn.functional.silu(z.float())
