"""Whatever a disk does: replies are right, no request fails, and the engine goes on."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines import engine, greedy, submit
from tahr.engine.tiers import fetcher
from tahr.engine.tiers.fetcher import READ_AHEAD
from tahr.errors import ConfigError
from tahr.kv.tiers import janitor
from tahr.kv.tiers.disk import DiskTier, FileWrite
from tahr.kv.tiers.page_files import Damaged, KvFile, read_file, write_file
from tiered import LAYOUT, contents, disk_of, reply, run, tiered

PROMPT = [1 + (i * i * 7 + 3 * i) % 200 for i in range(61)]  # 7 pages of 8 and a rest; 3 files of 2
N_ON_DISK = 48
WRITEV, PREADV = os.writev, os.preadv
Fault = Callable[..., Any]


def fails(number: int) -> Fault:
    def call(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return call


def writes_little(descriptor: int, parts: list[memoryview]) -> int:
    return WRITEV(descriptor, [parts[0][: max(1, len(parts[0]) // 3)]])


def reads_little(descriptor: int, parts: list[memoryview], begin: int) -> int:
    return PREADV(descriptor, [parts[0][: max(1, len(parts[0]) // 3)]], begin)


def reads_nothing(*_: Any) -> int:
    return 0


FAULTS: dict[str, tuple[str, Fault, str, int]] = {
    "short writes": ("writev", writes_little, "", N_ON_DISK),
    "writes of nothing": ("writev", reads_nothing, "the disk takes no bytes", 0),
    "a full disk": ("writev", fails(errno.ENOSPC), "No space left on device", 0),
    "a disk that breaks while it writes": ("writev", fails(errno.EIO), "Input/output error", 0),
    "a disk that can only be read": ("rename", fails(errno.EROFS), "Read-only file system", 0),
    "no descriptor for a moment": ("rename", fails(errno.EMFILE), "", 0),
    "short reads": ("preadv", reads_little, "", N_ON_DISK),
    "files that end too soon": ("preadv", reads_nothing, "", 0),
    "a disk that breaks while it reads": ("preadv", fails(errno.EIO), "Input/output error", 0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_disk_that_fails_changes_no_reply(
    stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    call, fault, off, n_cached = FAULTS[name]
    wanted = reply(engine(stories), PROMPT)[:2]
    monkeypatch.setattr(os, call, fault)
    first = tiered(stories, tmp_path / "kv")
    assert reply(first, PROMPT)[:2] == wanted
    second = tiered(stories, tmp_path / "kv")
    assert reply(second, PROMPT) == (*wanted, n_cached)
    assert off in {disk_of(first).off, disk_of(second).off}
    assert not list((tmp_path / "kv").rglob("*.tmp"))


def test_a_directory_that_is_removed_under_a_server(stories: Path, tmp_path: Path) -> None:
    wanted = reply(engine(stories), PROMPT)[:2]
    eng = tiered(stories, tmp_path / "kv")
    assert reply(eng, PROMPT)[:2] == wanted
    shutil.rmtree(tmp_path / "kv")
    assert reply(eng, [9, *PROMPT])[2] == 0
    assert disk_of(eng).off == "No such file or directory"
    assert reply(eng, PROMPT)[:2] == wanted


@pytest.mark.parametrize("bytes_per_s", [0.0, 1.0], ids=["unknown", "very slow"])
def test_a_disk_that_hangs_is_not_waited_for(
    stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_per_s: float
) -> None:
    """The text is computed after a moment, and the next one at once, however slow the disk was before."""
    wanted = reply(engine(stories), PROMPT)[:2]
    reply(tiered(stories, tmp_path / "kv"), PROMPT)
    eng = tiered(stories, tmp_path / "kv")

    def hangs(*args: Any) -> int:
        time.sleep(5)
        return PREADV(*args)

    monkeypatch.setattr(os, "preadv", hangs)
    monkeypatch.setattr(fetcher, "MOST_LATE_S", 1.0)
    disk_of(eng).bytes_per_s = bytes_per_s
    assert eng.scheduler.tiers
    eng.scheduler.tiers.places.pace = SimpleNamespace(token_s=1e9)
    began = time.perf_counter()
    seq = submit(eng, PROMPT, greedy(12, logprobs=5))
    assert run(eng, seq) == [wanted[0]]
    assert time.perf_counter() - began < 4
    assert disk_of(eng).stats.n_late == 1 and eng.scheduler.tiers and not eng.scheduler.tiers.places.disk_pays


def test_a_disk_slower_than_computing_is_not_asked(stories: Path, tmp_path: Path) -> None:
    reply(tiered(stories, tmp_path / "kv"), PROMPT)
    eng = tiered(stories, tmp_path / "kv")
    places = eng.scheduler.tiers and eng.scheduler.tiers.places
    assert places and places.disk_pays, "nothing is known yet, so it is tried"
    disk_of(eng).bytes_per_s = 1e6
    for slower, pays in ((1.02, True), (0.98, False)):
        places.pace = SimpleNamespace(token_s=slower * places.token_bytes / 1e6)
        assert places.disk_pays == pays
    assert reply(eng, PROMPT)[2] == 0 and disk_of(eng).stats.n_read == 0


# ---- damage -------------------------------------------------------------------------------------------------------


def one_file(folder: Path) -> tuple[int, KvFile, bytes]:
    """A file in a directory, and its bytes."""
    folder.mkdir(0o700)
    descriptor = os.open(folder, os.O_RDONLY)
    which = KvFile(bytes(range(16)), 2)
    write_file(descriptor, LAYOUT, which, contents(2, fill=7))
    return descriptor, which, (folder / which.name).read_bytes()


def test_a_byte_that_is_flipped_anywhere_is_noticed(tmp_path: Path) -> None:
    folder, which, content = one_file(tmp_path / "kv")
    assert read_file(folder, LAYOUT, which, contents(2)).parts == contents(2, fill=7).parts
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "kv" / which.name).write_bytes(damaged)
        with pytest.raises(Damaged):
            read_file(folder, LAYOUT, which, contents(2))
    os.close(folder)


def test_a_file_of_another_length_is_noticed(tmp_path: Path) -> None:
    folder, which, content = one_file(tmp_path / "kv")
    for changed in (*(content[:n] for n in range(0, len(content), 13)), content + b"x"):
        (tmp_path / "kv" / which.name).write_bytes(changed)
        with pytest.raises(Damaged):
            read_file(folder, LAYOUT, which, contents(2))
    os.close(folder)


def test_damaged_files_are_computed_and_written_again(stories: Path, tmp_path: Path) -> None:
    """All of a text, however many: those behind the files that had been read ahead stayed damaged."""
    prompt = [1, *(3 + place % 250 for place in range(150))]
    reply(tiered(stories, tmp_path / "kv"), prompt)
    wanted = reply(tiered(stories, tmp_path / "kv"), prompt)
    files = sorted((tmp_path / "kv").rglob("*.kv"))
    assert wanted[2] and len(files) > 2 * READ_AHEAD
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    again = tiered(stories, tmp_path / "kv")
    assert reply(again, prompt) == (*wanted[:2], 0) and 0 < disk_of(again).stats.n_damaged <= READ_AHEAD
    healed = tiered(stories, tmp_path / "kv")
    assert reply(healed, prompt) == wanted and disk_of(healed).stats.n_damaged == 0


def test_random_faults_under_eight_texts(stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults of the system calls below our reader and writer; every text is right whenever it is asked for."""
    chance = random.Random(7)
    prompts = [[1 + place, *PROMPT[:40], *range(3 + place, 3 + place + 9 * place)] for place in range(8)]
    wanted = [reply(engine(stories), prompt)[0] for prompt in prompts]
    open_file, rename = os.open, os.rename

    def sometimes(call: Fault) -> Fault:
        def made(*args: Any, **named: Any) -> Any:
            if chance.random() < 0.01:
                raise OSError(chance.choice([errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOENT]), "injected")
            return call(*args, **named)

        return made

    def wrong_bytes(descriptor: int, parts: list[memoryview], begin: int) -> int:
        n = PREADV(descriptor, parts, begin)
        if chance.random() < 0.1:
            part = chance.choice(parts)
            part[chance.randrange(len(part))] ^= 1 << chance.randrange(8)
        return n

    n_read = 0
    for _ in range(12):
        with monkeypatch.context() as patch:
            eng = tiered(stories, tmp_path / "kv", host_bytes=chance.choice([0, 1 << 17]))
            calls = {"open": open_file, "rename": rename, "writev": writes_little, "preadv": wrong_bytes}
            for name, call in calls.items():
                patch.setattr(os, name, sometimes(call))
            sequences = [submit(eng, prompt, greedy(12)) for prompt in prompts]
            assert run(eng, *sequences) == wanted
            assert disk_of(eng).flush(20)
            n_read += disk_of(eng).stats.n_read
            disk_of(eng).close()
    assert n_read > 20


