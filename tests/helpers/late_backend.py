"""A backend whose steps overlap and run as late as they may: a device that is always behind.

A launched step runs when its tokens are collected, or when something must see its results: after the next step was
launched, after the host has reused whatever it believed free. The pages that an engine
holds to be free are overwritten with NaN as soon as they are.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from typing import Any

import numpy as np

from late_pages import LatePageIO
from tahr.backends.api import (
    Backend,
    KVStore,
    LoraBank,
    LoraRows,
    PageIO,
    Plan,
    StepInputs,
    Tensor,
)
from tahr.backends.api.pages import BY_TOKEN
from tahr.backends.sampling.sample_rows import SampledTokens, SampleRows
from tahr.engine.engine import Engine

ON_HOST = -99  # in place of a token
N_TOKEN_SLOTS = 1024


class LateBackend:
    """Wraps a backend; everything that is not about the order of things goes to it."""

    overlaps = True
    page_order = BY_TOKEN

    def __init__(self, inner: Backend, n_on_host: int = 0):
        self._inner = inner
        self._n_on_host = n_on_host  # every n-th sample is one the device does not know before it is collected
        self._queue: list[Callable[[], None]] = []
        self.last_tokens = np.full(N_TOKEN_SLOTS, ON_HOST, np.int32)  # by token slot: what the device knows
        self.n_late = 0  # steps that ran after the next one had been launched
        self.adapter_rows: list[LoraRows] = []  # inputs of steps as well

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def flush(self) -> None:
        """Run everything that was enqueued."""
        while self._queue:
            self.run_next()

    def run_next(self) -> None:
        self._queue.pop(0)()

    def enqueue(self, work: Callable[[], None]) -> None:
        self._queue.append(work)

    # ---- steps ------------------------------------------------------------------------------------------------

    def lora_bank(self, *args: Any) -> LoraBank:
        bank = self._inner.lora_bank(*args)
        self.adapter_rows += bank.rows.values()
        return bank

    def record(self, step: Callable[[], Tensor], inputs: StepInputs) -> Plan:
        self.flush()
        return LatePlan(self, self._inner.record(step, inputs), inputs)

    def sample(self, logits: Any, rows: SampleRows) -> "LateSampled":
        return LateSampled(self, logits, deepcopy(rows), self.host_samples(rows))

    def host_samples(self, rows: SampleRows) -> list[int]:
        return list(range(0, len(rows), self._n_on_host)) if self._n_on_host else []

    def fetch(self, rows: Any) -> "LateFetched":
        return LateFetched(self, rows)

    # ---- what must see the results ----------------------------------------------------------------------------

    def read(self, tensor: Any) -> np.ndarray:
        self.flush()
        return self._inner.read(tensor_of(tensor))

    def host_rows(self, logits: Any) -> np.ndarray:
        self.flush()
        return self._inner.host_rows(tensor_of(logits))

    def logprobs(self, logits: Any, *args: Any) -> Any:
        self.flush()
        return self._inner.logprobs(tensor_of(logits), *args)

    def read_pages(self, *args: Any) -> Any:
        self.flush()
        return self._inner.read_pages(*args)

    def write_pages(self, *args: Any) -> None:
        self.flush()
        self._inner.write_pages(*args)

    def page_io(self, kv: KVStore, pinned_bytes: int = 0) -> PageIO:
        return LatePageIO(self, kv)

    def copy_pages(self, *args: Any) -> None:
        self.flush()
        self._inner.copy_pages(*args)

    def write_rows(self, *args: Any) -> None:
        self.flush()
        self._inner.write_rows(*args)

    def read_rows(self, *args: Any) -> Any:
        self.flush()
        return self._inner.read_rows(*args)

    def read_states(self, *args: Any) -> Any:
        self.flush()
        return self._inner.read_states(*args)

    def write_states(self, *args: Any) -> None:
        self.flush()
        self._inner.write_states(*args)

    def copy_states(self, *args: Any) -> None:
        self.flush()
        self._inner.copy_states(*args)


class LatePlan:
    """A plan that only enqueues."""

    def __init__(self, late: LateBackend, plan: Plan, inputs: StepInputs):
        self._late, self._plan, self._inputs = late, plan, inputs
        self.tensor: Tensor | None = None  # of its last run

    @property
    def result(self) -> "LatePlan":
        """Stands for what the plan computes when it runs."""
        return self

    def run(self) -> None:
        launched = [arrays_of(inputs) for inputs in self._all_inputs()]
        assert launched[0]["counts"][0] > 0
        self._late.enqueue(lambda: self._run(launched))

    def _all_inputs(self) -> list[Any]:
        return [self._inputs, *self._late.adapter_rows]

    def _put(self, arrays: list[dict[str, np.ndarray]]) -> None:
        for inputs, values in zip(self._all_inputs(), arrays, strict=False):  # there may be more by now
            put(inputs, values)

    def _run(self, launched: list[dict[str, np.ndarray]]) -> None:
        present = [arrays_of(inputs) for inputs in self._all_inputs()]  # of a step that was launched later, perhaps
        self._put(launched)
        ids = self._inputs.ids[: self._inputs.n_tokens]
        unknown = ids < 0
        found = self._late.last_tokens[~ids[unknown]]
        assert (found != ON_HOST).all(), "a step refers to a token that the device does not know"
        ids[unknown] = np.maximum(found, 0)  # of a row that failed: nobody looks at what comes of it
        self._plan.run()
        inner = self._late._inner
        self.tensor = inner.tensor(np.array(inner.read(self._plan.result)))
        self._put(present)


class LateFetched:
    """Rows that are copied when their step has run."""

    def __init__(self, late: LateBackend, rows: Any):
        self._late, self._rows = late, rows
        self._copy: np.ndarray | None = None
        late.enqueue(self._run)

    def _run(self) -> None:
        self._copy = np.array(self._late._inner.read(tensor_of(self._rows)))

    def collect(self) -> np.ndarray:
        while self._copy is None:
            self._late._queue.pop(0)()
        return self._copy


class LateSampled:
    """Samples that are taken when their step has run."""

    def __init__(self, late: LateBackend, logits: Any, rows: SampleRows, host_bound: list[int]):
        self._late, self._logits, self._rows = late, logits, rows
        self._on_host = host_bound
        self._result: SampledTokens | None = None
        late.enqueue(self._run)

    def _run(self) -> None:
        self._result = deepcopy(self._late._inner.sample(tensor_of(self._logits), self._rows).collect())
        tokens = self._result.tokens.copy()
        tokens[self._on_host] = ON_HOST
        self._late.last_tokens[self._rows.slots] = tokens

    def collect(self) -> SampledTokens:
        if self._result is None:
            self._late.n_late += len(self._late._queue) > 2
        while self._result is None:
            self._late._queue.pop(0)()
        return self._result


def tensor_of(result: Any) -> Any:
    """The tensor that the result of a plan stands for, now that it has run; everything else stands for itself."""
    return result.tensor if isinstance(result, LatePlan) else result


def arrays_of(inputs: Any) -> dict[str, np.ndarray]:
    """Copies of what a step reads."""
    names = [field.name for field in fields(inputs) if isinstance(getattr(inputs, field.name), np.ndarray)]
    return {name: getattr(inputs, name).copy() for name in names}


def put(inputs: Any, arrays: dict[str, np.ndarray]) -> None:
    for name, values in arrays.items():
        getattr(inputs, name)[...] = values


def blank_free_pages(eng: Engine) -> None:
    """What an engine believes free becomes NaN, behind the back of the device."""
    backend: Backend = eng.executor.backend
    inner = getattr(backend, "_inner", backend)
    kv: KVStore = eng.executor.kv
    for group, pool in enumerate(eng.scheduler.pools):
        free = sorted(pool._free)
        if free:
            blank = [np.full_like(layer, 0xFF) for layer in inner.read_pages(kv, free, group)]
            inner.write_pages(kv, free, blank, group)
