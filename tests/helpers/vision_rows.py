"""The numbers of a case's images as rows of its tower."""

import numpy as np

from tahr.images.processors import ImageProcessor
from tahr.images.sizing import Exactly
from tahr.models.config.record import VisionConfig
from tahr.models.towers.rows import input_rows
from vision_cases import pixel_values


def rows_of(case: str, vision: VisionConfig) -> list[np.ndarray]:
    blank = np.zeros((256, 3), np.float32)
    processor = ImageProcessor(Exactly(1, 1), 3, None, blank, vision.patch_size, by_pixel=vision.resized)
    patches = [processor.patches(values.transpose(1, 2, 0)) for values in pixel_values(case)]
    return [input_rows(each.values, each.n_high, each.n_wide, vision) for each in patches]
