"""What the documents say about the code is so: paths exist, and the picture of the layers is drawn from the imports."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import layers  # noqa: E402

DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
PATH = re.compile(
    r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|cpp|h|md|sh|svg|toml))`|`((?:docs|tests|scripts|benchmarks)/[\w./-]*)`"
)
EXAMPLES = {"./tahr.toml"}  # files of a user


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_paths_exist(document: Path) -> None:
    """A file is named from the root of the checkout or of the package."""
    named = {a or b for a, b in PATH.findall(document.read_text(encoding="utf-8"))} - EXAMPLES
    assert sorted(n for n in named if not (ROOT / n).exists() and not (ROOT / "tahr" / n).exists()) == []


def test_the_picture_of_the_layers_is_true() -> None:
    assert layers.PICTURE.read_text(encoding="utf-8") == layers.picture(), "run: python scripts/layers.py"
