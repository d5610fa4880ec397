"""Who a request is from: the accounts of keys, found by what clients present."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Account:
    """The holder of a key, and what the key may do."""

    name: str  # a name in parentheses is none of a key in the state
    digest: bytes = field(default=b"", repr=False)  # the digest of the key; empty: no key was asked for
    requests_per_minute: int | None = None  # None: the server's own limit
    tokens_per_day: int | None = None
    models: tuple[str, ...] = ()  # none: all

    def may_use(self, names: Iterable[str]) -> bool:
        """Whether the key is good for a model of these names."""
        allowed = {name.lower() for name in self.models}
        return not allowed or any(name.lower() in allowed for name in names)


NOBODY = Account("(none)")


def digest_of(key: str) -> bytes:
    """The form in which keys are kept and compared. They are made at random, so that a slow hash would add nothing."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def owner_by(digest: bytes) -> str:
    """The name under which what is made with a key belongs to it."""
    return digest.hex()[:32]


class KeyRing:
    """All keys that are good now. A key is looked up by its digest: the time that takes tells nothing of other keys.

    A server that has had a key never becomes open again while it runs.
    """

    def __init__(self, keys: Iterable[str] = ()):
        made = [Account(f"(api-key {number})", digest_of(key)) for number, key in enumerate(keys, 1)]
        self._given = {account.digest: account for account in made}
        self._stored: Mapping[bytes, Account] = {}
        self.is_open = not made
        self.is_shared = len(self._given) > 1  # others may have used it, or use it now

    def __len__(self) -> int:
        return len(self._given) + len(self._stored)

    def put(self, accounts: Iterable[Account], n_ever: int) -> None:
        """Replace the keys of the state; `n_ever` of them were ever added."""
        self._stored = {account.digest: account for account in accounts}
        self.is_open &= not n_ever
        self.is_shared |= n_ever > 0

    def find(self, key: str) -> Account | None:
        return self._of(digest_of(key))

    def holds(self, account: Account) -> bool:
        """Whether the key that an account was found by is still good."""
        return not account.digest or self._of(account.digest) is not None

    def owner(self, owner: str) -> Account | None:
        """The account whose key made what belongs to an owner, if the key is still good."""
        if self.is_open:
            return NOBODY
        accounts = [*self._given.values(), *self._stored.values()]
        return next((each for each in accounts if owner_by(each.digest) == owner), None)

    def _of(self, digest: bytes) -> Account | None:
        return self._given.get(digest) or self._stored.get(digest)
