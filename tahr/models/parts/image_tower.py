"""A tower: layers beside a model of texts that make one vector of the patches of an image."""

from typing import Protocol

from tahr.backends.api import Backend, KVShape, KVStore, StepInputs, Tensor


class ImageTower(Protocol):
    """An encoder that reads whole images, each a sequence of a step with a token for each of its rows."""

    width_in: int  # numbers in an input row
    n_most: int  # rows of the largest image
    memory: KVShape  # used by all layers, one after the other

    def __call__(self, backend: Backend, step: StepInputs, kv: KVStore, patches: Tensor) -> Tensor:
        """The vectors of images, of which `step.logit_rows` names the last tokens."""
