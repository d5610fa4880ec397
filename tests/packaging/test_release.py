"""`make release`: what stops one, and what it writes of the files that were built."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "packaging"))

import formula  # noqa: E402
import release  # noqa: E402
import release_checks  # noqa: E402

VERSION = "1.2.3"
URL = "https://forge.example/owner/tahr"
CHANGES = f"# Changes\n\n## Unreleased\n\n## {VERSION}\n\n- It answers.\n"


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", str(root), *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(root: Path) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "A commit")
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository that is ready for a release."""
    root = tmp_path / "checkout"
    (root / "tahr").mkdir(parents=True)
    (root / "tahr/__init__.py").write_text(f'__version__ = "{VERSION}"\n')
    (root / "CHANGELOG.md").write_text(CHANGES)
    git(root, "init", "-q", "-b", "main")
    commit(root)
    return root


def keep_gate(root: Path, commit: str, ok: bool = True) -> None:
    file = root / "benchmarks/results" / VERSION / "cpu.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"about": {"commit": commit}, "checks": {"run": {"ok": ok}}}))


def test_nothing_is_in_the_way(checkout: Path) -> None:
    assert release_checks.problems(checkout, VERSION) == []
    keep_gate(checkout, git(checkout, "rev-parse", "HEAD"))
    assert release_checks.problems(checkout, VERSION) == [], "what the gate kept is not a change"


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "1.2.3-rc1", "1.2.3 ", ""])
def test_a_version_has_three_numbers(version: str, checkout: Path) -> None:
    assert "is not a version" in release_checks.problems(checkout, version)[0]


def test_another_branch(checkout: Path) -> None:
    git(checkout, "switch", "-q", "-c", "side")
    assert release_checks.problems(checkout, VERSION) == ["The branch is side: releases are made of main."]


def test_a_changed_tree(checkout: Path) -> None:
    (checkout / "more.txt").touch()
    assert release_checks.problems(checkout, VERSION) == ["The tree is not clean: more.txt."]


def test_a_version_is_released_once(checkout: Path) -> None:
    git(checkout, "tag", f"v{VERSION}")
    assert "released once" in release_checks.problems(checkout, VERSION)[0]


