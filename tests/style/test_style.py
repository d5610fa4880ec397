"""Small files, short functions, and a project that speaks of itself alone."""

import statistics
import subprocess
from collections import Counter
from pathlib import Path

from sources import FILES, ROOT, parsed

MAX_FILE, MAX_FUNCTION, MEDIAN_FUNCTION, MAX_ROOM = 500, 60, 6, 20
CODE = {".py", ".cpp", ".h"}
MAX_FIELDS = 15
# Records with more fields than that, and why they are flat.
WIDE_RECORDS = {
    # Bodies as their API has them.
    "BatchReply": "a body of OpenAI's",
    "ChatBody": "a body of OpenAI's",
    "CountTokensBody": "a body of Anthropic's",
    "GenerationBody": "a body of OpenAI's",
    "NativeBody": "a body of llama.cpp's",
    "OllamaOptions": "a body of Ollama's",
    "ResponseReply": "a body of OpenAI's",
    "ResponsesBody": "a body of OpenAI's",
    # Settings as users write them: keyword arguments, flags and lines of a file.
    "BenchPlan": "flags of bench-serve",
    "EngineConfig": "flags, and keyword arguments of LLM",
    "Settings": "flags of serve",
    "TranscribeOptions": "flags, and keyword arguments of transcribe",
    # What users and scrapers read.
    "Completion": "public attributes",
    "GenerationRecord": "names of metrics, logs and traces",
    "StatsSnapshot": "names of metrics",
    # Arrays of a step: one for each, in memory of the executor and of the device.
    "DeviceInputs": "arrays of a step",
    "StepInputs": "arrays of a step",
    # Not split yet.
    "ServedModel": "not split yet",
    "ServedRequest": "not split yet",
}


def tracked() -> list[Path]:
    try:
        names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(ROOT)) for p in (ROOT / "tahr").rglob("*")]
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def functions(path: Path) -> list[tuple[int, str]]:
    return [(n, f"{path.relative_to(ROOT)}:{line} {name}") for n, line, name in parsed(path).functions]


def test_files_fit_in_a_head() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in tracked()
        if p.suffix in CODE and (n := len(p.read_text().splitlines())) > MAX_FILE
    }
    assert not long


def test_rooms_hold_few_files() -> None:
    rooms = Counter(p.parent.relative_to(ROOT) for p in tracked() if p.suffix in CODE and "tests" not in p.parts)
    assert {str(room): n for room, n in rooms.items() if n > MAX_ROOM and room.parts[0] == "tahr"} == {}


def test_the_tests_have_rooms() -> None:
    """At most so many test files each, and none beside the rooms."""
    files = [p for p in tracked() if "tests" in p.relative_to(ROOT).parts and p.name.startswith("test_")]
    rooms = Counter(p.parent.relative_to(ROOT / "tests") for p in files)
    assert {str(room): n for room, n in rooms.items() if n > MAX_ROOM or room == Path()} == {}


def test_a_test_file_has_a_name_of_its_own() -> None:
    """Pytest imports test files and helpers by their base names."""
    names = Counter(p.name for p in (ROOT / "tests").rglob("*.py"))
    assert [name for name, n in names.items() if n > 1 and name != "conftest.py"] == []


def test_records_have_few_fields() -> None:
    """A record with more fields is made of parts; those listed are flat for a reason."""
    found = {name: n for path in FILES for name, n in parsed(path).records.items() if n > MAX_FIELDS}
    assert {name: n for name, n in found.items() if name not in WIDE_RECORDS} == {}
    assert WIDE_RECORDS.keys() <= found.keys()


def test_functions_are_short() -> None:
    found = [
        f for p in tracked() if p.suffix == ".py" and "tahr" in p.relative_to(ROOT).parts[:1] for f in functions(p)
    ]
    assert [f for f in found if f[0] > MAX_FUNCTION] == []
    lengths = sorted(n for n, _ in found)
    assert statistics.median(lengths) <= MEDIAN_FUNCTION
    assert lengths[int(len(lengths) * 0.9)] <= 30


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of somebody's machine in anything we ship."""
    home = "/" + "work/"  # split, so that this file does not find itself
    wrong = [
        str(p.relative_to(ROOT))
        for p in tracked()
        if p.suffix not in {".npz", ".png"} and home in p.read_text(errors="replace")
    ]
    assert not wrong
