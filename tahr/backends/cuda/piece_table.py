"""Where the pieces of pages lie on a CUDA device, and the kernel that gathers and scatters them."""

import torch

from tahr.backends import api
from tahr.backends.api import STATES, KVStore
from tahr.backends.cuda.kernels.common.pages import BLOCK, PageMover

# types that a kernel copies at a time, by bytes
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class PieceTable:
    """Where the pages of a group lie: a layer's keys, values or state of one page are one run of memory.

    `pieces` has a row for every `BLOCK` words of such a run: its address in page 0, the bytes from page to page, the
    word of a staged page it begins at, and its words.
    """

    def __init__(self, kv: KVStore, group: int):
        self.form = api.page_form(kv, group)
        self.n_bytes = self.form.n_bytes  # all layers together
        self.n_pages = api.n_pages_of(kv, group)
        sides = kv.states() if group == STATES else [side for layer in kv.paged(group) for side in layer.unbind()]
        sizes = [side[0].numel() * side.element_size() for side in sides]
        width = next(n for n in WORDS if not any(size % n for size in sizes))
        self.word = WORDS[width]
        self.device = sides[0].device
        self.page_words = sum(sizes) // width
        rows: list[list[int]] = []
        begin = 0
        for side, size in zip(sides, sizes, strict=True):
            for first in range(0, size // width, BLOCK):
                address = side.data_ptr() + width * first
                n_words = min(BLOCK, size // width - first)
                rows.append([address, size, begin + first, n_words])
            begin += size // width
        self.pieces = torch.tensor(rows, dtype=torch.int64, device=self.device)
        self._mover = PageMover(self.pieces, self.word, self.page_words)

    def gather(self, pages: torch.Tensor, staged: torch.Tensor, stream: int = 0) -> None:
        """Copy pages, whose numbers the device can read, one after the other to as many bytes."""
        self._mover.launch(staged, pages, gathers=True, stream=stream)

    def scatter(self, pages: torch.Tensor, staged: torch.Tensor, stream: int = 0) -> None:
        """Put what `gather` gave into pages."""
        self._mover.launch(staged, pages, gathers=False, stream=stream)
