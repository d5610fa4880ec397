"""Snapshots: a session as bytes, to be resumed later, elsewhere, with the same weights.

    TAHRSNAP | version u32 | header bytes u32 | header (JSON) | keys and values, layer after layer | sha256 of it all

Everything is checked before it is believed: sizes against the bytes at hand, the digest, then every field.
"""

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, fields, replace
from math import prod
from typing import Any

from tahr.config import SamplingParams, sampling_values
from tahr.config.checks import are_tokens
from tahr.errors import SnapshotIncompatible, TahrError
from tahr.grammar import Grammar
from tahr.kv.codec import Shape, TextRows, check_shapes, layout_of
from tahr.kv.codec import parse as parse_rows
from tahr.kv.layout import PageLayout
from tahr.library.inference.config import InferenceConfig
from tahr.library.inference.session import KvCopy, Session

MAGIC = b"TAHRSNAP"
# 1: other orders of keys and values, and q8_0 without rotation; 2: fingerprints of the ends of files alone
VERSION = 3
START = struct.Struct("<8sII")
DIGEST_BYTES = 32
MAX_HEADER_BYTES = 1 << 24  # beside what follows it, of which it may have a part
HEADER_PART = 16
TEXTS = ("model_path", "tokenizer_path", "backend", "origin")  # fields of the configuration
MAX_NAME_BYTES = 255  # limit on a folder or file on all usual disks


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """Header of a snapshot."""

    arch: str
    fingerprint: str
    config: InferenceConfig
    tokens: tuple[int, ...]
    context_size: int
    kv_dtype: str
    kv_shapes: tuple[Shape, ...]  # per layer [n_tokens, n_heads, bytes of a key and a value]
    state_bytes: tuple[int, ...] = ()  # per layer that has a state in place of keys and values
    adapter: str = ""  # the digest of the adapters they were computed with

    @property
    def kv_bytes(self) -> int:
        return sum(prod(shape) for shape in self.kv_shapes) + sum(self.state_bytes)


# ---- writing ----------------------------------------------------------------------------------------------------


def take(session: Session, config: InferenceConfig, arch: str, fingerprint: str) -> bytes:
    """A session as it is now."""
    copy = session.copy()
    rows = copy.rows
    context = session.context_size
    adapter = copy.adapter
    info = SnapshotInfo(
        arch, fingerprint, config, copy.tokens, context, copy.dtype, rows.shapes, rows.state_bytes, adapter
    )
    return pack(info, rows)


def pack(info: SnapshotInfo, rows: TextRows) -> bytes:
    """A snapshot as bytes."""
    facts = asdict(info)
    sampler = info.config.sampler
    grammar = {"grammar": asdict(sampler.grammar), "grammar_after": sampler.grammar_after} if sampler.grammar else {}
    facts["config"]["sampler"] = sampling_values(sampler) | grammar
    header = json.dumps(facts).encode()
    check_header(len(header), rows.n_bytes)
    start = START.pack(MAGIC, VERSION, len(header))
    parts: list[bytes | memoryview] = [start, header, *rows.parts()]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


# ---- reading ----------------------------------------------------------------------------------------------------


def read_info(data: bytes) -> SnapshotInfo:
    """Read the header of a snapshot, without loading a model."""
    return read_header(data)[0]


def unpack(data: bytes) -> tuple[SnapshotInfo, TextRows]:
    """Read a snapshot: its header, and its keys, values and states (views of `data`)."""
    info, begin = read_header(data)
    return info, parse_rows(data, begin, info.kv_shapes, info.state_bytes)


