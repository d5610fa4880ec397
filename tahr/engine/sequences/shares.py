"""Parts of an engine that its owners have had, in tokens: among equals the one with the least goes first."""

from dataclasses import dataclass

MAX_SHARES = 16_384


@dataclass(slots=True, eq=False)
class OwnerShare:
    """One owner's part: tokens of prompts when they are admitted, tokens of replies as they are computed."""

    n_tokens: int = 0


class Shares:
    """All owners of sequences. One that has waited for nothing meanwhile saves up no tokens.

    So an owner who comes, or comes back, begins where the last one began who was admitted: all that wait have had at
    least as much.
    """

    def __init__(self) -> None:
        self._of: dict[str, OwnerShare] = {}
        self._latest = 0  # tokens that the owner of the last sequence admitted had had

    def enter(self, owner: str) -> OwnerShare:
        """The share of an owner who has one more sequence."""
        share = self._of.get(owner)
        if share is None:
            self._forget()
            share = self._of[owner] = OwnerShare()
        share.n_tokens = max(share.n_tokens, self._latest)
        return share

    def admit(self, share: OwnerShare) -> None:
        """A sequence of this owner leaves the queue."""
        self._latest = max(self._latest, share.n_tokens)

    def _forget(self) -> None:
        """Drop the owners who would begin anew where they are."""
        if len(self._of) >= MAX_SHARES:
            self._of = {owner: share for owner, share in self._of.items() if share.n_tokens > self._latest}
