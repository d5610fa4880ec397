"""Whether a converted model will load: found out before gigabytes of it are written, from names and shapes alone."""

from math import prod

import numpy as np

from tahr.backends.api import Weight
from tahr.backends.reference.backend import ReferenceBackend
from tahr.models.files.gguf_rope import ROPE_TENSORS
from tahr.models.loader.convert import Converted
from tahr.models.loader.load import OpenedModel, load
from tahr.weights.gguf_write import Part
from tahr.weights.tensor import HostTensor


class ShapesAlone(ReferenceBackend):
    """Takes matrices at their word: their numbers are not read."""

    def weight(self, tensor: HostTensor) -> Weight:
        *stack, n_rows, n_cols = tensor.shape
        return Weight(tensor.name, tensor.format.name, "none", n_rows, n_cols, 0, None, prod(stack))


def refuse_unloadable(model: Converted) -> None:
    """Raise what loading the written file would raise, if a tensor is missing or has another shape than it must."""
    tensors = {part.name: part.make() if part.name in ROPE_TENSORS else stand_in(part) for part in model.parts}
    load(OpenedModel("model", "gguf", model.metadata, tensors, 0, {}), ShapesAlone())


def stand_in(part: Part) -> HostTensor:
    """A tensor of that shape; of all but vectors, one byte stands for the others."""
    n_bytes = part.format.n_bytes(prod(part.shape))
    data = np.zeros(n_bytes, np.uint8) if len(part.shape) < 2 else np.broadcast_to(np.uint8(0), n_bytes)
    return HostTensor(part.name, part.format, part.shape, data)