def read_header(data: bytes) -> tuple[SnapshotInfo, int]:
    """The checked header of a sound snapshot, and where its keys and values begin."""
    begin = check_start(data)
    if hashlib.sha256(memoryview(data)[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
        raise SnapshotIncompatible("The snapshot is damaged: its checksum does not match. Take another copy of it.")
    try:
        info = parse(json.loads(data[START.size : begin]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, TahrError) as error:
        raise SnapshotIncompatible(
            f"The snapshot's header makes no sense ({error}): make the snapshot anew."
        ) from error
    if begin + info.kv_bytes + DIGEST_BYTES != len(data):
        raise SnapshotIncompatible(
            f"The snapshot should have {info.kv_bytes} bytes of keys and values, but its size says otherwise: "
            "make it anew."
        )
    return info, begin


def check_start(data: bytes) -> int:
    """Where the header ends, if this can be a snapshot at all."""
    if not isinstance(data, bytes) or data[: len(MAGIC)] != MAGIC or len(data) < START.size + DIGEST_BYTES:
        raise SnapshotIncompatible("These bytes are not a snapshot: give what snapshot() returned, all of it.")
    _, version, n_header = START.unpack_from(data)
    if version != VERSION:
        raise SnapshotIncompatible(
            f"The snapshot has version {version}, but this Tahr reads version {VERSION}: use the Tahr that made it."
        )
    n_rest = len(data) - START.size - n_header - DIGEST_BYTES
    if n_rest < 0:
        raise SnapshotIncompatible("The snapshot is cut off: take another copy of it.")
    check_header(n_header, n_rest)
    return int(START.size + n_header)


def check_header(n_header: int, n_rest: int = 0) -> None:
    """Refuse a header that is too long for what follows it, because in memory it takes many times its bytes."""
    most = MAX_HEADER_BYTES + n_rest // HEADER_PART
    if n_header > most:
        raise SnapshotIncompatible(
            f"The snapshot's header has {n_header} bytes, but at most {most} are read: shorten the sampler's texts."
        )


def parse(header: dict[str, Any]) -> SnapshotInfo:
    config = dict(header["config"])
    sampler = dict(config["sampler"])
    if "grammar" in sampler:
        sampler["grammar"] = Grammar(**sampler["grammar"])
    config["sampler"] = SamplingParams(**sampler)
    refuse_odd_texts(config)
    info = SnapshotInfo(
        arch=str(header["arch"]),
        fingerprint=str(header["fingerprint"]),
        config=InferenceConfig(**config),
        tokens=tuple(header["tokens"]),
        context_size=header["context_size"],
        kv_dtype=str(header["kv_dtype"]),
        kv_shapes=tuple(tuple(shape) for shape in header["kv_shapes"]),
        state_bytes=tuple(header.get("state_bytes", ())),
        adapter=str(header.get("adapter", "")),
    )
    numbers = [info.context_size, *(n for shape in info.kv_shapes for n in shape), *info.state_bytes]
    if not (are_tokens(info.tokens) and all(type(n) is int and n >= 0 for n in numbers)):
        raise ValueError("a number is not one")
    check_shapes(len(info.tokens), info.kv_shapes, info.state_bytes)
    if set(header) | {"state_bytes", "adapter"} != {f.name for f in fields(SnapshotInfo)}:
        raise ValueError("unknown fields")
    return info


def refuse_odd_texts(config: dict[str, Any]) -> None:
    """Refuse texts that cannot name files, a backend or a model."""
    for name in TEXTS:
        text = config.get(name) or ""
        if not isinstance(text, str) or len(max(text.split("/"), key=len).encode("utf-8", "replace")) > MAX_NAME_BYTES:
            raise ValueError(f"{name} is no name")


def put_back(session: Session, info: SnapshotInfo, rows: TextRows) -> None:
    """Let a session of the same model hold what a snapshot holds."""
    if info.adapter != session.adapter:
        raise SnapshotIncompatible(
            "The snapshot was made with other adapters than those applied now: give the same to resume(loras=...)."
        )
    check_layout(info, session.layout())
    copy = KvCopy(info.tokens, rows.layers, info.kv_dtype, session.model, rows.states, info.adapter)
    session.restore(copy)


def check_layout(info: SnapshotInfo, mine: PageLayout) -> None:
    """Refuse a snapshot of other layers than a model's. An empty text has no states."""
    if not info.tokens:
        mine = replace(mine, states=())
    found = layout_of(info.kv_dtype, info.kv_shapes, info.state_bytes)
    if found.digest != mine.digest:
        what = "keys and values" if found.groups != mine.groups or found.dtype != mine.dtype else "states"
        raise SnapshotIncompatible(f"The snapshot's {what} do not fit the model: make the snapshot anew.")
