"""Names that a user has given to models (`tahr cp`): a small file of names and references."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager
from pathlib import Path

from tahr.errors import ConfigError
from tahr.hub import store
from tahr.regular_file import read_bytes

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(?::[A-Za-z0-9._-]{1,63})?")
MAX_BYTES = 1 << 20
MAX_NAMES = 1000


def own_names() -> dict[str, str]:
    """References by the names they were given."""
    path = _path()
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_bytes(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"The names in {path} cannot be read ({error}): delete the file.") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(f"The names in {path} are not what `tahr cp` writes: delete the file.")
    return found


def put(name: str, reference: str) -> None:
    """Write a name down, or another model under it."""
    if not NAME.fullmatch(name) or ".." in name:
        raise ConfigError(f"`{name[:80]}` is not a name: write letters, digits, dots and dashes, such as chat:v2.")
    with _alone():
        names = own_names() | {name.lower(): reference}
        if len(names) > MAX_NAMES:
            raise ConfigError(f"There are {MAX_NAMES} names already: remove some with `tahr rm`.")
        store.write_text(_path(), json.dumps(names, indent=1))


def forget(name: str) -> bool:
    """Whether there was such a name; the model stays."""
    if name.lower() not in own_names():
        return False
    with _alone():
        names = own_names()
        names.pop(name.lower(), None)
        store.write_text(_path(), json.dumps(names, indent=1))
    return True


def _alone() -> AbstractContextManager[None]:
    """The right to change the file: of two processes that each write what they have read, one would be lost."""
    return store.lock(_path(), lambda: None)


def _path() -> Path:
    return store.home() / "names.json"
