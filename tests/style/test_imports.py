"""The arrows of the architecture are the only imports allowed."""

import ast
import importlib
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from sources import FILES, ROOT, parsed, place, text_of

# A part may import the parts to its right (and itself). `backends.api` is the op interface without any device;
# `backends.host.memory` is for all who keep something per request.
CORE = ("errors", "regular_file", "config", "weights", "offload", "backends", "models", "kv", "text", "grammar")
# The executor alone sees a backend: the engine sees arrays.
ENGINE = ("errors", "regular_file", "config", "models", "kv", "text", "grammar", "backends.api", "backends.sampling")
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "regular_file": set(),
    "collector": set(),
    "config": {"errors", "grammar.spec"},
    "grammar": {"errors", "text", "_native"},
    "weights": {"errors", "regular_file", "_native"},
    "text": {"errors", "regular_file"},
    "hub": {"errors", "regular_file"},
    "images": {"errors", "models.config", "models.files"},
    "speech": {"errors"},
    "kv": {"errors", "_native"},
    "offload": {"errors", "weights", "regular_file"},
    "backends": {"errors", "regular_file", "weights", "offload", "_native", "_vulkan", "collector"},
    "models": {"errors", "regular_file", "config", "weights", "offload", "backends.api"},
    "executor": {"errors", "regular_file", "weights", "offload", "backends", "models", "kv", "_native"},
    "engine": {*ENGINE, "executor"},
    "generation": {"errors", "config", "grammar", "text", "engine"},
    "loading": {*CORE, "hub", "engine", "executor", "collector", "images", "speech"},
    "library": {
        *("errors", "regular_file", "config", "models", "kv", "text", "grammar", "backends.api"),
        *("hub", "engine", "executor", "generation", "loading", "collector", "images", "speech"),
    },
    "tools": {*CORE, *("hub", "engine", "generation", "loading", "library", "__init__")},
    "server": {
        *(
            "errors",
            "regular_file",
            "config",
            "grammar",
            "text",
            "hub",
            "engine",
            "generation",
            "loading",
            "library",
            "images",
            "speech",
            "__init__",
        ),
        "backends.host.memory",
    },
    "bench_serve": {"errors", "regular_file", "config"},
    "cli": {
        *CORE,
        *("hub", "engine", "generation", "loading", "library", "tools", "server", "bench_serve", "speech", "__init__"),
    },
    "__init__": {"errors", "config", "library"},
    "__main__": {"cli"},
}
ONLY = {
    "torch": "backends/cuda",
    "triton": "backends/cuda",
    "PIL": "images",
    "av": "speech/audio",
    "cryptography": "kv/tiers",
}
NATIVE = ("_native", "_vulkan")  # modules of C++
# What those above an executor may know of the op interface: arrays, and the sizes and inputs of steps.
ABOVE = ("engine", "generation", "library", "server")
PLAIN = {
    *("Bytes", "EnergyCounter", "Floats", "Ints", "Rows"),
    *("LORA_TILE", "MAX_ADAPTERS", "MAX_STACK", "LoraRows", "StepInputs", "StepLimits", "N_AXES", "Extras"),
}
NO_ARRAYS = [
    *(
        "engine/scheduling/scheduler.py",
        "engine/scheduling/waiting_queue.py",
        "engine/scheduling/policies.py",
        "engine/sequences/sequence.py",
        "engine/sequences/stats.py",
    ),
    *("kv/pages.py", "kv/prefix.py", "kv/tables.py"),
]
MODULE = re.compile(r"tahr(\.\w+){2,}")  # a name for `import_module`; shorter ones are of loggers


def is_module(name: str) -> bool:
    return bool(MODULE.fullmatch(name)) and ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()


@cache
def imported(path: Path) -> frozenset[str]:
    """Absolute names of all modules a file imports, wherever the import stands, or names for `import_module`."""
    source = parsed(path)
    names = {text for text in source.texts if is_module(text)}
    for node in source.imports:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return frozenset(names)


def part_of(path: Path) -> str:
    return place(path).split("/")[0].removesuffix(".py")


def allows(part: str, name: str) -> bool:
    inside = name.removeprefix("tahr").removeprefix(".")
    if not inside or inside.split(".")[0] == part:
        return True
    return any(inside == ok or inside.startswith(ok + ".") for ok in ALLOWED[part]) or (
        (inside[0].isupper() or inside == "__version__") and "__init__" in ALLOWED[part]  # from tahr import LLM
    )


