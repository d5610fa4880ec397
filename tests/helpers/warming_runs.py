"""Warming to the end, and what it must leave as it was."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from late_backend import arrays_of
from tahr.backends.api import StepLimits
from tahr.engine.engine import Engine
from tahr.executor.output import Output

MOST_RUNS = 20_000  # with those that wait for a kernel


def warm_all(eng: Engine) -> int:
    """How many runs that took."""
    return next(n for n in range(MOST_RUNS) if not eng.steps.warm_next() and not warm_drafts(eng))


def warm_drafts(eng: Engine) -> bool:
    return eng.speculator is not None and eng.speculator.proposer.warm_next()


def memory_of(eng: Engine) -> list[bytes]:
    """All pages and states."""
    be, kv = eng.executor.backend, eng.executor.kv
    pages = [be.read_pages(kv, range(n), group) for group, n in enumerate(kv.layout.n_pages)]
    states = be.read_states(kv, range(kv.layout.n_slots)) if kv.layout.n_slots > 1 else []
    return [np.array(layer).tobytes() for layers in [*pages, states] for layer in layers]


def facts_of(eng: Engine) -> dict[str, Any]:
    """What must not change: statistics, the prefix cache, what is known of speed, the inputs of the last step."""
    facts = {"pace": eng.scheduler.pace.n_tokens, "first_runs": eng.steps.sizes.n_first_runs}
    return asdict(eng.snapshot()) | facts | {k: v.tobytes() for k, v in arrays_of(eng.steps.inputs).items()}


def set_buckets(eng: Engine, buckets: tuple[StepLimits, ...], patch: pytest.MonkeyPatch) -> None:
    """Let steps that give logits have plans of these sizes."""
    hidden = eng.steps.sizes.buckets[Output.HIDDEN]
    patch.setattr(eng.executor.executed[0], "buckets", (buckets, hidden))
    patch.setattr(eng.steps.sizes, "buckets", (buckets, hidden))
