"""A step from the moment its inputs are filled in until its results are handed out."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from tahr.engine.sampling.sample_batch import SampleBatch
from tahr.engine.sampling.sampler import ReadyBatch
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.step.sample_plan import SamplePlan
from tahr.executor.protocol import Handle, StepRequest


@dataclass(slots=True)
class InFlight:
    """A step. Its samples are sequences with a row of logits each, by `samples`."""

    work: StepWork
    samples: SamplePlan
    request: StepRequest
    lengths: list[int]  # lengths of texts before the tokens to sample
    slots: list[int]  # the token slots that samples go to
    began: float
    n_first_runs: int  # first runs of plans before this step: if there are more, its time says nothing about others
    handle: Handle | None = None  # None: it is not launched yet
    waits: bool = False  # sampling waits until the host knows the tokens before, for the grammars' sake
    has_run_ahead: bool = False  # a step that waits: its sequences may be scheduled for the tokens it will sample
    masks: SampleBatch | None = None  # masks that are being filled
    sampled: ReadyBatch | None = None  # samples under way
    void: frozenset[int] = frozenset()  # sequences, by id, whose samples do not count: tokens were forced meanwhile

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences that get a token; one with drafts is there once for each of its rows."""
        return self.samples.sampled

    @property
    def host_bound(self) -> ListOf[int]:
        """The samples whose tokens the device will not know by itself."""
        batch = self.masks or (self.sampled and self.sampled.batch)
        return batch.host_bound if batch else ()
