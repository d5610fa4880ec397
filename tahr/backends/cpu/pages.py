"""Pages of the CPU backend elsewhere: copied as they lie, because ordering them by token takes longer than a copy."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tahr.backends import api
from tahr.backends.api import STATES, Bytes


class PagePart(NamedTuple):
    """The keys, values or state of a layer."""

    pages: Bytes  # [pages, bytes], in their order on the device
    span: slice  # their place in a page on the host


class CpuPageIO(api.PlainPageIO):
    """`PageIO` of memory that the kernels read: a copy is made at once, after everything enqueued before it."""

    def __init__(self, kv: api.KVStore, flush: Callable[[], None]):
        super().__init__(kv)
        self._flush = flush
        self._parts: dict[int, list[PagePart]] = {}

    def read(self, pages: Sequence[int], group: int, contents: Sequence[Bytes]) -> None:
        parts = self._parts_of(group)
        for page, data in zip(pages, contents, strict=True):
            for part in parts:
                data[part.span] = part.pages[page]

    def write(self, pages: Sequence[int], group: int, contents: Sequence[Bytes]) -> None:
        parts = self._parts_of(group)
        for page, data in zip(pages, contents, strict=True):
            for part in parts:
                part.pages[page] = data[part.span]

    def _parts_of(self, group: int) -> list[PagePart]:
        self._flush()
        if group not in self._parts:
            self._parts[group] = parts_of(self.kv, group)
        return self._parts[group]


def parts_of(kv: api.KVStore, group: int) -> list[PagePart]:
    """The parts of a group's pages, or of states."""
    sides = [side for layer in kv.paged(group) for side in layer.sides] if group != STATES else kv.states()
    runs = [array.view(np.uint8).reshape(len(array), -1) for array in sides]
    spans = api.spans_of([run.shape[1] for run in runs])
    return list(map(PagePart, runs, spans))