def against_the_arrows(path: Path) -> list[str]:
    """What a file imports and may not."""
    part = part_of(path)
    ours = {name for name in imported(path) if name == "tahr" or name.startswith("tahr.")}
    # `from tahr import x` also reports the bare package; what counts is the module it names.
    wrong = {name for name in ours if name != "tahr" and not allows(part, name)}
    # `from tahr.backends import api` reports the package too; the interface alone is fine.
    if "backends.api" in ALLOWED[part] and "tahr.backends" in wrong and "tahr.backends.api" in ours:
        wrong.discard("tahr.backends")
    return sorted(wrong)


def test_imports_follow_the_arrows() -> None:
    assert {place(path): wrong for path in FILES if (wrong := against_the_arrows(path))} == {}


def names_of(path: Path, package: str) -> set[str]:
    """The names that a file imports from a package of ours or from what is in it."""
    nodes = [node for node in parsed(path).imports if isinstance(node, ast.ImportFrom)]
    ours = [node for node in nodes if f"{node.module}.".startswith(f"{package}.")]
    return {alias.name for node in ours for alias in node.names}


def test_no_backend_above_the_executor() -> None:
    """An executor alone sees a `Backend`, its tensors, memory and plans; loading makes them."""
    above = [path for path in FILES if part_of(path) in ABOVE]
    opened = {place(path): names for path in above if (names := names_of(path, "tahr.backends.api") - PLAIN)}
    assert opened == {}
    homes = ("tahr.backends.api", "tahr.backends.sampling", "tahr.backends.host")
    others = {
        place(path): [n for n in targets(path) if n.startswith("tahr.backends") and not n.startswith(homes)]
        for path in above
    }
    assert {name: found for name, found in others.items() if found} == {}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def targets(path: Path) -> set[str]:
    """The files of ours that a file imports from: of `from a import b` that of b where b is one, else that of a."""
    source = parsed(path)
    found = {text for text in source.texts if is_module(text)}
    for node in source.imports:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names if alias.name not in NATIVE}
            found |= {full if full in MODULES else str(node.module) for full in inner.values()}
    return found & MODULES.keys()


def import_graph() -> dict[str, set[str]]:
    """Which of our files imports which, wherever in the file the import stands (types and functions included)."""
    return {module: targets(path) - {module} for module, path in MODULES.items()}


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


def folder_of(module: str) -> str:
    """The folder of a module; a file at the top of the package is a folder of its own."""
    path = ROOT.joinpath(*module.split("."))
    return module if path.is_dir() or module.count(".") == 1 else module.rpartition(".")[0]


def test_no_folder_imports_its_own_importers() -> None:
    """Imports inside functions count, and so do names of modules in strings."""
    graph: dict[str, set[str]] = {}
    for module, names in import_graph().items():
        folder = folder_of(module)
        graph.setdefault(folder, set()).update({folder_of(name) for name in names} - {folder})
    assert cycles(graph) == []


def test_vulkan_stays_in_its_backend() -> None:
    assert [place(p) for p in FILES if "tahr._vulkan" in imported(p) and "backends/vulkan/" not in place(p)] == []


def test_device_libraries_stay_in_their_backend() -> None:
    outside = [(path, library) for path in FILES for library, home in ONLY.items() if not place(path).startswith(home)]
    imports = [(place(p), library) for p, library in outside if library in {name.split(".")[0] for name in imported(p)}]
    assert imports == []


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
        f"{place(path)}: {word}"
        for path in FILES
        if part_of(path) in {"models", "engine", "library", "kv", "text", "weights"}
        for word in words
        if word in text_of(path)
    ]
    assert not asking


PROGRAMS = sorted(p for room in ("benchmarks", "scripts", "examples") for p in (ROOT / room).glob("*.py"))


def names_from_tahr(path: Path) -> list[tuple[str, str]]:
    """The modules of ours that a file imports names from, with the names; CUDA's need a GPU."""
    nodes = [node for node in parsed(path).imports if isinstance(node, ast.ImportFrom)]
    ours = [(str(node.module), alias.name) for node in nodes for alias in node.names]
    return [(module, name) for module, name in ours if module.split(".")[0] == "tahr" and "cuda" not in module]


def exists(module: str, name: str) -> bool:
    found = importlib.import_module(module)
    if hasattr(found, name):
        return True
    return hasattr(found, "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None


def test_programs_import_names_that_exist() -> None:
    """Benchmarks and scripts are not run by the tests, so a renamed class would be noticed late."""
    named = [(path.name, *each) for path in PROGRAMS for each in names_from_tahr(path)]
    assert [each for each in named if not exists(*each[1:])] == []
