"""KV copies of texts seen before, kept in host memory by the caller of an `InferenceEngine`."""

from collections.abc import Sequence as ListOf

from tahr.errors import ConfigError
from tahr.kv.store import BoundedStore
from tahr.library.inference.session import KvCopy
from tahr.library.inputs.arguments import n_shared

Key = tuple[int, ...]


class PrefixStore:
    """Finds the copy that shares the longest beginning with a text; forgets what was used longest ago."""

    def __init__(self, max_entries: int = 256, max_bytes: int = 512 << 20, min_tokens: int = 4):
        if min(max_entries, max_bytes, min_tokens) < 1:
            raise ConfigError("max_entries, max_bytes and min_tokens of a prefix store must be at least 1.")
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.min_tokens = min_tokens
        self.hits = self.misses = 0
        self._copies: BoundedStore[Key, KvCopy] = BoundedStore(max_bytes, max_entries)

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def n_bytes(self) -> int:
        return self._copies.n_bytes

    def store(self, copy: KvCopy) -> bool:
        """Keep a copy, making room for it; False if it is too short to be worth it or larger than the whole store."""
        fits = len(copy.tokens) >= self.min_tokens and copy.n_bytes <= self.max_bytes
        return fits and self._copies.put(copy.tokens, copy.compact())

    def lookup(self, tokens: ListOf[int]) -> tuple[KvCopy, int] | None:
        """The best copy for a text, and how many of its tokens to restore.

        At least the last token of the text is left to compute: its logits are in no copy.
        """
        lengths = {key: n_shared(key, tokens[:-1]) for key in self._copies}
        best = max(lengths, key=lambda key: lengths[key], default=())
        copy = self._copies.get(best) if lengths.get(best, 0) >= self.min_tokens else None
        if copy is None:
            self.misses += 1
            return None
        self.hits += 1
        return copy, lengths[best]
