"""The op by which a step draws codes itself."""

from typing import ClassVar

import numpy as np

from tahr.backends.api.slot_rows import SlotRowOps
from tahr.backends.api.tensors import Tensor
from tahr.backends.sampling import numpy_sampler
from tahr.backends.sampling.code_draws import CodeDraws
from tahr.backends.sampling.sample_rows import SampleRows
from tahr.errors import UnsupportedModel


class FrameOps(SlotRowOps):
    """Its default body computes on the host."""

    draws_frames: ClassVar[bool] = False  # steps of models that speak were tried

    def check_frames(self) -> None:
        """Refuse, when a model is loaded, one that speaks, where this backend cannot run it yet."""
        if not self.draws_frames:
            raise UnsupportedModel(
                f"Models that speak do not run on the {self.name} backend yet: choose the cpu backend, or other models."
            )

    def choose(self, logits: Tensor, draws: CodeDraws) -> None:
        """Draw a code from every row of logits, as `Backend.sample` does; ops behind it read `draws.ids`."""
        rows = self.read(logits)
        n = len(rows)
        edits = draws.edits.take(range(n)) if draws.edits else None
        every = np.arange(n, dtype=np.int32)
        nowhere = np.zeros(n, np.int32)
        drawn = numpy_sampler.sample(rows, SampleRows(every, draws.params[:n], logits.width, nowhere, edits))
        draws.codes[:n] = drawn.tokens
        draws.ids[:n] = np.maximum(drawn.tokens, 0)
