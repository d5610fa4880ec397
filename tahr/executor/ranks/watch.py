"""Limits on the time of steps over ranks, and on how often ranks may be begun again."""

LEAST_S = 10.0
PATIENCE = 10  # times the seconds that are expected
FIRST_S = 60.0  # limit of a step of which nothing is known yet, and more by what it reads:
FIRST_BYTES_A_SECOND = 1e10  # bytes of weights, once for each token
FORGETS = 0.9  # share of what was expected that is left where steps take less
MOST_FAILURES = 3
FAILURES_S = 600.0  # time in which so many are too many
BACKOFF_S = (0.0, 1.0, 4.0)


class StepWatch:
    """Learns how long steps take."""

    def __init__(self, n_weight_bytes: int):
        self._n_weight_bytes = n_weight_bytes
        self._step_s = 0.0
        self._token_s = 0.0
        self._most_tokens = 0

    def limit_s(self, n_tokens: int) -> float:
        """Seconds after which a step is given up."""
        if n_tokens > 2 * self._most_tokens:
            return max(LEAST_S, FIRST_S) + n_tokens * self._n_weight_bytes / FIRST_BYTES_A_SECOND
        return max(LEAST_S, PATIENCE * max(self._step_s, self._token_s * n_tokens))

    def took(self, n_tokens: int, seconds: float) -> None:
        """A step has ended."""
        self._step_s = max(seconds, FORGETS * self._step_s)
        self._token_s = max(seconds / max(1, n_tokens), FORGETS * self._token_s)
        self._most_tokens = max(self._most_tokens, n_tokens)


class Failures:
    """The times at which ranks were lost."""

    def __init__(self) -> None:
        self._times: list[float] = []

    @property
    def n(self) -> int:
        """The number of those that count."""
        return len(self._times)

    def count(self, now: float) -> float | None:
        """One more; the seconds to wait before the next try, None if there should be none."""
        self._times = [each for each in self._times if now - each < FAILURES_S] + [now]
        return None if len(self._times) >= MOST_FAILURES else BACKOFF_S[len(self._times) - 1]
