"""The parts of a step as a message, and checks of every number that kernels would follow to a place in memory."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tahr.backends.api import MAX_ADAPTERS, MAX_STACK, LoraRows, MemoryLayout, StepLimits
from tahr.executor.ranks.messages import BadMessage

ROUNDS = (0, 1, MAX_STACK)
FLAGS = (0, 1)
Array = NDArray[Any]


class StepNumbers(NamedTuple):
    """The numbers of a step besides its arrays."""

    number: int
    output: int
    bucket: int
    adapter_rounds: int
    sends_adapter_rows: int
    wants_rows: int


class StepArrays(NamedTuple):
    """The filled parts of a step's inputs, by their names, and the pages to copy before it."""

    counts: Array
    ids: Array
    positions: Array
    slot_mapping: Array
    query_start: Array
    seq_lens: Array
    page_table: Array
    logit_rows: Array
    page_copies: Array


class StepFacts(NamedTuple):
    """The things that a step may refer to."""

    limits: StepLimits
    buckets: Sequence[Sequence[StepLimits]]  # buckets by `Output`
    layout: MemoryLayout
    n_vocab: int


def check_numbers(numbers: StepNumbers, facts: StepFacts) -> None:
    """Refuse a step of a size or kind that there is not."""
    require(0 <= numbers.output < len(facts.buckets), "the output of a step")
    require(0 <= numbers.bucket < len(facts.buckets[numbers.output]), "the size of a step")
    require(numbers.adapter_rounds in ROUNDS and numbers.sends_adapter_rows in FLAGS, "the adapters of a step")
    require(numbers.wants_rows in FLAGS, "the rows of a step")


def check_arrays(arrays: StepArrays, bucket: StepLimits, facts: StepFacts) -> None:
    """Refuse what is not a step of this size over this memory."""
    for name, array in arrays._asdict().items():
        require(array.dtype == np.int32, f"the type of {name}")
    require(arrays.counts.shape == (3,) and (arrays.counts >= 0).all(), "the counts of a step")
    n, n_rows, n_seqs = map(int, arrays.counts)
    require(n <= bucket.n_tokens and n_rows <= bucket.n_rows and n_seqs <= bucket.n_seqs, "the counts of a step")
    n_groups = facts.limits.n_groups
    n_pages = arrays.page_table.shape[-1] if arrays.page_table.ndim else 0
    require(n_pages <= facts.limits.n_pages_per_seq, "the length of a sequence")
    shapes = {
        "ids": (n,),
        "positions": (n,),
        "slot_mapping": (n_groups, n),
        "query_start": (n_seqs + 1,),
        "seq_lens": (n_groups, n_seqs),
        "page_table": (n_groups, n_seqs, n_pages),
        "logit_rows": (n_rows,),
        "page_copies": (len(arrays.page_copies) if arrays.page_copies.ndim else 0, 3),
    }
    for name, shape in shapes.items():
        require(getattr(arrays, name).shape == shape, f"the shape of {name}")
    check_tokens(arrays, n, facts)
    check_pages(arrays, facts.layout)


def check_tokens(arrays: StepArrays, n: int, facts: StepFacts) -> None:
    """Refuse tokens that there are not, and sequences that do not follow each other."""
    begins = arrays.query_start
    require(begins[0] == 0 and begins[-1] == n and (np.diff(begins) >= 0).all(), "where sequences begin")
    most = arrays.page_table.shape[2] * facts.layout.page_size
    require(within(arrays.ids, facts.n_vocab), "a token")
    require(within(arrays.positions, max(1, most)), "the position of a token")
    require(within(arrays.seq_lens, most + 1), "the length of a sequence")
    require(within(arrays.logit_rows, n), "a row of a step")


def check_pages(arrays: StepArrays, layout: MemoryLayout) -> None:
    """Refuse pages that there are not."""
    for group, n_pages in enumerate(layout.n_pages):
        require(within(arrays.page_table[group], n_pages), "a page")
        require(within(arrays.slot_mapping[group], n_pages * layout.page_size), "the place of a token")
    groups = arrays.page_copies[:, 0]
    require(within(groups, len(layout.n_pages)), "the copy of a page")
    for group, *pages in arrays.page_copies:
        require(within(np.array(pages), layout.n_pages[group]), "the copy of a page")


def check_adapter_rows(rows: LoraRows, there: LoraRows) -> None:
    """Refuse rows and slots of adapters that there are not."""
    for name in LoraRows.__slots__:
        found = getattr(rows, name)
        mine = getattr(there, name)
        require(found.shape == mine.shape and found.dtype == mine.dtype, f"the shape of adapters' {name}")
    n = rows.rows.shape[1]
    ends = rows.tiles[..., 1].astype(np.int64) + rows.tiles[..., 2]
    require(within(rows.n_tiles, rows.tiles.shape[1] + 1), "the number of adapters' tiles")
    require(within(rows.tiles[..., 0], MAX_ADAPTERS + 1), "the slot of an adapter")
    require((rows.tiles >= 0).all() and within(ends, n + 1), "a tile of an adapter")
    require(within(rows.rows, n) and np.isfinite(rows.scales).all(), "the rows of an adapter")


def within(numbers: NDArray[Any], end: int) -> bool:
    """Whether all numbers are from 0 to `end` - 1."""
    return numbers.size == 0 or (int(numbers.min()) >= 0 and int(numbers.max()) < end)


def require(is_so: Any, what: str) -> None:
    if not is_so:
        raise BadMessage(f"A message to the ranks was refused: {what} cannot be so.")
