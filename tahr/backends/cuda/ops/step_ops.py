"""The part of a CUDA device that all its ops see."""

import torch

from tahr.backends.api import Backend, StepInputs
from tahr.backends.cuda.ops.step_inputs import RecordingContext


class StepOps(Backend):
    """A device, and how its ops see the step they are in."""

    device: torch.device
    deterministic: bool
    context: RecordingContext

    def _n_tokens(self, step: StepInputs) -> int:
        return step.limits.n_tokens if self.context.inside else step.n_tokens

    def _n_seqs(self, step: StepInputs) -> int:
        return step.limits.n_seqs if self.context.inside else step.n_seqs
