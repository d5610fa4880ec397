"""The joules that a device has counted, shared out among those who used it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tahr.engine.sequences.stats import EnergyUse

User = TypeVar("User")


@dataclass(slots=True)
class CountedPhase(Generic[User]):
    """Prefill or decode of one model."""

    counted_j: float = 0.0  # last figure of the device
    unshared_j: float = 0.0  # joules of times in which no request ended
    tokens: dict[User, int] = field(default_factory=dict)  # tokens of requests that have ended since

    def worked(self, user: User, n_tokens: int) -> None:
        if n_tokens:
            self.tokens[user] = self.tokens.get(user, 0) + n_tokens

    def share(self, joules: float) -> Iterator[tuple[User, float]]:
        """Each user's part, by its tokens; a counter that is below the last one has begun anew."""
        self.unshared_j += joules - self.counted_j if joules >= self.counted_j else joules
        self.counted_j = joules
        n_all = sum(self.tokens.values())
        if not n_all:
            return
        shared_j, self.unshared_j = self.unshared_j, 0.0
        tokens, self.tokens = self.tokens, {}
        yield from ((user, shared_j * n_tokens / n_all) for user, n_tokens in tokens.items())


class EnergyShares(Generic[User]):
    """One model's: what its device uses in prefill and decode goes to those whose requests end next.

    The sum of all shares is what was counted. Idle time is nobody's.
    """

    def __init__(self) -> None:
        self._prefill: CountedPhase[User] = CountedPhase()
        self._decode: CountedPhase[User] = CountedPhase()

    @property
    def has_worked(self) -> bool:
        return bool(self._prefill.tokens or self._decode.tokens)

    def worked(self, user: User, n_prefilled: int, n_decoded: int) -> None:
        """A request has ended."""
        self._prefill.worked(user, n_prefilled)
        self._decode.worked(user, n_decoded)

    def share(self, use: EnergyUse) -> Iterator[tuple[User, float]]:
        """The joules since the last call, by user; one may come twice."""
        yield from self._prefill.share(use.prefill_j)
        yield from self._decode.share(use.decode_j)
