"""Experts of layers as tapes that native code runs for another device; see `ExpertWorker`."""

from typing import NamedTuple

from tahr import _native as native
from tahr.backends.api import ExpertMLPs, Rows, StepLimits, Tensor
from tahr.backends.cpu.backend import CpuBackend
from tahr.backends.cpu.memory import Arena, Buffer, Count
from tahr.backends.cpu.processor.isa import choose_threads
from tahr.backends.cpu.queue import CpuPlan
from tahr.errors import ConfigError
from tahr.weights.tensor import HostTensor

N_SPARE = 2  # cores that are left to the thread that launches steps, and to all else
UNIT = 4  # bytes of a number


class ExchangeSizes(NamedTuple):
    """Numbers of one row, and rows of a request at most."""

    most_rows: int
    width: int
    n_active: int
    n_out: int


def open_host() -> CpuBackend:
    """The backend of experts beside another device, with most of the cores."""
    return CpuBackend(max(1, choose_threads(None) - N_SPARE))


def refuse_form(tensor: HostTensor) -> None:
    """Refuse matrices that are no experts, and those for which the CPU has no kernel."""
    if len(tensor.shape) != 3:
        raise ConfigError(f"{tensor.name} is no stack of experts, and only these can stay in the host's memory.")
    form = tensor.stored_as or tensor.format.name
    if tensor.stored_as or not native.has_format(form):
        raise ConfigError(
            f"The experts of {tensor.name} are in {form}, for which the CPU has no kernel, so they cannot stay in the "
            "host's memory: leave out cpu_experts, or convert the model to GGUF."
        )


class ExpertTapes:
    """Tapes of layers that follow each other and share all memory: one is run after the other."""

    def __init__(self, backend: CpuBackend, sizes: ExchangeSizes):
        self.sizes = sizes
        self._backend = backend
        most = sizes.most_rows
        self._inputs = backend.step_inputs(StepLimits(most, 1, most, 1))
        arena = Arena()
        count = Count(self._inputs.counts, 0, most)
        self._x = Tensor(sizes.width, Rows.FIXED, Buffer(arena, count, UNIT * sizes.width))
        self._experts = Buffer(arena, count, UNIT * sizes.n_active)
        self._shares = Buffer(arena, count, UNIT * sizes.n_active)
        self._plans: list[CpuPlan] = []

    def add(self, worker: native.ExpertWorker, mlps: ExpertMLPs) -> int:
        """Record the experts of a layer and hand them to a worker; their number there."""
        backend = self._backend

        def step() -> Tensor:
            return backend.chosen_experts(self._x, self._experts, self._shares, mlps)

        plan = backend.record(step, self._inputs)
        assert isinstance(plan, CpuPlan)
        self._plans.append(plan)
        run, tape, pool = plan.native_call()
        return worker.add(
            run=run,
            tape=tape,
            pool=pool,
            n_rows=self._x.data.count.address,
            rows=self._x.data.address,
            experts=self._experts.address,
            shares=self._shares.address,
            result=plan.result.data.address,
            n_experts=mlps.gate.weight.n_stack,
        )
