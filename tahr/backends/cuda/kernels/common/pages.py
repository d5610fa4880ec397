"""Pages of all layers, copied between where attention reads them and one run of memory."""

from typing import Any

import torch
import triton
import triton.language as tl

BLOCK = 1024  # words of a program


@triton.jit(do_not_specialize=["page_words"], do_not_specialize_on_alignment=["staged", "pages"])
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


class PageMover:
    """Copies pages of one table of pieces to or from `staged` [pages, words of a page].

    Triton looks a kernel up by the types of its arguments at every launch, which takes longer than a page travels;
    these types never change here. `staged` and the numbers of pages may lie in pinned memory.
    """

    def __init__(self, pieces: torch.Tensor, word: torch.dtype, page_words: int):
        self.pieces = pieces
        self._word = word
        self._page_words = page_words
        self._n_pieces = len(pieces)
        self._address = pieces.data_ptr()
        self._compiled: dict[bool, Any] = {}  # kernels by `gathers`; the interpreter compiles nothing

    def launch(self, staged: torch.Tensor, pages: torch.Tensor, gathers: bool, stream: int) -> None:
        """Copy on a stream, which is named by its address."""
        grid = (self._n_pieces, len(pages), 1)
        if kernel := self._compiled.get(gathers):
            kernel[grid](
                staged.data_ptr(), self._address, pages.data_ptr(), self._page_words, gathers, BLOCK, stream=stream
            )
        elif grid[1]:
            self._compile(grid, (staged.view(self._word), pages), gathers, stream)

    def _compile(
        self, grid: tuple[int, ...], at: tuple[torch.Tensor, torch.Tensor], gathers: bool, stream: int
    ) -> None:
        """The first launch."""
        staged, pages = at
        arguments = (staged, self.pieces, pages, self._page_words, gathers, BLOCK)
        if not self.pieces.is_cuda:  # interpreted
            move_kernel[grid](*arguments)
            return
        its_stream = torch.cuda.ExternalStream(stream) if stream else torch.cuda.default_stream()
        with torch.cuda.stream(its_stream):
            self._compiled[gathers] = move_kernel[grid](*arguments)