# ---- bounds -------------------------------------------------------------------------------------------------------


def aged(path: Path, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(path, (when, when))


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    """Files of all layouts count; those that others put there, and names that are not ours, stay."""
    other = tmp_path / "kv" / ("f" * 32)
    other.mkdir(0o700, parents=True)
    (tmp_path / "kv").chmod(0o700)
    for place in range(8):
        file = other / f"{place:032x}.kv"
        file.write_bytes(bytes(1000))
        aged(file, 1000 - place)
    (other / "notes").write_bytes(bytes(5000))
    (other / f"{99:032x}.kv.1.2.tmp").write_bytes(bytes(10))
    (other / f"{98:032x}.kv.1.2.tmp").write_bytes(bytes(10))
    aged(other / f"{98:032x}.kv.1.2.tmp", 700)
    root = os.open(tmp_path / "kv", os.O_RDONLY)
    assert janitor.tidy(root, janitor.Bounds(8000, 64)) == 6010
    left = sorted(path.name for path in other.iterdir())
    assert left == sorted([*(f"{place:032x}.kv" for place in range(2, 8)), f"{99:032x}.kv.1.2.tmp", "notes"])
    os.close(root)


def test_a_directory_keeps_its_bound_while_two_write_to_it(tmp_path: Path) -> None:
    n_bytes = contents(2).n_bytes
    bound = 20 * (n_bytes + 100)
    tiers = [DiskTier(tmp_path / "kv", LAYOUT, bound) for _ in range(2)]
    for place in range(100):
        tiers[place % 2].write(FileWrite(KvFile(place.to_bytes(16, "big"), 2), contents(2, fill=place)))
        assert tiers[place % 2].flush(20)
        size = sum(path.stat().st_size for path in (tmp_path / "kv").rglob("*.kv"))
        assert size <= bound
    assert size > bound // 2
    assert all(not tier.off for tier in tiers)


def test_a_writer_that_is_killed_leaves_no_file_that_is_not_whole(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "import os; from pathlib import Path; from tiered import contents, LAYOUT\n"
        "from tahr.kv.tiers.page_files import KvFile, write_file\n"
        "folder = os.open(sys.argv[1], os.O_RDONLY); print('ready', flush=True)\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1; write_file(folder, LAYOUT, KvFile(n.to_bytes(16, 'big'), 64), contents(64, fill=n % 256))\n"
    )
    folder = tmp_path / ("a" * 32)
    folder.mkdir(0o700)
    helpers = [str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])]
    chance = random.Random(1)
    for _ in range(3):
        command = [sys.executable, "-c", program, str(folder), *helpers]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout and writer.stdout.readline()
            time.sleep(0.05 + chance.random() / 10)
            writer.send_signal(signal.SIGKILL)
    files = list(folder.glob("*.kv"))
    assert files
    root = os.open(folder, os.O_RDONLY)
    for file in files:
        read_file(root, LAYOUT, KvFile(bytes.fromhex(file.stem), 64), contents(64))
    os.close(root)


def test_a_link_in_place_of_a_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir(0o700)
    (tmp_path / "there").mkdir(0o700)
    (tmp_path / "kv" / LAYOUT.hex()).symlink_to(tmp_path / "there")
    with pytest.raises(ConfigError, match="cannot be used"):
        DiskTier(tmp_path / "kv", LAYOUT, 1 << 24)
