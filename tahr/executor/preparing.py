"""Plans that run before steps need them: which of them can run without waiting, and a run that changes nothing."""

import time
from collections.abc import Iterable

from tahr.backends.api import Backend, Plan, StepInputs

# that are spent on looking for a plan that can run, and before the next look
LOOK_S = 0.05
PAUSE_S = 0.005


def first_prepared(backend: Backend, plans: Iterable[Plan]) -> Plan | None:
    """The first plan whose run waits for nothing, while the backend prepares those behind it; None: look again.

    This takes little time whatever is being prepared, because a request may come.
    """
    began = time.perf_counter()
    for plan in plans:
        if backend.prepare(plan):
            return plan
        if time.perf_counter() - began > LOOK_S:
            return None
    time.sleep(PAUSE_S)
    return None


def run_empty(backend: Backend, inputs: StepInputs, plan: Plan) -> None:
    """Run a plan on a step without tokens, and wait for it."""
    counts = inputs.counts.copy()
    inputs.counts[:] = 0
    try:
        plan.run()
        backend.fetch(plan.result).collect()
    finally:
        inputs.counts[:] = counts  # the next step may have the same, and then leaves them as they are
