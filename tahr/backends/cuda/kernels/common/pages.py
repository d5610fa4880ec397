"""Pages of all layers, copied between where attention reads them and one run of memory."""

import torch
import triton
import triton.language as tl

BLOCK = 1024  # words of a program


@triton.jit(do_not_specialize=["page_words"], do_not_specialize_on_alignment=["pages"])
def move_kernel(staged, pieces, pages, page_words, gathers: tl.constexpr, block: tl.constexpr):
    """One program for each piece of each page; the columns of `pieces` are those of `PieceTable`."""
    piece = pieces + 4 * tl.program_id(0)
    nth = tl.program_id(1)
    page = tl.load(pages + nth).to(tl.int64)
    word = tl.arange(0, block)
    in_layer = (tl.load(piece) + page * tl.load(piece + 1)).to(staged.dtype) + word
    in_order = staged + nth.to(tl.int64) * page_words + tl.load(piece + 2) + word
    inside = word < tl.load(piece + 3)
    if gathers:
        tl.store(in_order, tl.load(in_layer, mask=inside), mask=inside)
    else:
        tl.store(in_layer, tl.load(in_order, mask=inside), mask=inside)


def move(staged: torch.Tensor, pieces: torch.Tensor, pages: torch.Tensor, gathers: bool) -> None:
    """Copy the pieces of pages [n] to `staged` [n, words of a page], or from there."""
    grid = (len(pieces), len(pages))
    move_kernel[grid](staged, pieces, pages, staged.shape[1], gathers, BLOCK)
