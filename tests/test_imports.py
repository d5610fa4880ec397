"""The arrows of the architecture are the only imports allowed."""

import ast
import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "tahr"

# A part may import the parts to its right (and itself). `backends.api` is the op interface without any device;
# `backends.host_memory` is for all who keep something per request.
CORE = ("errors", "regular_file", "config", "weights", "backends", "models", "kv", "text", "grammar")
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "kept_hash": set(),
    "regular_file": set(),
    "collector": set(),
    "config": {"errors", "grammar.spec", "kept_hash"},
    "grammar": {"errors", "text", "_native"},
    "weights": {"errors", "regular_file", "_native"},
    "text": {"errors", "regular_file"},
    "hub": {"errors", "regular_file"},
    "kv": {"errors"},
    "backends": {"errors", "weights", "_native", "collector"},
    "models": {"errors", "regular_file", "config", "weights", "backends.api"},
    "engine": {*CORE, "hub", "collector"},
    "library": {*CORE, "hub", "engine", "collector"},
    "tools": {*CORE, *("hub", "engine", "library", "__init__")},
    "server": {
        *("errors", "regular_file", "config", "grammar", "text", "hub", "engine", "library", "__init__"),
        "backends.host_memory",
    },
    "bench_serve": {"errors", "regular_file", "config"},
    "cli": {
        *CORE,
        *("hub", "engine", "library", "tools", "server", "bench_serve", "__init__"),
    },
    "__init__": {"errors", "config", "library"},
    "__main__": {"cli"},
}
ONLY = {"torch": "backends/cuda", "triton": "backends/cuda", "wgpu": "backends/vulkan"}
NO_ARRAYS = [
    *("engine/scheduler.py", "engine/waiting_queue.py", "engine/policies.py", "engine/sequence.py", "engine/stats.py"),
    *("kv/pages.py", "kv/prefix.py", "kv/tables.py"),
]
FILES = sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Absolute names of all modules a file imports, wherever the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def allows(part: str, name: str) -> bool:
    inside = name.removeprefix("tahr").removeprefix(".")
    if not inside or inside.split(".")[0] == part:
        return True
    return any(inside == ok or inside.startswith(ok + ".") for ok in ALLOWED[part]) or (
        (inside[0].isupper() or inside == "__version__") and "__init__" in ALLOWED[part]  # from tahr import LLM
    )


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_arrows(path: Path) -> None:
    part = part_of(path)
    ours = {name for name in imported(path) if name == "tahr" or name.startswith("tahr.")}
    # `from tahr import x` also reports the bare package; what counts is the module it names.
    wrong = {name for name in ours if name != "tahr" and not allows(part, name)}
    # `from tahr.backends import api` reports the package too; the interface alone is fine.
    if "backends.api" in ALLOWED[part] and "tahr.backends" in wrong and "tahr.backends.api" in ours:
        wrong.discard("tahr.backends")
    assert not wrong, f"{path.relative_to(ROOT)} may not import {sorted(wrong)}"


def module_of(path: Path) -> str:
    parts = ("tahr", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph() -> dict[str, set[str]]:
    """Which of our files imports which, wherever in the file the import stands (types and functions included)."""
    modules = {module_of(path): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = imported(path)
        # `from a import b` reports a.b and a: where b is a file, that file alone is meant.
        packages = {name.rpartition(".")[0] for name in names if name in modules}
        graph[module] = {name for name in names if name in modules and name not in packages} - {module}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of files that all reach each other."""
    reach = {module: set(targets) for module, targets in graph.items()}
    for middle in graph:
        for module, targets in reach.items():
            if middle in targets and module != middle:
                targets |= reach[middle]
    groups = {frozenset(o for o in reach[m] if m in reach[o]) | {m} for m in graph}
    return [sorted(group) for group in groups if len(group) > 1]


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert cycles(import_graph()) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_device_libraries_stay_in_their_backend(path: Path) -> None:
    for library, home in ONLY.items():
        if not str(path.relative_to(ROOT)).startswith(home):
            assert not any(name.split(".")[0] == library for name in imported(path)), f"{path} imports {library}"


@pytest.mark.parametrize("name", NO_ARRAYS)
def test_scheduling_needs_no_arrays(name: str) -> None:
    import subprocess

    module = "tahr." + name.removesuffix(".py").replace("/", ".")
    code = f"import sys, {module}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nobody_asks_where_it_runs() -> None:
    """Outside backends/ no code branches on the device."""
    words = ("cuda", "vulkan", "is_cpu", '== "cpu"', "== 'cpu'")
    asking = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in FILES
        if part_of(path) in {"models", "engine", "library", "kv", "text", "weights"}
        for word in words
        if word in path.read_text()
    ]
    assert not asking


PROGRAMS = sorted(p for room in ("benchmarks", "scripts", "examples") for p in (ROOT.parent / room).glob("*.py"))


def names_from_tahr(path: Path) -> list[tuple[str, str]]:
    """The modules of ours that a file imports names from, with the names; CUDA's need a GPU."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    ours = [(str(node.module), alias.name) for node in nodes for alias in node.names]
    return [(module, name) for module, name in ours if module.split(".")[0] == "tahr" and "cuda" not in module]


def exists(module: str, name: str) -> bool:
    found = importlib.import_module(module)
    if hasattr(found, name):
        return True
    return hasattr(found, "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: str(p.relative_to(ROOT.parent)))
def test_programs_import_names_that_exist(path: Path) -> None:
    """Benchmarks and scripts are not run by the tests, so a renamed class would be noticed late."""
    assert [each for each in names_from_tahr(path) if not exists(*each)] == []
