"""Products with packed matrices, see `backends/cuda/layouts/packed.py`.

A few rows meet the codes themselves. For more, the matrix is made dense in a scratch and goes to the vendor's library.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from tahr.backends.api import Activation
from tahr.backends.cuda.kernels.common.dependent import OVERLAP, let_next_start, wait_for_previous
from tahr.backends.cuda.kernels.common.rows import gated, narrow
from tahr.backends.cuda.kernels.linear import TYPES
from tahr.backends.cuda.layouts.kinds import TABLES, UNIT
from tahr.backends.cuda.layouts.packed import CodedMatrix
from tahr.backends.cuda.layouts.presence import interprets

MOST_VECTORS = 4  # rows up to which the matrix is read once for each of them
# Words of codes that a program takes at a time from each of some weight rows, by bits; fewer where they index a table.
VECTOR_WORDS, VECTOR_ROWS, LOOKED_UP_ROWS = 512, {4: 16, 5: 8, 6: 8, 8: 8}, 4
DENSE_WORDS, DENSE_COLS = 128, 1024  # words that a program unpacks of a matrix, and columns of a row
_interprets = constexpr(interprets())


@triton.jit
def dot_bytes(w, x, total, signed: constexpr):
    """total + the products of the four bytes of w, signed or not, and the four signed bytes of x."""
    if _interprets:
        for j in tl.static_range(4):
            byte = (w << (24 - 8 * j)) >> 24 if signed else (w >> (8 * j)) & 255
            total += byte * ((x << (24 - 8 * j)) >> 24)
    elif signed:
        total = tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [w, x, total], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        total = tl.inline_asm_elementwise(
            "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [w, x, total], dtype=tl.int32, is_pure=True, pack=1
        )
    return total


@triton.jit
def for_words(blocks, block_n: constexpr, block_w: constexpr, lanes: constexpr):
    """Values of blocks, repeated for each of their words."""
    spread = tl.broadcast_to(blocks[:, :, None], (block_n, block_w // lanes, lanes))
    return tl.reshape(spread, (block_n, block_w))


@triton.jit
def load_words(
    codes, high, scales, outs, n_out, begin, n_words: constexpr, n_bits: constexpr, block_n: constexpr,
    block_w: constexpr,
):  # fmt: skip
    """Words of weight rows as they are stored: codes, high bits (twice, where there is one word) and scales."""
    lanes: constexpr = 8 if n_bits == 8 else 4  # words of a block
    n, block = begin + tl.arange(0, block_w), begin // lanes + tl.arange(0, block_w // lanes)
    rows, live = outs.to(tl.int64)[:, None], outs[:, None] < n_out
    word = tl.load(codes + rows * n_words + n[None, :], mask=live & (n < n_words)[None, :], other=0)
    at, mask = rows * (n_words // lanes) + block[None, :], live & (block < n_words // lanes)[None, :]
    pair = for_words(tl.load(scales + at, mask=mask, other=0), block_n, block_w, lanes)
    if n_bits == 6:
        upper = for_words(tl.load(high + at * 2, mask=mask, other=0), block_n, block_w, lanes)
        upper_odd = for_words(tl.load(high + at * 2 + 1, mask=mask, other=0), block_n, block_w, lanes)
    elif n_bits == 5:
        upper = for_words(tl.load(high + at, mask=mask, other=0), block_n, block_w, lanes)
        upper_odd = upper
    else:
        upper, upper_odd = word, word
    return word, upper, upper_odd, pair


@triton.jit
def code_bytes(word, upper, upper_odd, n, n_bits: constexpr):
    """The codes of words as bytes: those of even columns, and those of odd ones; of eight bits, all in both."""
    lane = (2 * (n % 4))[None, :]
    if n_bits == 8:
        even, odd = word, word
    else:
        even, odd = word & 0x0F0F0F0F, (word >> 4) & 0x0F0F0F0F
    if n_bits == 5:
        even |= ((upper >> lane) & 0x01010101) << 4
        odd |= ((upper >> (lane + 1)) & 0x01010101) << 4
    if n_bits == 6:
        even |= ((upper >> lane) & 0x03030303) << 4
        odd |= ((upper_odd >> lane) & 0x03030303) << 4
    return even, odd


@triton.jit
def two_scales(pair):
    """The two numbers of a block."""
    low = pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return low, (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def scales_of(pair, n, n_bits: constexpr, has_offset: constexpr):
    """The scale of words, and the offset where there is one."""
    lanes: constexpr = 8 if n_bits == 8 else 4
    a, b = two_scales(pair)
    if not has_offset:
        a = tl.where((n % lanes < lanes // 2)[None, :], a, b)
    return a, b


@triton.jit
def rounded_bytes(x_row, n, inside, first: constexpr, n_bits: constexpr, inverse, dtype: constexpr):
    """The columns of words as signed bytes: every other one from the first or the second on, or all of eight bits."""
    n_codes: constexpr = 32 // n_bits if n_bits == 8 else 8
    word = tl.zeros_like(n)
    for j in tl.static_range(4):
        x = tl.load(x_row + n * n_codes + j * (n_codes // 4) + first, mask=inside, other=0.0).to(dtype).to(tl.float32)
        word |= (tl.floor(x * inverse + 0.5).to(tl.int32) & 255) << (8 * j)
    return word


@triton.jit
def largest(x_row, n, inside, n_bits: constexpr, dtype: constexpr):
    """The largest magnitude among the columns of each word."""
    n_codes: constexpr = 4 if n_bits == 8 else 8
    found = tl.zeros_like(n).to(tl.float32)
    for i in tl.static_range(n_codes):
        x = tl.load(x_row + n * n_codes + i, mask=inside, other=0.0).to(dtype).to(tl.float32)
        found = tl.maximum(found, tl.abs(x))
    return found


@triton.jit
def dot_words(
    word, upper, upper_odd, pair, n, even_x, odd_x, x_scale,
    n_bits: constexpr, has_offset: constexpr, shift: constexpr,
):  # fmt: skip
    """Products of weight words with a row of x in bytes, times UNIT: [outs, words]."""
    even, odd = code_bytes(word, upper, upper_odd, n, n_bits)
    a, b = scales_of(pair, n, n_bits, has_offset)
    even_x, odd_x = tl.broadcast_to(even_x[None, :], even.shape), tl.broadcast_to(odd_x[None, :], even.shape)
    zero, ones = tl.zeros_like(even), tl.zeros_like(even) + 0x01010101
    if n_bits == 8:
        total = dot_bytes(even, even_x, zero, True).to(tl.float32) * a
    else:
        found = dot_bytes(even, even_x, dot_bytes(odd, odd_x, zero, False), False)
        sums = dot_bytes(ones, even_x, dot_bytes(ones, odd_x, zero, False), False)
        if has_offset:
            total = found.to(tl.float32) * a - sums.to(tl.float32) * b
        else:
            total = (found - shift * sums).to(tl.float32) * a
    return total * x_scale[None, :]


@triton.jit
def packed_vector_kernel(
    out, x, codes, high, scales, table, bias, n_out, x_stride, n_words: constexpr, n_bits: constexpr,
    has_offset: constexpr, shift: constexpr, has_table: constexpr, act: constexpr, has_bias: constexpr,
    dtype: constexpr, unit: constexpr, block_n: constexpr, block_w: constexpr,
):  # fmt: skip
    """out = row @ w.T + bias for one row of x per program. With `act`, w is a gate above an up matrix.

    The columns of x that meet one word are rounded to signed bytes with a scale of their own. The first weights are
    asked for before the kernels that make the row have finished.
    """
    let_next_start()
    outs, index = tl.program_id(0) * block_n + tl.arange(0, block_n), tl.program_id(1).to(tl.int64)
    x_row = x + index * x_stride
    total, up_total = tl.zeros((block_n, block_w), tl.float32), tl.zeros((block_n, block_w), tl.float32)
    for begin in tl.static_range(0, n_words, block_w):
        n = begin + tl.arange(0, block_w)
        word, upper, upper_odd, pair = load_words(
            codes, high, scales, outs, n_out, begin, n_words, n_bits, block_n, block_w
        )
        if act != "none":
            up_word, up_upper, up_upper_odd, up_pair = load_words(
                codes, high, scales, outs + n_out, 2 * n_out, begin, n_words, n_bits, block_n, block_w
            )
        if begin == 0:
            wait_for_previous()
        inside = n < n_words
        most = largest(x_row, n, inside, n_bits, dtype)
        inverse, x_scale = tl.where(most > 0, 127.0 / most, 0.0), most / 127.0
        even_x = rounded_bytes(x_row, n, inside, 0, n_bits, inverse, dtype)
        odd_x = even_x if n_bits == 8 else rounded_bytes(x_row, n, inside, 1, n_bits, inverse, dtype)
        total += dot_words(word, upper, upper_odd, pair, n, even_x, odd_x, x_scale, n_bits, has_offset, shift)
        if act != "none":
            up_total += dot_words(
                up_word, up_upper, up_upper_odd, up_pair, n, even_x, odd_x, x_scale, n_bits, has_offset, shift
            )
    finish(out, bias, tl.sum(total, 1) / unit, tl.sum(up_total, 1) / unit, index, outs, n_out, act, has_bias)


@triton.jit
def finish(out, bias, result, up_result, index, outs, n_out, act: constexpr, has_bias: constexpr):
    """Add biases, activate, store."""
    if has_bias:
        result += tl.load(bias + outs, mask=outs < n_out, other=0.0)
        if act != "none":
            up_result += tl.load(bias + n_out + outs, mask=outs < n_out, other=0.0)
    if act != "none":
        result = gated(result, up_result, act)
    tl.store(out + index * n_out + outs, narrow(result, out.dtype.element_ty), mask=outs < n_out)


@triton.jit
def code_value(
    codes, a, b, table, j: constexpr, n_bits: constexpr, has_offset: constexpr, shift: constexpr,
    has_table: constexpr,
):  # fmt: skip
    """The values of byte j of words of codes."""
    if has_table:
        value = tl.load(table + ((codes >> (8 * j)) & 255)) * a
    elif n_bits == 8:
        value = ((codes << (24 - 8 * j)) >> 24).to(tl.float32) * a
    elif has_offset:
        value = ((codes >> (8 * j)) & 255).to(tl.float32) * a - b
    else:
        value = (((codes >> (8 * j)) & 255) - shift).to(tl.float32) * a
    return value


@triton.jit
def two_values(
    codes, a, b, table, j: constexpr, n_bits: constexpr, has_offset: constexpr, shift: constexpr,
    has_table: constexpr, dtype: constexpr,
):  # fmt: skip
    """Values of bytes j and j + 2, in a last axis."""
    first = code_value(codes, a, b, table, j, n_bits, has_offset, shift, has_table).to(dtype)
    return tl.join(first, code_value(codes, a, b, table, j + 2, n_bits, has_offset, shift, has_table).to(dtype))


@triton.jit
def word_values(
    even, odd, a, b, table, n_bits: constexpr, has_offset: constexpr, shift: constexpr,
    has_table: constexpr, dtype: constexpr,
):  # fmt: skip
    """The values of words in the order of their columns, in further axes of two."""
    low = two_values(even, a, b, table, 0, n_bits, has_offset, shift, has_table, dtype)
    up = two_values(even, a, b, table, 1, n_bits, has_offset, shift, has_table, dtype)
    values = tl.join(low, up)
    if n_bits != 8:
        low = two_values(odd, a, b, table, 0, n_bits, has_offset, shift, has_table, dtype)
        up = two_values(odd, a, b, table, 1, n_bits, has_offset, shift, has_table, dtype)
        values = tl.join(values, tl.join(low, up))
    return values


@triton.jit
def packed_table_kernel(
    out, x, codes, high, scales, table, bias, n_out, x_stride, n_words: constexpr, n_bits: constexpr,
    has_offset: constexpr, shift: constexpr, has_table: constexpr, act: constexpr, has_bias: constexpr,
    dtype: constexpr, unit: constexpr, block_n: constexpr, block_w: constexpr,
):  # fmt: skip
    """Multiply codes that stand for the numbers of a table; x is not rounded to bytes."""
    let_next_start()
    outs, index = tl.program_id(0) * block_n + tl.arange(0, block_n), tl.program_id(1).to(tl.int64)
    wait_for_previous()
    total, up_total = tl.zeros((block_n, block_w), tl.float32), tl.zeros((block_n, block_w), tl.float32)
    for begin in range(0, n_words, block_w):
        n = begin + tl.arange(0, block_w)
        word, upper, upper_odd, pair = load_words(
            codes, high, scales, outs, n_out, begin, n_words, n_bits, block_n, block_w
        )
        even, odd = code_bytes(word, upper, upper_odd, n, n_bits)
        a, b = scales_of(pair, n, n_bits, has_offset)
        if act != "none":
            word, upper, upper_odd, pair = load_words(
                codes, high, scales, outs + n_out, 2 * n_out, begin, n_words, n_bits, block_n, block_w
            )
            even_up, odd_up = code_bytes(word, upper, upper_odd, n, n_bits)
            a_up, b_up = scales_of(pair, n, n_bits, has_offset)
        for i in tl.static_range(8):
            xs = tl.load(x + index * x_stride + n * 8 + i, mask=n < n_words, other=0.0).to(dtype).to(tl.float32)
            value = code_value(
                even if i % 2 == 0 else odd, a, b, table, i // 2, n_bits, has_offset, shift, has_table
            )  # fmt: skip
            total += value * xs[None, :]
            if act != "none":
                value = code_value(
                    even_up if i % 2 == 0 else odd_up, a_up, b_up, table, i // 2, n_bits, has_offset, shift, has_table
                )  # fmt: skip
                up_total += value * xs[None, :]
    finish(out, bias, tl.sum(total, 1) / unit, tl.sum(up_total, 1) / unit, index, outs, n_out, act, has_bias)


@triton.jit
def values_at(
    codes, high, scales, table, row, cols, mask, n_blocks,
    n_bits: constexpr, has_offset: constexpr, shift: constexpr, has_table: constexpr, unit: constexpr,
):  # fmt: skip
    """The values of some columns of a row, one by one."""
    n_codes: constexpr = 4 if n_bits == 8 else 8
    at, inner = row * n_blocks + cols // 32, cols % 32
    code = tl.load(codes + row * n_blocks * (32 // n_codes) + cols // n_codes, mask=mask, other=0)
    code = code >> (inner % n_codes * (32 // n_codes))
    code = (code << 24) >> 24 if n_bits == 8 else code & 15
    place = inner % 8 // 2 * 8 + inner // 8 * 2  # among high bits: see `high_words`
    if n_bits == 5:
        code |= ((tl.load(high + at, mask=mask, other=0) >> (place + inner % 2)) & 1) << 4
    if n_bits == 6:
        code |= ((tl.load(high + at * 2 + inner % 2, mask=mask, other=0) >> place) & 3) << 4
    value = tl.load(table + code) if has_table else (code - shift).to(tl.float32)
    a, b = two_scales(tl.load(scales + at, mask=mask, other=0))
    if has_offset:
        value = value * a - b
    else:
        value *= tl.where(inner < 16, a, b)
    return value / unit


@triton.jit
def unpack_kernel(
    out, codes, high, scales, table, n_out, n_words: constexpr, n_bits: constexpr, has_offset: constexpr,
    shift: constexpr, has_table: constexpr, unit: constexpr, block_n: constexpr, block_w: constexpr,
):  # fmt: skip
    """The dense values of a matrix."""
    let_next_start()
    n_codes: constexpr = 4 if n_bits == 8 else 8
    outs, begin = tl.program_id(0) * block_n + tl.arange(0, block_n), tl.program_id(1) * block_w
    n = begin + tl.arange(0, block_w)
    word, upper, upper_odd, pair = load_words(
        codes, high, scales, outs, n_out, begin, n_words, n_bits, block_n, block_w
    )
    even, odd = code_bytes(word, upper, upper_odd, n, n_bits)
    a, b = scales_of(pair, n, n_bits, has_offset)
    values = word_values(
        even, odd, a / unit, b / unit, table, n_bits, has_offset, shift, has_table, out.dtype.element_ty
    )  # fmt: skip
    cols = begin * n_codes + tl.arange(0, block_w * n_codes)
    place = out + outs.to(tl.int64)[:, None] * (n_words * n_codes) + cols[None, :]
    mask = (outs < n_out)[:, None] & (cols < n_words * n_codes)[None, :]
    wait_for_previous()  # kernels before this one may still read the scratch
    tl.store(place, tl.reshape(values, (block_n, block_w * n_codes)), mask=mask)


@triton.jit
def packed_embed_kernel(
    out, codes, high, scales, table, ids, last_tokens, counts, factor, n_blocks, n_bits: constexpr,
    has_offset: constexpr, shift: constexpr, has_table: constexpr, unit: constexpr, block: constexpr,
):  # fmt: skip
    """factor * the row of each live token; an id i < 0 stands for last_tokens[~i]."""
    let_next_start()
    wait_for_previous()
    row, cols = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    alive = row < tl.load(counts)  # ids below the live ones are left over: not followed
    index = tl.load(ids + row).to(tl.int64)
    sampled = tl.load(last_tokens + (-1 - index), mask=alive & (index < 0), other=0)
    index = tl.where(index < 0, tl.maximum(sampled, 0).to(tl.int64), index)  # a token below 0 is an error, not a row
    mask = cols < tl.where(alive, n_blocks * 32, 0)
    values = values_at(
        codes, high, scales, table, index, cols, mask, n_blocks, n_bits, has_offset, shift, has_table, unit
    )  # fmt: skip
    tl.store(out + row.to(tl.int64) * n_blocks * 32 + cols, values * factor, mask=cols < n_blocks * 32)


@cache
def table_on(name: str, device: torch.device) -> torch.Tensor:
    return torch.tensor(TABLES[name], device=device)


def planes(w: CodedMatrix) -> tuple[torch.Tensor, ...]:
    """The memory that kernels read of a matrix."""
    high = w.high if w.high.numel() else w.scales  # never read
    return w.codes, high, w.scales, table_on(w.kind.table, w.codes.device) if w.kind.table else w.scales


def constants(w: CodedMatrix) -> dict[str, Any]:
    kind = w.kind
    return {
        "n_bits": kind.n_bits, "has_offset": kind.has_offset, "shift": kind.shift, "has_table": bool(kind.table),
        "unit": UNIT,
    }  # fmt: skip


def packed_vector_linear(
    x: torch.Tensor, w: CodedMatrix, bias: torch.Tensor | None, dtype: torch.dtype, act: Activation | None = None
) -> torch.Tensor:
    """x @ w.T + bias for a few rows in f32; with `act`, w is a gate above an up matrix: act(gate) * up in `dtype`."""
    n_rows, n_out, n_words = len(x), w.shape[0] // (2 if act else 1), w.codes.shape[1]
    out = x.new_empty((n_rows, n_out), dtype=dtype if act else torch.float32)
    kernel = packed_table_kernel if w.kind.table else packed_vector_kernel
    block_n = (LOOKED_UP_ROWS if w.kind.table else VECTOR_ROWS[w.kind.n_bits]) // (2 if act else 1)
    kernel[(triton.cdiv(n_out, block_n), n_rows)](
        out, x, *planes(w), out if bias is None else bias, n_out, x.stride(0), n_words, act=act or "none",
        has_bias=bias is not None, dtype=TYPES[dtype], block_n=block_n,
        block_w=min(VECTOR_WORDS, triton.next_power_of_2(n_words)), num_warps=4, num_stages=1,
        **constants(w), **OVERLAP,
    )  # fmt: skip
    return out


def unpacked_matrix(w: CodedMatrix, dtype: torch.dtype) -> torch.Tensor:
    """The matrix dense in a scratch."""
    n_out, n_words = w.codes.shape
    dense = torch.empty(w.shape, dtype=dtype, device=w.codes.device)
    block_w = min(DENSE_WORDS, triton.next_power_of_2(n_words))
    block_n = DENSE_WORDS // block_w * 4
    unpack_kernel[(triton.cdiv(n_out, block_n), triton.cdiv(n_words, block_w))](
        dense, *planes(w), n_out, n_words, block_n=block_n, block_w=block_w, num_warps=4, **constants(w), **OVERLAP
    )
    return dense


def packed_embed(w: CodedMatrix, inputs: Any, n_tokens: int, factor: float) -> torch.Tensor:
    """factor * w[ids] in f32 for the live ones of `n_tokens` tokens, zeros below them."""
    out = torch.empty((n_tokens, w.shape[1]), dtype=torch.float32, device=w.codes.device)
    packed_embed_kernel[(n_tokens, triton.cdiv(w.shape[1], DENSE_COLS))](
        out, *planes(w), inputs.ids, inputs.last_tokens, inputs.counts, factor, w.n_blocks,
        block=DENSE_COLS, num_warps=4, **constants(w), **OVERLAP,
    )  # fmt: skip
    return out
