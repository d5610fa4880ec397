"""The kinds of rows a step gives."""

from enum import IntEnum


class Output(IntEnum):  # of integers, because every step looks things up by it
    """What the rows of a step are. A step has one kind of rows."""

    LOGITS = 0
    HIDDEN = 1  # the states after the final norm, for embeddings
