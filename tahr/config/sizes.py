"""Sizes as people write them: 8192, 8k, 1.5G, and a share such as 50%."""

import re
from typing import NamedTuple

from tahr.errors import ConfigError

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]?)", re.IGNORECASE)
SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)\s*%")
MOST = 1 << 62


class Size(NamedTuple):
    """A number of bytes, or a part of all there are."""

    n_bytes: int
    share: float | None = None

    def of(self, total_bytes: int) -> int:
        """The bytes it means where there are so many."""
        return self.n_bytes if self.share is None else int(self.share * total_bytes)


def parse_size(text: str, name: str) -> Size:
    """A size above nothing; k, m, g and t stand for powers of 1024. `name` is that of the option."""
    stripped = text.strip()
    if (share := SHARE.fullmatch(stripped)) and 0 < float(share[1]) <= 100:
        return Size(0, float(share[1]) / 100)
    found = SIZE.fullmatch(stripped)
    n_bytes = int(float(found[1]) * UNITS[found[2].lower()]) if found else 0
    if not 0 < n_bytes <= MOST:
        raise ConfigError(f"{name} is {text!r}, but it must be a size such as 8g, 512m or 50%, above 0.")
    return Size(n_bytes)
