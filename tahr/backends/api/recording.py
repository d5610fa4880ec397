"""How a backend runs steps: plans of recorded ops, and the sizes worth one."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tahr.backends.api.device import Device
from tahr.backends.api.step import Plan, StepInputs, StepLimits
from tahr.backends.api.tensors import Floats, Tensor
from tahr.errors import UnsupportedModel


class Fetched(Protocol):
    """Rows on their way to the host."""

    def collect(self) -> Floats:
        """Wait for them."""


class HostRows:
    """Rows that are on the host already."""

    def __init__(self, rows: Floats):
        self._rows = rows

    def collect(self) -> Floats:
        return self._rows


class CalledPlan:
    """A step that is called anew at every run, because its inputs have changed since."""

    def __init__(self, step: Callable[[], Tensor], flush: Callable[[], None]):
        self._step = step
        self._flush = flush
        self._result: Tensor | None = None

    @property
    def result(self) -> Tensor:
        assert self._result is not None, "the plan has not run yet"
        return self._result

    def run(self) -> None:
        self._result = self._step()
        self._flush()


StepCheck = Callable[[], None]


def nothing_to_check() -> None:
    """The check of steps that fail, if they do, where they are launched or collected."""


class Recording(Device):
    """Steps of a device. The default bodies record nothing and call a step again whenever its plan runs."""

    overlaps: bool = False  # a step may be launched before the one before it is collected; see `StepInputs.ids`

    def record(self, step: Callable[[], Tensor], inputs: StepInputs) -> Plan:
        """Keep the ops of `step`, which reads `inputs`, for running them later; pages and states stay as they are.

        Whatever the inputs hold at this moment does not matter.
        """
        return CalledPlan(step, self.flush)

    def check_host_body(self, is_default: bool, needed: str) -> None:
        """Refuse, when a model is loaded, default bodies that compute on the host, where plans do not call them again.

        A recorded step would keep what the host computed while it was recorded.
        """
        if is_default and type(self).record is not Recording.record:
            raise UnsupportedModel(
                f"This model needs {needed}, which the {self.name} backend does not have: "
                "choose another model, or a backend that has it."
            )

    def step_check(self) -> StepCheck:
        """A call that waits for the step run last as far as it must to know whether it was computed, and raises why it
        was not."""
        return nothing_to_check

    def fetch(self, tensor: Tensor) -> Fetched:
        """Begin to bring the live rows of `tensor` to the host: what comes is as it is now, whatever runs next."""
        return HostRows(self.read(tensor))

    def buckets(self, limits: StepLimits, n_decode_tokens: int = 1) -> Sequence[StepLimits]:
        """Step sizes worth a plan of their own, smallest first; the last one holds everything.

        A backend whose plans have fixed shapes pads a step to the first bucket that holds it. `n_decode_tokens` is how
        many tokens a sequence that decodes may have in a step: 1, or more where some are drafted.
        """
        return [limits]

    def wants_warming(self) -> bool:
        """Whether plans should run before steps need them, because their first runs are slow, and memory is left."""
        return False

    def prepare(self, plan: Plan) -> bool:
        """Begin to make on other threads what the first run of a plan needs; whether it need not wait any more.

        Nothing may be in flight. False may also mean that those threads have enough to do: ask again.
        """
        return True
