"""Snapshots of a `SpeculativeEngine`: that of a session, which holds the layers of both models, and what is beside it.

TAHRSPEC | version u32 | header bytes u32 | header (JSON) | snapshot of the session | sha256 of it all
"""

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from math import isfinite

from tahr.config import TOKEN
from tahr.errors import SnapshotIncompatible
from tahr.library.inference.snapshot import check_header

MAGIC = b"TAHRSPEC"
VERSION = 1
START = struct.Struct("<8sII")
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class SpeculativeText:
    """Speculation's part of a session; random numbers follow from the seed and the length of the reply."""

    n_tokens: int  # drafted at once, at most
    n_prompt: int  # tokens of the text that are the prompt
    draft_path: str
    draft_fingerprint: str
    mu: float | None = None  # mirostat's, where the reply stopped

    def __post_init__(self) -> None:
        if not (TOKEN.holds(self.n_tokens) and TOKEN.holds(self.n_prompt)):
            raise ValueError("a number is not one")
        if not (isinstance(self.draft_path, str) and isinstance(self.draft_fingerprint, str)):
            raise TypeError("a text is not one")
        if self.mu is not None and not (isinstance(self.mu, float) and isfinite(self.mu)):
            raise ValueError("mu is no number")


def join(text: SpeculativeText, session: bytes) -> bytes:
    """One snapshot of both."""
    header = json.dumps(asdict(text)).encode()
    parts = [START.pack(MAGIC, VERSION, len(header)), header, session]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def split(data: bytes) -> tuple[SpeculativeText, bytes]:
    """The parts of a sound snapshot."""
    if not isinstance(data, bytes) or data[: len(MAGIC)] != MAGIC or len(data) < START.size + DIGEST_BYTES:
        raise SnapshotIncompatible("These bytes are no snapshot of a SpeculativeEngine: give what snapshot() returned.")
    _, version, n_header = START.unpack_from(data)
    begin = START.size + n_header
    if version != VERSION:
        raise SnapshotIncompatible(
            f"The snapshot has version {version}, but this Tahr reads version {VERSION}: use the Tahr that made it."
        )
    if begin + DIGEST_BYTES > len(data):
        raise SnapshotIncompatible("The snapshot is cut off: take another copy of it.")
    check_header(n_header)
    if hashlib.sha256(memoryview(data)[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
        raise SnapshotIncompatible("The snapshot is damaged: its checksum does not match. Take another copy of it.")
    try:
        text = SpeculativeText(**json.loads(data[START.size : begin]))
    except (ValueError, TypeError, RecursionError) as error:
        raise SnapshotIncompatible(
            f"The snapshot's header makes no sense ({error}): make the snapshot anew."
        ) from error
    return text, data[begin:-DIGEST_BYTES]
