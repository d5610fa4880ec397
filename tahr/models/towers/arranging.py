"""A tower's tensors as its parts want them: a convolution over patches is a linear, a class token is a position."""

from dataclasses import replace

import numpy as np

from tahr.errors import CorruptFile
from tahr.models.config.record import ChatVisionConfig, ModelConfig, VisionConfig
from tahr.models.encoders.layers import of_floats
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.makers import Make
from tahr.weights.tensor import HostTensor

PATCH = "vision.patch.weight"
CLASS = "vision.class_embedding"
POSITIONS = "vision.positions.weight"


def arrange_tower(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    vision = cfg.vision or cfg.chat_vision
    assert vision, "the configuration has no tower"
    patch = tensors.take(PATCH)
    tensors.define(PATCH, flat(patch, vision))
    if CLASS in tensors:
        tensors.define(POSITIONS, with_class(tensors.take(CLASS), tensors.take(POSITIONS)))
    return tensors


def flat(stored: Make, cfg: VisionConfig | ChatVisionConfig) -> Make:
    """The kernel of a convolution [width, 3, patch, patch] as a matrix."""

    def make() -> HostTensor:
        tensor = stored()
        kernel = (cfg.layers.width, 3, cfg.patch_size, cfg.patch_size)
        if tensor.shape != kernel:
            raise mismatch(tensor, kernel)
        return replace(tensor, shape=(kernel[0], 3 * cfg.patch_size**2))

    return make


def with_class(token: Make, positions: Make) -> Make:
    """The table of positions, of which the class token's comes last and has the token itself in it: its row of pixels
    is zero, and the last row of a sequence is the one whose state is wanted."""

    def make() -> HostTensor:
        table = positions()
        row = token()
        if len(table.shape) != 2 or row.shape != table.shape[1:]:
            raise mismatch(row, table.shape[1:])
        values = np.roll(table.dense(), -1, axis=0)
        values[-1] += row.dense()
        return of_floats(table.name, values)

    return make


def mismatch(tensor: HostTensor, wanted: tuple[int, ...]) -> CorruptFile:
    return CorruptFile(
        f"Tensor {tensor.name} has the shape {list(tensor.shape)}, but the model's configuration asks for "
        f"{list(wanted)}. The file is damaged or the two belong to different models; fetch the model again."
    )
