"""What must be so before a release is built. Each check gives the sentences that say what is not."""

import json
import re
import subprocess
from pathlib import Path

NUMBER = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
BUILT_FROM = ("tahr", "pyproject.toml", "CMakeLists.txt")  # what the gate's answers depend on
RESULTS = "benchmarks/results"


def problems(root: Path, version: str) -> list[str]:
    """Everything that is in the way, apart from the gate."""
    if not NUMBER.fullmatch(version):
        return [f"{version} is not a version such as 1.2.3 or 1.2.3rc1."]
    return [*wrong_tree(root, version), *wrong_number(root, version), *wrong_changes(root, version)]


def wrong_tree(root: Path, version: str) -> list[str]:
    found = []
    branch = git(root, "branch", "--show-current")
    if branch != "main":
        found.append(f"The branch is {branch or 'none'}: releases are made of main.")
    # What the gate kept is written beside the code and may not be committed yet.
    changed = git(root, "status", "--porcelain", "--", ".", f":!{RESULTS}")
    if changed:
        found.append(f"The tree is not clean: {', '.join(line[3:] for line in changed.splitlines()[:5])}.")
    if git(root, "tag", "--list", f"v{version}"):
        found.append(f"The tag v{version} is there already: a version is released once.")
    return found


def wrong_number(root: Path, version: str) -> list[str]:
    """The number stands in tahr/__init__.py, where pyproject.toml reads it."""
    written = re.search(r'^__version__ = "(.+)"$', (root / "tahr/__init__.py").read_text(), re.MULTILINE)
    if written and written[1] == version:
        return []
    return [f"tahr/__init__.py says {written[1] if written else 'no version'}: write {version} there."]


def wrong_changes(root: Path, version: str) -> list[str]:
    sections = dict(re.findall(r"^## (\S+).*\n((?:(?!## ).*\n?)*)", (root / "CHANGELOG.md").read_text(), re.MULTILINE))
    found = []
    if not sections.get(version, "").strip():
        found.append(f"CHANGELOG.md has no text below a heading `## {version}`.")
    if sections.get("Unreleased", "").strip():
        found.append(f"CHANGELOG.md has changes below `## Unreleased`: they belong below `## {version}`.")
    return found


def failed_gate(root: Path, version: str, backend: str) -> str:
    """Why what `make gate` kept does not let this commit pass; empty where it does."""
    file = root / RESULTS / version / f"{backend}.json"
    if not file.is_file():
        return f"no results of `make gate BACKEND={backend}` for {version}"
    kept = json.loads(file.read_text())
    failed = [name for name, seen in kept["checks"].items() if not seen["ok"]]
    if failed or not kept["checks"]:
        return f"the gate on {backend} failed: {', '.join(failed) or 'nothing was checked'}"
    commit = kept["about"]["commit"]
    if not is_same_code(root, commit):
        return f"the gate on {backend} saw other code: {commit[:12] or 'no commit'}"
    return ""


def is_same_code(root: Path, commit: str) -> bool:
    """Whether what is built has not changed since a commit."""
    command = ["git", "-C", str(root), "diff", "--quiet", commit, "HEAD", "--", *BUILT_FROM]
    return bool(commit) and subprocess.run(command, capture_output=True, check=False).returncode == 0


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    return done.stdout.rstrip()
