"""Random tensors in any weight format, with scales small enough that the values look like a model's."""

import numpy as np

from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

# Where each block format keeps its f16 scales; everything else in a block may be any byte.
F16_AT: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "IQ1_S": (0,), "IQ2_XXS": (0,),
    "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "TQ1_0": (52,), "TQ2_0": (64,), "Q2_0": (0,),
}  # fmt: skip
NATIVE = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
          "IQ4_NL", "IQ4_XS", "MXFP4"]  # fmt: skip
# Of these the CPU alone multiplies the codes; they are dense elsewhere.
LOW_BIT = ["TQ1_0", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]


def random_tensor(format_name: str, shape: tuple[int, ...], rng: np.random.Generator, name: str = "w") -> HostTensor:
    """A tensor of that format and shape."""
    values = rng.standard_normal(shape).astype(np.float32) * np.float32(0.1)
    plain = {
        "F32": lambda: values,
        "F16": lambda: values.astype(np.float16),
        "BF16": lambda: (values.view(np.uint32) >> 16).astype(np.uint16),
    }
    if format_name in plain:
        data = np.ascontiguousarray(plain[format_name]()).reshape(-1).view(np.uint8)
    else:
        data = random_blocks(format_name, int(np.prod(shape)), rng)
    return HostTensor(name, FORMATS[format_name], shape, data)


def random_blocks(format_name: str, n_values: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks of any codes whose scales are sane."""
    form = FORMATS[format_name]
    blocks = rng.integers(0, 256, (n_values // form.block, form.block_bytes), dtype=np.uint8)
    if format_name == "MXFP4":
        blocks[:, 0] = rng.integers(118, 126, len(blocks))  # the block's power-of-two scale
    if format_name == "IQ1_M":
        spread_scales(blocks, rng)
    for at in F16_AT.get(format_name, ()):
        scale = rng.uniform(0.001, 0.01, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scale[:, None].view(np.uint8)
    return blocks.reshape(-1)


def spread_scales(blocks: np.ndarray, rng: np.random.Generator) -> None:
    """Sane scales for blocks of IQ1_M, which keep four bits of an f16 atop each of the last four words."""
    scale = rng.uniform(0.001, 0.01, len(blocks)).astype(np.float16).view(np.uint16)
    for word in range(4):
        top = (scale >> 4 * word & 15).astype(np.uint8)
        blocks[:, 49 + 2 * word] = blocks[:, 49 + 2 * word] & 15 | top << 4
