"""What the documents say about the code is so: paths exist, and the picture of the layers is drawn from the imports."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import layers  # noqa: E402
import models_table  # noqa: E402

DOCUMENTS = sorted(
    [*(ROOT / "docs").glob("*.md"), *(ROOT / "tahr").rglob("NOTES.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
)
PATH = re.compile(
    r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|cpp|h|md|sh|svg|toml))`|`((?:docs|tests|scripts|benchmarks)/[\w./-]*)`"
)
EXAMPLES = {"./tahr.toml"}  # files of a user


def missing_paths(document: Path) -> list[str]:
    """A file is named from the root of the checkout or of the package, or from beside the document."""
    named = {a or b for a, b in PATH.findall(document.read_text(encoding="utf-8"))} - EXAMPLES
    return sorted(n for n in named if not any((base / n).exists() for base in (ROOT, ROOT / "tahr", document.parent)))


def test_paths_exist() -> None:
    assert {each.name: missing for each in DOCUMENTS if (missing := missing_paths(each))} == {}


def test_the_picture_of_the_layers_is_true() -> None:
    assert layers.PICTURE.read_text(encoding="utf-8") == layers.picture(), "run: python scripts/layers.py"


def test_the_table_of_models_is_true() -> None:
    assert models_table.PAGE.read_text(encoding="utf-8") == models_table.page(), "run: python scripts/models_table.py"


def test_half_of_the_families_take_at_most_80_lines() -> None:
    lengths = sorted(lines for _, lines in models_table.homes().values())
    assert lengths[len(lengths) // 2] <= 80


def test_a_token_passes_at_most_ten_files() -> None:
    """The reader's test: the table of docs/life-of-a-token.md, each file with its one job."""
    text = (ROOT / "docs" / "life-of-a-token.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `([\w./]+)` \| ([^|]+) \|", text, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1)) and 5 <= len(rows) <= 10
    assert all((ROOT / "tahr" / file).is_file() for _, file, _ in rows)


def test_names_in_the_life_of_a_token_exist() -> None:
    """Classes and methods that the text names are defined in the package."""
    text = (ROOT / "docs" / "life-of-a-token.md").read_text(encoding="utf-8")
    named = {name for found in re.findall(r"`([A-Z]\w+(?:\.\w+)?)`", text) for name in found.split(".")}
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tahr").rglob("*.py"))
    assert sorted(n for n in named if not re.search(rf"\b(?:class|def) {n}\b|^{n}\b.* = ", sources, re.MULTILINE)) == []
