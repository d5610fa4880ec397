"""Writes the codes that tokens of a step stand for, and how its frames are drawn."""

from tahr.backends.api import StepInputs
from tahr.engine.scheduling.work import StepWork
from tahr.executor.output import Output


class FrameColumns:
    """The frames among the inputs of a model that speaks, filled for one step after the other."""

    def __init__(self, step: StepInputs):
        assert step.frames
        self._step = step
        self._frames = step.frames

    def fill(self, work: StepWork) -> int:
        """Write them for a step, whose other inputs are written already."""
        if work.sequences[0].wanted.output is not Output.FRAME:
            return 0
        codes = self._frames.codes
        draws = self._frames.draws
        at = 0
        row = 0
        for seq, begin, n, _, n_rows in work:
            frames = seq.wanted.frames
            assert frames and n_rows <= 1, "a sequence draws one frame at a time"
            codes[:, at : at + n] = frames.between(begin, begin + n).T
            at += n
            if n_rows:
                frames.choose_by(draws, row)
                frames.edit(draws[0], row)
                row += 1
        self._frames.counts[:] = row
        return 0
