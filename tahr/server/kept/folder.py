"""A folder of small JSON files, each written whole or not at all, which nobody but the server's user may read."""

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
from msgspec import Struct

from tahr.errors import ConfigError
from tahr.regular_file import read_bytes
from tahr.server.http.errors import HttpError

log = logging.getLogger("tahr.server")
T = TypeVar("T", bound=Struct)

ID = re.compile(r"(?:file-|batch_)[0-9a-f]{32}")
MOST_RECORD_BYTES = 1 << 22
NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


class Folder:
    """Records by id. What is written has reached the system, not yet the disk: it outlives the process."""

    def __init__(self, path: Path):
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"Files cannot be kept in {path}: {error.strerror}. Name another --state-dir.") from None

    def place(self, id: str, kind: str) -> Path:
        assert ID.fullmatch(id), "an id is made here, and never a client's"
        return self.path / f"{id}.{kind}"

    def create(self, id: str, kind: str) -> BinaryIO:
        """A new file, to be written."""
        return os.fdopen(os.open(self.place(id, kind), NEW, 0o600), "wb")

    def write(self, id: str, record: Struct) -> None:
        """Put a record into its file."""
        new = self.place(id, "new")
        with self.create(id, "new") as file:
            file.write(msgspec.json.encode(record))
        new.replace(self.place(id, "json"))

    def remove(self, id: str) -> None:
        """Remove everything of an id; what is gone already is no matter. The record goes first."""
        for kind in ("json", "new", "tmp", "data"):
            self.place(id, kind).unlink(missing_ok=True)

    def load(self, kind: type[T]) -> Iterator[T]:
        """All records. One that cannot be read is left as it is, and said to be there."""
        for path in sorted(self.path.glob("*.json")):
            try:
                record = msgspec.json.decode(read_bytes(path, MOST_RECORD_BYTES), type=kind)
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                log.error("%s is damaged or of a newer Tahr: it is left as it is, and nobody sees it.", path)
                continue
            if ID.fullmatch(path.stem) and record.id == path.stem:  # type: ignore[attr-defined]
                yield record

    def ids_of(self, kind: str) -> set[str]:
        """The ids that have a file of a kind."""
        return {path.stem for path in self.path.glob(f"*.{kind}") if ID.fullmatch(path.stem)}


def unwritten(error: OSError) -> HttpError:
    """The error of a request whose result found no place on the disk."""
    reason = (error.strerror or "it failed").lower()
    message = f"The server's disk cannot take this ({reason}): try again when there is space."
    return HttpError(503, message, code="disk_failed", headers={"retry-after": "60"})
