"""The kinds of rows a step gives."""

from enum import IntEnum


class Output(IntEnum):  # integers, because every step looks things up by it
    """Kind of a step's rows. A step has one kind."""

    LOGITS = 0
    HIDDEN = 1  # the states after the final norm, for embeddings
    FRAME = 2  # codes that the step itself draws, of a model that speaks
