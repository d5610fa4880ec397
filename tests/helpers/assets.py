"""Where the tests' data is: beside the checkout, or fetched into a cache by `make test`, or made here.

`TAHR_TEST_ASSETS` names another folder than the one beside the checkout (one that does not exist stands for a clone
alone); `TAHR_TEST_CACHE` another cache.
"""

import os
from functools import cache
from pathlib import Path

import pytest

from folders import new_folder

BESIDE = Path(os.environ.get("TAHR_TEST_ASSETS") or Path(__file__).resolve().parents[3] / "shared" / "assets")
FETCHED = Path(os.environ.get("TAHR_TEST_CACHE") or Path.home() / ".cache" / "tahr-test-data").absolute()
MISSING = "test data is neither beside the checkout nor fetched (run `make test` with a package index)"


def find(name: str) -> Path | None:
    """A file or folder of the data, wherever it is."""
    return next((folder / name for folder in (BESIDE, FETCHED) if (folder / name).exists()), None)


def need(name: str) -> Path:
    """The same, or the test is skipped."""
    if found := find(name):
        return found
    pytest.skip(f"{name.split('/')[0]}: {MISSING}")


@cache
def stories() -> Path:
    """A llama of 260,032 parameters in f32 that tells stories, as a GGUF; the folder `hf` beside it has the same."""
    if found := find("stories260K/stories260K-f32.gguf"):
        return found
    import story_model

    return story_model.write(new_folder("story-model"))


def greedy_story() -> Path:
    """The ids that transformers answers greedily with that model, from the first token on."""
    fixtures = Path(__file__).parents[1] / "fixtures"
    theirs = find("stories260K") is not None
    return fixtures / "models" / "stories260K.json" if theirs else fixtures / "story_model" / "greedy.json"
