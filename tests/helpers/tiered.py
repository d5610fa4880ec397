"""Engines with places behind their pools, and what is on a disk for them."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engines import engine, greedy, submit
from late_backend import LateBackend, blank_free_pages
from tahr.engine.engine import Engine
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.tiers.places import Places, TierStats
from tahr.engine.tiers.tiers import PageTiers
from tahr.kv.store import BoundedStore
from tahr.kv.tiers.disk import DiskTier
from tahr.kv.tiers.page_files import Bytes, Contents
from tahr.kv.tiers.seal import Seal

LAYOUT = bytes(16)
PAGE_BYTES = 200  # of pages without a model
N_RUN = 2


def with_tiers(
    eng: Engine,
    folder: Path | None = None,
    host_bytes: int = 0,
    layout: bytes = LAYOUT,
    max_bytes: int = 1 << 24,
    n_run: int = N_RUN,
    seal: Seal | None = None,
) -> Engine:
    """An engine that keeps pages: in a directory, on the host, or both."""
    prefix = eng.scheduler.prefix
    assert prefix
    disk = DiskTier(folder, layout, max_bytes, seal) if folder else None
    host: BoundedStore[Any, Any] | None = BoundedStore(host_bytes) if host_bytes else None
    places = Places(eng.executor.pages, prefix, eng.scheduler.pace, n_run, host, disk, TierStats())
    eng.scheduler.tiers = PageTiers(places)
    return eng


class PlainPage(NamedTuple):
    """A page without a model."""

    data: Bytes


def contents(n_pages: int, fill: int = 0) -> Contents:
    """Pages of one group that hold a number all over."""
    return Contents({0: [PlainPage(np.full(PAGE_BYTES, fill, np.uint8)) for _ in range(n_pages)]})


def tiered(path: Path, folder: Path | None = None, *, late: bool = False, **options: Any) -> Engine:
    """An engine of the stories with places; `options` are those of `with_tiers`, and of the engine."""
    own = {
        name: options.pop(name) for name in ("host_bytes", "layout", "max_bytes", "n_run", "seal") if name in options
    }
    return with_tiers(engine(path, late, **options), folder, **own)


def disk_of(eng: Engine) -> DiskTier:
    assert eng.scheduler.tiers and eng.scheduler.tiers.places.disk
    return eng.scheduler.tiers.places.disk


def run(eng: Engine, *sequences: Sequence) -> list[list[int]]:
    """The replies; after every step all pages are accounted for, and nothing is read that nobody holds."""
    while not all(seq.done for seq in sequences) or (eng.busy and not eng.scheduler.has_work):
        eng.step()
        check(eng)
    for seq in sequences:
        if seq.result.error:
            raise seq.result.error
    return [seq.tokens[seq.n_prompt :] for seq in sequences]


def check(eng: Engine) -> None:
    tiers = eng.scheduler.tiers
    for group, pool in enumerate(eng.scheduler.pools):
        held = [seq.memory.tables[group].held for seq in eng.scheduler.running]
        pool.check([*held, *([tiers.loading[group]] if tiers else [])])
    if tiers and tiers.places.host is not None:
        tiers.places.host.check()
    if isinstance(eng.executor.backend, LateBackend):  # type: ignore[attr-defined]
        blank_free_pages(eng)


def reply(eng: Engine, prompt: list[int], n: int = 12) -> tuple[list[int], object, int]:
    """A reply with its log-probabilities, and how many tokens of the prompt were not computed."""
    seq = submit(eng, prompt, greedy(n, logprobs=5))
    run(eng, seq)
    if eng.scheduler.tiers and eng.scheduler.tiers.places.disk:
        assert disk_of(eng).flush(20)
    return seq.tokens[seq.n_prompt :], seq.result.logprobs, seq.result.stats.n_cached_tokens
