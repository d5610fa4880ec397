"""The executor of a group of ranks. Steps go to all of them as bytes, rows of logits come back from the first one, and
are sampled here, as those of one process are: so tokens, grammars and random numbers never leave the driver."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tahr.backends.api import Backend, EnergyCounter, Floats, KVShape, KVStore, MemoryLayout, StepInputs, StepLimits
from tahr.backends.sampling.sample_rows import SampledTokens, SampleRows
from tahr.errors import ConfigError, ExecutorLost, TahrError
from tahr.executor.local import facts_of
from tahr.executor.pages import memory_facts
from tahr.executor.plans import make_model
from tahr.executor.protocol import ExecutorFacts, StepRequest, StepResult, TowerFacts
from tahr.executor.ranks.adapters import GroupAdapters
from tahr.executor.ranks.cpu_time import cpu_s_of
from tahr.executor.ranks.group import RankGroup
from tahr.executor.ranks.steps import step_message
from tahr.executor.ranks.watch import Failures, StepWatch
from tahr.executor.sampling import LocalSampling
from tahr.models.decoder import Decoder

log = logging.getLogger("tahr")
NO_PAGES = "The pages of tensor_parallel lie in the ranks, which hand out none: sessions and snapshots run on one rank."


@dataclass(slots=True, eq=False)
class GroupStep:
    """A step that the ranks compute."""

    wants_rows: bool
    n_tokens: int
    began: float
    rows: Floats | None = None  # None: not there yet
    sampled: SampledTokens | None = None


class NoPages:
    """`PagePort` of ranks that hand out no pages."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        def refuse(*_: object, **__: object) -> NoReturn:
            raise ConfigError(NO_PAGES)

        return refuse


class GroupExecutor(LocalSampling):
    """Runs the steps of one model on several ranks."""

    tower: TowerFacts | None = None

    def __init__(
        self,
        backend: Backend,
        decoder: Decoder,
        layout: MemoryLayout,
        limits: StepLimits,
        n_vocab: int,
        n_decode_tokens: int,
        group: RankGroup,
        n_weight_bytes: int,
    ):
        """`decoder` is one of all ranks, without weights; `layout` that of all their layers."""
        super().__init__(backend)
        n_bytes = sum(page_bytes(layout, group) * n for group, n in enumerate(layout.n_pages))
        kv = KVStore(layout, layout.group_of(), n_bytes, ())
        self._model = make_model(backend, decoder, kv, limits, n_vocab, n_decode_tokens)
        self.models = [facts_of(self._model)]
        self.facts = ExecutorFacts(overlaps=False, has_own_memory=False, memory=memory_facts(kv, backend.page_order))
        self.pages = NoPages()
        self.adapters = GroupAdapters(group, decoder, self._model.inputs.limits)
        self.group = group
        self.fault = ""
        self._watch = StepWatch(n_weight_bytes // group.n_ranks)
        self._failures = Failures()
        self._page_size = layout.page_size
        self._n_bytes = n_bytes + n_weight_bytes
        self._last: GroupStep | None = None

    def inputs(self, model: int = 0) -> StepInputs:
        return self._model.inputs

    # ---- steps ------------------------------------------------------------------------------------------------

    def launch(self, step: StepRequest) -> GroupStep:
        if self.fault:
            raise ExecutorLost(self.fault)
        inputs = self._model.inputs
        self._land()
        message = step_message(step, inputs, self.adapters.all_rows, self._page_size)
        self.group.send(message)
        self._last = GroupStep(step.wants_rows, inputs.n_tokens, time.monotonic())
        return self._last

    def _land(self) -> None:
        """Wait for the step before, whose rows nobody has asked for."""
        if self._last and self._last.rows is None:
            self._rows(self._last)

    def _rows(self, step: GroupStep) -> Floats:
        """The rows of a step, in the memory that the next one writes to."""
        if step.rows is None:
            step.rows = np.zeros((0, 1), np.float32)  # a step that fails is not waited for twice
            first, *_ = self.group.wait(self._watch.limit_s(step.n_tokens))
            self._watch.took(step.n_tokens, time.monotonic() - step.began)
            step.rows = self.group.region.rows[: first.n_rows * first.width].reshape(first.n_rows, first.width)
        return step.rows

    def sample(self, handle: GroupStep, rows: SampleRows) -> None:
        handle.sampled = self.sample_host_rows(self._rows(handle), rows)

    def collect(self, handle: GroupStep) -> StepResult:
        rows = self._rows(handle)
        return StepResult(handle.sampled, rows.copy() if handle.wants_rows else None)

    def put_rows(self, slots: Sequence[int], rows: Floats, model: int = 0) -> None:
        raise AssertionError("models with towers are refused")

    def prepare(self, steps: Sequence[StepRequest]) -> StepRequest | None:
        return next(iter(steps), None)

    def wants_warming(self) -> bool:
        return False

    def warm(self, step: StepRequest) -> None:
        raise AssertionError("a CPU has no slow first runs")

    def weights_changed(self) -> bool:
        return self._model.files.has_changed

    def sleep(self) -> int:
        """The processes end: their memory is all there is."""
        self._last = None
        self.group.end()
        return self._n_bytes

    def wake(self) -> None:
        self.group.begin()
        self.adapters.restore()

    def energy_counter(self) -> EnergyCounter | None:
        return self.backend.energy_counter()

    def apply_text_head(self, rows: Floats) -> Floats:
        return rows

    # ---- when ranks are lost ----------------------------------------------------------------------------------

    def restart(self, reason: str) -> None:
        """Begin the ranks again, with empty memory; after too many failures the model is given up."""
        while not self.fault:
            self._last = None
            pause_s = self._failures.count(time.monotonic())
            self.group.end()
            if pause_s is None:
                self.fault = f"The model was given up after it lost its ranks {self._failures.n} times: {reason}"
                log.error("%s", self.fault)
                return
            log.warning("%s They are begun again, and what they computed is computed again.", reason)
            time.sleep(pause_s)
            try:
                self.group.begin()
                self.adapters.restore()
                return
            except TahrError as error:
                log.warning("The ranks could not be begun again: %s", error)
                reason = "They could not be begun again."

    @property
    def cpu_s(self) -> float:
        """CPU time of the ranks so far."""
        return cpu_s_of(self.group.pids)

    def close(self) -> None:
        self.group.end()


def page_bytes(layout: MemoryLayout, group: int) -> int:
    """Bytes of a page in all layers of a group."""
    of_group = zip(layout.layers, layout.group_of(), strict=True)
    shapes = [shape for shape, its_group in of_group if its_group == group and isinstance(shape, KVShape)]
    return sum(layout.page_size * shape.token_bytes(layout.dtype) for shape in shapes)
