"""A directory of keys and values in which a stranger has put files: none is believed, and none makes us wait."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import engine
from tahr.kv.tiers import page_files
from tahr.kv.tiers.page_files import (
    HEADER,
    MAGIC,
    STATE_BIT,
    VERSION,
    Damaged,
    KvFile,
    checksum,
    pack_header,
    read_file,
)
from tahr.kv.tiers.seal import Seal
from tiered import LAYOUT, contents, disk_of, reply, tiered
from tiers import examples

PROMPT = [1 + (i * i * 7 + 3 * i) % 200 for i in range(61)]
WHICH = KvFile(bytes(range(16)), 2)
PAGES = contents(2, fill=7)


def forged(**lies: int | bytes) -> bytes:
    """A file whose header lies, with a checksum that is right."""
    facts: dict[str, int | bytes] = {"magic": MAGIC, "version": VERSION, "layout": LAYOUT, "hash": WHICH.block_hash}
    facts |= {"n_pages": 2, "sealed": 0, "mask": 1, "n_bytes": PAGES.n_bytes}
    magic, version, *rest = (facts | lies).values()
    body = struct.pack("<16s16sIIQQ", *rest)
    blank = struct.pack("<8sII", magic, version, 0) + body
    return struct.pack("<8sII", magic, version, checksum([blank, *PAGES.parts])) + body + b"".join(PAGES.parts)


LIES: dict[str, bytes] = {
    "nothing": b"",
    "a header alone": forged()[: HEADER.size],
    "another layout": forged(layout=b"x" * 16),
    "another text": forged(hash=b"x" * 16),
    "more pages than it has": forged(n_pages=1 << 31),
    "more bytes than any disk": forged(n_bytes=(1 << 64) - 1),
    "groups that the model lacks": forged(mask=0b10),
    "all groups": forged(mask=(1 << 63) - 1),
    "no groups": forged(mask=0),
    "a state": forged(mask=1 | STATE_BIT),
    "a seal": forged(sealed=1),
    "a later version": forged(version=VERSION + 1),
    "another magic": forged(magic=b"GGUF\0\0\0\0"),
    "zeros": bytes(len(forged())),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kv").mkdir(0o700)
    return tmp_path / "kv"


def read(folder: Path) -> list[bytes]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        return [bytes(part) for part in read_file(descriptor, LAYOUT, WHICH, contents(2)).parts]
    finally:
        os.close(descriptor)


def put(folder: Path, content: bytes) -> Path:
    path = folder / WHICH.name
    path.touch(0o600)
    path.write_bytes(content)
    return path


def test_an_honest_file_is_read(folder: Path) -> None:
    put(folder, forged())
    assert read(folder) == [bytes(part) for part in PAGES.parts]
    assert forged()[16 : HEADER.size] == pack_header(LAYOUT, WHICH, PAGES, False)[16:]


@pytest.mark.parametrize("name", LIES)
def test_headers_that_lie(folder: Path, name: str) -> None:
    put(folder, LIES[name])
    with pytest.raises(Damaged):
        read(folder)


@settings(max_examples=examples(200), deadline=None)
@given(content=st.binary(max_size=600), keeps_magic=st.booleans())
def test_made_up_files(tmp_path_factory: pytest.TempPathFactory, content: bytes, keeps_magic: bool) -> None:
    folder = tmp_path_factory.mktemp("kv")
    put(folder, MAGIC + struct.pack("<I", VERSION) + content if keeps_magic else content)
    with pytest.raises(Damaged):
        read(folder)


def pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def directory(path: Path) -> None:
    path.mkdir(0o700)


def link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def open_to_others(path: Path) -> None:
    path.touch()
    path.chmod(0o644)


def sparse(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, 1 << 40)


KINDS: list[Callable[[Path], None]] = [pipe, directory, link, link_to_itself, open_to_others, sparse]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_ours_is_a_miss(stories: Path, tmp_path: Path, kind: Callable[[Path], None]) -> None:
    """Nothing is waited for, followed or read; the server goes on, and goes on keeping."""
    wanted = reply(engine(stories), PROMPT)
    reply(tiered(stories, tmp_path / "kv"), PROMPT)
    names = sorted((tmp_path / "kv").rglob("*.kv"))
    for path in names:
        path.unlink()
        kind(path)
    eng = tiered(stories, tmp_path / "kv")
    assert reply(eng, PROMPT) == wanted
    assert not disk_of(eng).off and disk_of(eng).stats.n_damaged > 0


def test_files_that_were_planted_without_the_key(stories: Path, tmp_path: Path) -> None:
    """Whoever can write to the directory makes checksums that are right, but no seal; and reads no page in it."""
    seal = Seal(bytes(32))
    wanted = reply(engine(stories), PROMPT)
    reply(tiered(stories, tmp_path / "plain"), PROMPT)
    reply(tiered(stories, tmp_path / "kv", seal=seal), PROMPT)
    plain = sorted((tmp_path / "plain").rglob("*.kv"))[0]
    files = sorted((tmp_path / "kv").rglob("*.kv"))
    page = plain.read_bytes()[HEADER.size : HEADER.size + 64]
    assert not any(page in file.read_bytes() for file in files)
    for file in files:
        content = bytearray(file.read_bytes())
        content[HEADER.size + 100] ^= 1
        content[12:16] = bytes(4)
        content[12:16] = struct.pack("<I", checksum([bytes(content[: HEADER.size]), bytes(content[HEADER.size :])]))
        file.write_bytes(content)
    eng = tiered(stories, tmp_path / "kv", seal=seal)
    assert reply(eng, PROMPT) == wanted and disk_of(eng).stats.n_damaged > 0
    again = tiered(stories, tmp_path / "kv", seal=Seal(bytes(31) + b"1"))
    assert reply(again, PROMPT)[:2] == wanted[:2]


def test_a_stranger_cannot_make_us_read_much(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a terabyte with an honest header is not read at all."""
    path = put(folder, forged())
    os.truncate(path, 1 << 40)
    monkeypatch.setattr(page_files, "read_all", lambda *args: pytest.fail("it was read"))
    with pytest.raises(Damaged):
        read(folder)
