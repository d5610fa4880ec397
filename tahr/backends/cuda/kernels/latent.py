"""Attention to a compressed key per token, whose last numbers are its value; and products head by head.

Every token works through its own keys, 16 heads at a time. That is right in any step, and a row never depends on other
rows; several tokens of a prompt do not share what they load.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.cuda.kernels.attention import AttentionCall
from tahr.backends.cuda.kernels.common.card import shared_bytes
from tahr.backends.cuda.kernels.common.dependent import OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rows import narrow
from tahr.backends.cuda.kernels.experts import EXACT, down_kernel
from tahr.backends.cuda.kernels.linear import FEW, TYPES

HEADS = 16  # heads of a program: the smallest tile matrix units take
KEYS, FEW_KEYS = 32, 16  # keys of a tile; few, where numbers are so wide that smaller cards hold no more


@triton.jit
def sequence_at(token, query_start, n_seqs):
    """The sequence a token of the step belongs to."""
    low, high = n_seqs * 0, n_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start + middle) <= token:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["page_table", "query_start", "positions", "counts", "table_stride", "page_size"])
def latent_kernel(
    out, q, keys, page_table, query_start, positions, counts, scale, table_stride, n_q, dim, n_rope, latent, page_size,
    dtype: constexpr, heads: constexpr, n_keys: constexpr, block_r: constexpr, block_l: constexpr,
):  # fmt: skip
    """One program per token and `heads` heads: all have the same key [rope | latent], and the latent is the value."""
    let_next_start()
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    if token >= tl.load(counts):
        return
    pages = page_table + sequence_at(token, query_start, tl.load(counts + 2)) * table_stride
    head, rope, cols = tl.program_id(1) * heads + tl.arange(0, heads), tl.arange(0, block_r), tl.arange(0, block_l)
    in_head, in_rope, in_latent = head[:, None] < n_q, rope[None, :] < n_rope, cols[None, :] < latent
    row = (token * n_q + head)[:, None]
    q_rope = tl.load(q + row * dim + rope[None, :], mask=in_head & in_rope, other=0.0).to(dtype)
    q_latent = tl.load(q + row * dim + n_rope + cols[None, :], mask=in_head & in_latent, other=0.0).to(dtype)
    best, weight = tl.full((heads,), float("-inf"), tl.float32), tl.zeros((heads,), tl.float32)
    total = tl.zeros((heads, block_l), tl.float32)
    end = tl.load(positions + token) + 1
    for first in range(0, end, n_keys):
        at = first + tl.arange(0, n_keys)
        inside = at < end
        page = tl.load(pages + at // page_size, mask=inside, other=0).to(tl.int64)
        offset = ((page * page_size + at % page_size) * dim)[:, None]
        k_rope = tl.load(keys + offset + rope[None, :], mask=inside[:, None] & in_rope, other=0.0).to(dtype)
        k_latent = tl.load(keys + offset + n_rope + cols[None, :], mask=inside[:, None] & in_latent, other=0.0).to(
            dtype
        )
        scores = tl.dot(q_latent, tl.trans(k_latent), input_precision="ieee")
        scores = tl.dot(q_rope, tl.trans(k_rope), scores, input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        p, decay = tl.exp(scores - higher[:, None]), tl.exp(best - higher)
        total = total * decay[:, None] + tl.dot(p.to(dtype), k_latent, input_precision="ieee")
        weight = weight * decay + tl.sum(p, 1)
        best = higher
    result = narrow(total / weight[:, None], out.dtype.element_ty)
    tl.store(out + row * latent + cols[None, :], result, mask=in_head & in_latent)


def attend_latent(call: AttentionCall, latent: int) -> torch.Tensor:
    """Attention of any step over one latent layer; rows of padding are zero."""
    n_tokens, n_rope = len(call.q), call.dim - latent
    block_r, block_l = (max(16, triton.next_power_of_2(width)) for width in (n_rope, latent))
    fits = (HEADS + KEYS) * (block_r + block_l) * call.dtype.itemsize <= shared_bytes(call.q.device)
    out = call.q.new_zeros((n_tokens, call.n_q * latent))
    latent_kernel[(n_tokens, triton.cdiv(call.n_q, HEADS))](
        out, call.q, call.store[0], call.pages, call.inputs.query_start, call.inputs.positions, call.inputs.counts,
        call.spec.scale, call.pages.stride(0), call.n_q, call.dim, n_rope, latent, call.page_size, TYPES[call.dtype],
        HEADS, KEYS if fits else FEW_KEYS, block_r, block_l, num_warps=4, num_stages=1, **OVERLAP,
    )  # fmt: skip
    return out


@cache  # kept for good: captured graphs point at them
def head_tiles(n_rows: int, n_heads: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """The pairs of rows and heads sorted by head, and of every tile of them its head, its begin and its end."""
    order = torch.arange(n_rows * n_heads).view(n_rows, n_heads).T.reshape(-1)
    heads = torch.arange(n_heads).repeat_interleave(-(-n_rows // FEW))
    begins = heads * n_rows + torch.arange(0, n_rows, FEW).repeat(n_heads)
    return tuple(found.contiguous().to(device) for found in (order, heads, begins, (heads + 1) * n_rows))


def head_linears(x: torch.Tensor, stack: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Every head of a row times its own matrix [n_out, n_cols], in f32: the down products of experts, one per head."""
    n_heads, n_out, n_cols = stack.shape
    x, tiles = x.contiguous(), head_tiles(len(x), n_heads, x.device)
    out = x.new_empty((len(x), n_heads * n_out), dtype=torch.float32)
    down_kernel[(len(tiles[1]) * triton.cdiv(n_out, EXACT.n),)](
        out, x, stack, x, *tiles, n_heads, n_out, n_cols, False, TYPES[dtype], False, FEW, EXACT.n, EXACT.k, **OVERLAP
    )
    return out
