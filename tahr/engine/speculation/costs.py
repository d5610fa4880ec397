"""What steps cost, as measured: seconds of a step in which sequences decode, by the number of its tokens."""

from bisect import bisect_left
from collections import deque
from statistics import median

N_KEPT = 9  # measurements of each size: their median counts, because other programs run too
FIRST_GUESS = 0.05  # what a token more is taken to cost while nothing is known: this part of the smallest step
STALE_AFTER = 512  # steps after which a measurement is forgotten: texts grow, and a bad one must not stay


class StepCosts:
    """Medians by size; between two sizes a straight line, beyond the largest the same slope goes on."""

    def __init__(self) -> None:
        self._kept: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._sizes: list[int] = []  # sorted
        self._seen: dict[int, int] = {}  # the step at which each was last measured
        self._n_steps = 0

    def measure(self, n_tokens: int, seconds: float) -> None:
        """Note how long a step took."""
        self._n_steps += 1
        kept = self._kept.get(n_tokens)
        if kept is None:
            kept = self._kept[n_tokens] = deque(maxlen=N_KEPT)
            self._sizes = sorted(self._kept)
        kept.append(seconds)
        self._medians[n_tokens] = median(kept)
        self._seen[n_tokens] = self._n_steps
        if self._n_steps % STALE_AFTER == 0:
            self._forget()

    def _forget(self) -> None:
        for size in [size for size, seen in self._seen.items() if self._n_steps - seen >= STALE_AFTER]:
            del self._kept[size], self._medians[size], self._seen[size]
        self._sizes = sorted(self._kept)

    def seconds(self, n_tokens: int) -> float:
        """What a step of so many tokens is expected to take; 0 while nothing is known."""
        if not self._sizes:
            return 0.0
        known = self._medians.get(n_tokens)
        if known is not None:
            return known
        at = bisect_left(self._sizes, n_tokens)
        low, high = self._around(at)
        slope = self._slope(low, high)
        return max(0.0, self._medians[low] + slope * (n_tokens - low))

    def _around(self, at: int) -> tuple[int, int]:
        """The known sizes that a line through a place in the list goes by; the same twice if there is only one."""
        sizes = self._sizes
        if at == 0:
            return sizes[0], sizes[0]
        return (sizes[0], sizes[-1]) if at == len(sizes) else (sizes[at - 1], sizes[at])

    def _slope(self, low: int, high: int) -> float:
        if low == high:
            return FIRST_GUESS * self._medians[low] / low
        return max(0.0, (self._medians[high] - self._medians[low]) / (high - low))
