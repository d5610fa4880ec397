"""Which of the recorded sizes a step is padded to, and which plans have made their first runs.

An executor only does what it is told: what depends on the steps before is decided here, once for all executors.
"""

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from itertools import islice

from tahr.backends.api import StepLimits
from tahr.executor.output import Output
from tahr.executor.protocol import PlanKey

N_FIRST_RUNS = 2  # first runs of a plan: a backend may compile in the first and capture in the second
MOST_LARGER = 1.25  # times the tokens of the smallest bucket, of one that is taken because its plan is warm
MOST_FALLBACKS = 16  # steps that take such a bucket, until the smallest one makes its first runs after all
N_PREPARED = 32  # plans that are prepared while the first of them wait for that
STRIDES = (8, 4, 2, 1)  # order of warming buckets: soon there is a warm one not much larger than any

Counts = tuple[int, int, int, int]  # tokens, rows, sequences, and the most tokens of one sequence


class StepSizes:
    """The sizes of one model's plans."""

    def __init__(self, buckets: ListOf[ListOf[StepLimits]], n_decode_tokens: int):
        self.buckets = buckets  # buckets by `Output`
        self.n_first_runs = 0  # first runs of plans, in which they compile or capture the work of later ones
        self._n_decode_tokens = n_decode_tokens
        self._known: set[PlanKey] = set()  # plans that are recorded
        self._fresh: dict[PlanKey, int] = {}  # first runs that they have left
        self._n_fallbacks: dict[PlanKey, int] = {}  # steps that took another bucket in place of this one
        self._adapters: tuple[int, ...] = ()  # key of plans with adapters
        self._cold: deque[int] | None = None  # buckets whose plans may have first runs to make

    def choose(self, output: int, n_rounds: int, counts: Counts, extras: int = 0) -> int:
        """The smallest bucket that holds a step; a little larger one, while only that is warm."""
        buckets = self.buckets[output]
        if len(buckets) == 1:
            return 0
        wanted = next(i for i, bucket in enumerate(buckets) if bucket.hold(*counts))
        key = output, wanted, n_rounds, extras
        if not self._fresh or self._is_warm(key) or self._n_fallbacks.get(key) == MOST_FALLBACKS:
            return wanted
        larger = next((i for i in near(buckets, wanted) if self._is_warm((output, i, n_rounds, extras))), None)
        if larger is None:
            return wanted
        self._n_fallbacks[key] = self._n_fallbacks.get(key, 0) + 1
        return larger

    def ran(self, key: PlanKey) -> None:
        """A step is about to run a plan."""
        if key not in self._known:
            self._record(key)
        if self._fresh:
            self.n_first_runs += self._take_first_run(key)

    def ran_empty(self, key: PlanKey) -> None:
        """A plan ran while no step needed it."""
        self._take_first_run(key)

    def failed(self, key: PlanKey) -> None:
        """A plan could not be run: it may not be there."""
        self._known.discard(key)
        self._fresh.pop(key, None)

    def forget(self) -> None:
        """All plans are gone."""
        self._known.clear()
        self._fresh.clear()
        self._n_fallbacks.clear()
        self._cold = None

    def follow(self, adapters: tuple[int, ...]) -> None:
        """Plans with adapters are recorded again when these change what steps are made of."""
        if adapters != self._adapters:
            self._adapters = adapters
            for key in [key for key in self._known if key[2]]:
                self.failed(key)
                self._n_fallbacks.pop(key, None)

    def cold(self, output: Output) -> list[PlanKey]:
        """The first plans of plain steps that have first runs left, in the order in which they are to be warmed."""
        buckets = self.buckets[output]
        if self._cold is None:
            self._cold = warming_order(buckets, self._n_decode_tokens)
        while self._cold and self._is_warm((output, self._cold[0], 0, 0)):
            self._cold.popleft()
        keys = [(int(output), i, 0, 0) for i in islice(self._cold, N_PREPARED)]
        for key in keys:
            if key not in self._known:
                self._record(key)
        return [key for key in keys if key in self._fresh]

    def _record(self, key: PlanKey) -> None:
        self._known.add(key)
        self._fresh[key] = N_FIRST_RUNS

    def _is_warm(self, key: PlanKey) -> bool:
        """Whether a plan has made its first runs."""
        return key in self._known and key not in self._fresh

    def _take_first_run(self, key: PlanKey) -> bool:
        """Whether this is one of the first runs of a plan."""
        n_left = self._fresh.pop(key, 0)
        if n_left > 1:
            self._fresh[key] = n_left - 1
        return n_left > 0


def near(buckets: ListOf[StepLimits], wanted: int) -> Iterator[int]:
    """Buckets of the same kind that hold whatever one holds and do not cost much more, the smallest first."""
    least = buckets[wanted]
    kind = least.n_tokens_per_seq
    for i, each in enumerate(buckets):
        is_near = each.n_tokens_per_seq == kind and each.n_tokens <= MOST_LARGER * least.n_tokens
        if is_near and each.hold(least.n_tokens, least.n_rows, least.n_seqs, kind):
            yield i


def warming_order(buckets: ListOf[StepLimits], n_decode_tokens: int) -> deque[int]:
    """Steps in which all decode, then others of all sizes, from both ends, then those between: prompts come alone, or
    bursts fill whole steps.

    Those with more rows than are sampled from are seldom wanted and come last.
    """
    most = buckets[-1].n_tokens_per_seq
    everything = range(len(buckets))
    decoding = [i for i in everything if buckets[i].n_tokens_per_seq < most]
    usual = [i for i in everything if buckets[i].n_tokens_per_seq == most and is_usual(buckets[i], n_decode_tokens)]
    spread = [i for stride in STRIDES for pair in zip(usual[::stride], usual[::-stride], strict=True) for i in pair]
    return deque(dict.fromkeys([*decoding, *spread, *everything]))


def is_usual(bucket: StepLimits, n_decode_tokens: int) -> bool:
    """Whether all rows of a step may be sampled from."""
    return bucket.n_rows <= bucket.n_seqs * n_decode_tokens
