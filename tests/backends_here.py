"""The backends this machine can run; TAHR_TEST_BACKENDS narrows them."""

import os

from tahr.backends import BACKENDS, open_backend
from tahr.backends.api import Backend

NAMES = [n for n in os.environ.get("TAHR_TEST_BACKENDS", ",".join(BACKENDS)).split(",") if n]
_opened: dict[str, Backend] = {}


def backend(name: str) -> Backend:
    """One instance per name, so that thread pools are not made again for every test."""
    if name not in _opened:
        _opened[name] = open_backend(name, n_threads=None if name == "reference" else 2)
    return _opened[name]