def test_another_number(checkout: Path) -> None:
    found = release_checks.problems(checkout, "1.2.4")
    assert found[0] == "tahr/__init__.py says 1.2.3: write 1.2.4 there."
    assert found[1] == "CHANGELOG.md has no text below a heading `## 1.2.4`."


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("# Changes\n\n## Unreleased\n", "no text below a heading"),
        (f"# Changes\n\n## {VERSION}\n\n## 1.2.2\n\n- Older.\n", "no text below a heading"),
        (CHANGES.replace("Unreleased\n", "Unreleased\n\n- One more.\n"), "below `## Unreleased`"),
    ],
)
def test_changes_stand_below_the_version(text: str, sentence: str, checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text(text)
    commit(checkout)
    found = release_checks.problems(checkout, VERSION)
    assert len(found) == 1 and sentence in found[0]


def test_the_gate_passed_for_this_code(checkout: Path) -> None:
    assert "no results" in release_checks.failed_gate(checkout, VERSION, "cpu")
    seen = git(checkout, "rev-parse", "HEAD")
    keep_gate(checkout, seen)
    assert release_checks.failed_gate(checkout, VERSION, "cpu") == ""
    commit(checkout)  # of what the gate kept
    assert release_checks.failed_gate(checkout, VERSION, "cpu") == ""
    keep_gate(checkout, seen, ok=False)
    assert release_checks.failed_gate(checkout, VERSION, "cpu") == "the gate on cpu failed: run"
    keep_gate(checkout, "")
    assert "saw other code" in release_checks.failed_gate(checkout, VERSION, "cpu")


def test_the_gate_of_older_code_does_not_count(checkout: Path) -> None:
    keep_gate(checkout, git(checkout, "rev-parse", "HEAD"))
    (checkout / "tahr/more.py").touch()
    commit(checkout)
    assert "saw other code" in release_checks.failed_gate(checkout, VERSION, "cpu")


def built(out: Path) -> Path:
    """What `make standalone` leaves."""
    folder = out / "standalone"
    (folder / "tahr-folder").mkdir(parents=True)
    (folder / "tahr-folder" / "tahr").write_text("a program")
    with tarfile.open(folder / "tahr-standalone.tar.gz", "w:gz") as file:
        file.add(folder / "tahr-folder", "tahr")
    return release.named_archive(out, VERSION)


def test_the_formula_names_the_archive(tmp_path: Path) -> None:
    archive = built(tmp_path)
    release.write_formula(archive, VERSION, URL + "/")
    text = (tmp_path / "Formula/tahr.rb").read_text()
    assert VERSION in archive.name and f'url "{URL}/releases/download/v{VERSION}/{archive.name}"' in text
    assert re.findall(r'sha256 "(.*)"', text) == [hashlib.sha256(archive.read_bytes()).hexdigest()]
    assert re.findall(r'version "(.*)"', text) == [VERSION]
    assert text.count(" do\n") + text.count("def ") + text.count("class ") == text.count("end\n")


def test_the_formula_is_ruby(tmp_path: Path) -> None:
    if not (ruby := shutil.which("ruby")):
        pytest.skip("ruby is not installed")
    file = tmp_path / "tahr.rb"
    file.write_text(formula.formula(built(tmp_path), VERSION, URL))
    assert subprocess.run([ruby, "-wc", file], capture_output=True, text=True, check=True).stdout == "Syntax OK\n"


def wheel(folder: Path, name: str, text: str) -> None:
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr(f"tahr-{VERSION}.dist-info/sboms/tahr.cdx.json", text)


def test_the_bill_of_materials_is_that_of_the_wheels(tmp_path: Path) -> None:
    wheel(tmp_path, f"tahr-{VERSION}-cp312-abi3-manylinux_2_17_x86_64.whl", "{}")
    wheel(tmp_path, f"tahr-{VERSION}-cp311-cp311-manylinux_2_17_x86_64.whl", "{}")
    wheel(tmp_path, f"tahr-{VERSION}-cp311-cp311-musllinux_1_2_x86_64.whl", "[]")
    assert release.bill_of_materials(tmp_path) == "{}"
    wheel(tmp_path, f"tahr-{VERSION}-cp313-abi3-manylinux_2_17_x86_64.whl", "[]")
    with pytest.raises(SystemExit, match="have 2 bills of materials: build them again"):
        release.bill_of_materials(tmp_path)


def test_an_address_is_asked_for() -> None:
    script = ROOT / "scripts/packaging/release.py"
    done = subprocess.run([sys.executable, script, VERSION, "--url", ""], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "URL is where" in done.stderr


def test_sums_are_those_that_sha256sum_reads(tmp_path: Path) -> None:
    archive = built(tmp_path)
    release.write_formula(archive, VERSION, URL)
    release.write_sums(tmp_path)
    release.write_sums(tmp_path)  # again: the sums are not summed
    lines = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["Formula/tahr.rb", archive.name]
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    archive.write_bytes(b"another")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_a_dry_run_says_what_would_run_and_makes_nothing(tmp_path: Path) -> None:
    script = ROOT / "scripts/packaging/release.py"
    words = ["99.0.0", "--url", URL, "--out", str(tmp_path / "out"), "--dry-run", "--backends", "cpu", "cuda"]
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "write 99.0.0 there" in done.stdout
    assert [line.split()[2:4] for line in done.stdout.splitlines() if line.startswith("would run: make")] == [
        ["make", "gate"],
        ["make", "gate"],
        ["make", "wheels"],
        ["make", "standalone"],
    ]
    assert not (tmp_path / "out").exists()
