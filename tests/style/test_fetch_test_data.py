"""The script that fetches test data takes only what was pinned and named, and runs nothing."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import fetch_test_data as fetching  # noqa: E402
from fetch_test_data import Package, Unavailable  # noqa: E402

WANTED = Package("thing==1.0", "", "some.backend", ((r"[^/]+/data/(\w+\.txt)", r"texts/\1"),), 1, ("texts/a.txt",))


def archive_of(path: Path, members: dict[str, bytes], link: str | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    return path


def test_only_named_plain_files_come_out(tmp_path: Path) -> None:
    members = {"thing-1.0/data/a.txt": b"A", "thing-1.0/setup.py": b"no", "../data/../../b.txt": b"no"}
    archive = archive_of(tmp_path / "x.tar.gz", members, link="thing-1.0/data/c.txt")
    assert fetching.extract(WANTED, archive, tmp_path / "out") == 1
    assert [str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*")] == ["texts/a.txt"]


def test_a_large_member_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MAX_MEMBER_BYTES", 10)
    archive = archive_of(tmp_path / "x.tar.gz", {"thing-1.0/data/a.txt": b"A" * 11})
    with pytest.raises(Unavailable, match="larger than"):
        fetching.extract(WANTED, archive, tmp_path / "out")


def test_another_archive_is_refused(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "x.tar.gz", {"thing-1.0/data/a.txt": b"A"})
    fetching.check(archive, hashlib.sha256(archive.read_bytes()).hexdigest())
    with pytest.raises(Unavailable, match="sha256 differs"):
        fetching.check(archive, "0" * 64)


def test_an_incomplete_package_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archive_of(tmp_path / "x.tar.gz", {"thing-1.0/data/other": b""})
    monkeypatch.setattr(fetching, "downloaded", lambda package, scratch: archive)
    monkeypatch.setattr(fetching.assets, "FETCHED", tmp_path / "cache" / "data")
    with pytest.raises(Unavailable, match="0 of the 1 files"):
        fetching.fetch(WANTED)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_stand_in_answers_for_the_package(tmp_path: Path) -> None:
    """What pip runs instead of the package's own build backend."""
    (tmp_path / "backend.py").write_text(fetching.BACKEND)
    code = "import backend; print(backend.prepare_metadata_for_build_wheel('.'))"
    env = {**os.environ, "TAHR_PACKAGE": "some-thing==1.0"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "some_thing-1.0.dist-info"
    assert "Version: 1.0" in (tmp_path / "some_thing-1.0.dist-info" / "METADATA").read_text()
