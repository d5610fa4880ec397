"""Measured costs of steps: seconds of a step in which sequences decode, by the number of its tokens."""

from collections import deque
from dataclasses import dataclass, field

N_KEPT = 9  # measurements of each size: the shortest counts, because other programs run too
FIRST_GUESS = 0.25  # share of one token's cost that a further one is taken to cost while nothing is known
GUESS_WEIGHT = 0.1  # weight of that guess beside measurements: it counts where the sizes lie close together
DOUBT = 2  # measurements that the line counts for beside those of one size
STALE_AFTER = (
    512  # steps after which a size is forgotten that has not come again: texts grow, and a bad one must not stay
)


@dataclass(slots=True)
class Measured:
    """The last measurements of one size; none after the first step of that size, which is not measured."""

    last_step: int
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=N_KEPT))


class StepCosts:
    """A straight line through the shortest times of all sizes, and how far those measured often are from it.

    Steps of 16 and 17 tokens say little of what a token costs, so that a guess of it counts too.
    The first step of a size does not count: compiling what samples may take as long as hundreds.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, Measured] = {}
        self._n_steps = 0
        self.token_s = 0.0  # cost of a token in steps of many, a better first guess; 0: unknown
        self._line: tuple[float, float] | None = None  # seconds of no tokens, seconds per token

    def measure(self, n_tokens: int, seconds: float) -> None:
        """Note how long a step took."""
        self._n_steps += 1
        size = self._sizes.get(n_tokens)
        if size is None:
            self._sizes[n_tokens] = Measured(self._n_steps)
            return
        size.seconds.append(seconds)
        size.last_step = self._n_steps
        self._line = None
        if self._n_steps % STALE_AFTER == 0:
            oldest = self._n_steps - STALE_AFTER
            for known in self._sizes.values():
                if known.last_step <= oldest:
                    known.seconds.clear()

    def seconds(self, n_tokens: int) -> float:
        """The expected time of a step of `n_tokens`; 0 while nothing is known.

        A size that was measured often stands for itself, one that was not is on the line.
        """
        base, per_token = self._fitted()
        known = self._sizes.get(n_tokens)
        expected = base + per_token * n_tokens
        if known is None or not known.seconds:
            return expected
        n = len(known.seconds)
        return expected + n / (n + DOUBT) * (min(known.seconds) - expected)

    @property
    def per_token(self) -> float:
        """The expected time of one token more."""
        return self._fitted()[1]

    def _fitted(self) -> tuple[float, float]:
        if self._line is None:
            self._line = self._fit()
        return self._line

    def _fit(self) -> tuple[float, float]:
        points = [(n, min(known.seconds), len(known.seconds)) for n, known in self._sizes.items() if known.seconds]
        if not points:
            return 0.0, 0.0
        weight = sum(w for _, _, w in points)
        mean_n = sum(n * w for n, _, w in points) / weight
        mean_s = sum(s * w for _, s, w in points) / weight
        spread = sum(w * (n - mean_n) ** 2 for n, _, w in points)
        rise = sum(w * (n - mean_n) * (s - mean_s) for n, s, w in points)
        guess = self.token_s or FIRST_GUESS * mean_s / mean_n
        guess_weight = GUESS_WEIGHT * mean_n**2
        slope = max(0.0, (rise + guess_weight * guess) / (spread + guess_weight))
        return max(0.0, mean_s - slope * mean_n), slope
