"""The rows of a prompt that are no embeddings: where they belong, and what they are computed from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

from tahr.kv.row_slots import RowSpan, spans_within

if TYPE_CHECKING:
    from tahr.backends.api import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RowSource:
    """The input that rows are computed from, kept on the host as long as a sequence may need them again.

    `values` are what a tower reads, `[n, width_in]`; where no tower is, they are the rows themselves.
    """

    values: "Floats"
    outputs: "Ints | None" = None  # first of `values` that each row is made of; None: one each
    rope_positions: "Ints | None" = None  # [N_AXES, n], for the tower; None: their places
    windows: "Ints | None" = None  # lengths of its windows, for the parts of a tower that end at them
    order: "Ints | None" = None  # place of each row that comes out among those of the content; None: as they come
    is_finite: bool = False  # whoever made it knows that all values are finite, which takes milliseconds to look at
    is_made: bool = False  # `values` are the rows themselves, beside a tower that computes those of others

    @property
    def n_windows(self) -> int:
        return 1 if self.windows is None else len(self.windows)


@dataclass(frozen=True, eq=False)
class PromptRows:
    """Spans of placeholders among a prompt's tokens, in order, and the source of each digest."""

    spans: tuple[RowSpan, ...] = ()
    sources: Mapping[bytes, RowSource] = field(default_factory=dict)
    rope_positions: "Ints | None" = None  # [N_AXES, n_prompt]; None: the places of tokens. They follow from the rest.
    # All tokens look at the rows of an input, those to come too: its span is the prompt's first token.
    seen_by_all: bool = False

    def __bool__(self) -> bool:
        return bool(self.spans) or self.rope_positions is not None

    @cached_property
    def rope_offset(self) -> int:
        """Difference between position and place of a token behind the prompt."""
        positions = self.rope_positions
        return 0 if positions is None else int(positions.max()) + 1 - positions.shape[1]

    def contents(self, n_computed: int) -> dict[bytes, int]:
        """Rows that a text reads after its first tokens: their number by digest."""
        return {span.digest: span.n_content for span in self.spans if self.seen_by_all or span.end > n_computed}

    def salted(self, salt: str) -> "PromptRows":
        """A copy whose rows are shared only under this salt."""
        if not salt:
            return self
        spans = tuple(span._replace(digest=salted(span.digest, salt)) for span in self.spans)
        sources = {salted(digest, salt): source for digest, source in self.sources.items()}
        return PromptRows(spans, sources, self.rope_positions, self.seen_by_all)

    def without_sources(self) -> "PromptRows":
        """A copy whose rows can no longer be computed."""
        return replace(self, sources={}) if self.sources else self

    def chunk(self, begin: int, n: int) -> tuple[int, bool]:
        """How many of n tokens from `begin` on go up to the next span, or all of the one that it is in; whether it is
        in one."""
        span = next(self.within(begin, begin + n), None)
        if span is None:
            return n, False
        return (span.begin - begin, False) if begin < span.begin else (span.end - begin, True)

    def within(self, begin: int, end: int) -> Iterator[RowSpan]:
        """The spans that touch these places."""
        return spans_within(self.spans, begin, end)


def spans_of(begin: int, digest: bytes, n_rows: int, n_line: int = 0) -> list[RowSpan]:
    """The rows of an input from a place on: all as one, or lines of so many with a token between them."""
    if not n_line:
        return [RowSpan(begin, n_rows, digest)]
    n_lines = n_rows // n_line
    return [RowSpan(begin + i * (n_line + 1), n_line, digest, i * n_line, n_rows) for i in range(n_lines)]


def run_of(begin: int, n: int, digest: bytes, first: int, n_content: int) -> RowSpan:
    """Some rows of an input from a place on."""
    return RowSpan(begin, n, digest, first, n_content)


def salted(digest: bytes, salt: str) -> bytes:
    return blake2b(digest + salt.encode(), digest_size=len(digest)).digest()


def rows_of_input(digest: bytes, source: RowSource) -> PromptRows:
    """Rows that all tokens of a text look at."""
    return PromptRows((RowSpan(0, 1, digest),), {digest: source}, seen_by_all=True)


NO_ROWS = PromptRows()
