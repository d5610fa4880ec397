"""Rope in the metadata and tensors of a GGUF."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tahr.errors import CorruptFile, UnsupportedModel
from tahr.models.config import record as limits
from tahr.models.config.fields import Fields
from tahr.models.config.rope import MOST_CONTEXT, MOST_FACTOR, Divisors, LongRope, RopeConfig, Scaling, gguf_scaling
from tahr.models.files.hf import MOST_THETA
from tahr.weights.tensor import HostTensor

ROPE_DIVISORS = "rope_freqs.weight"

ROPE_SHORT = "rope_factors_short.weight"

ROPE_LONG = "rope_factors_long.weight"

ROPE_TENSORS = {ROPE_DIVISORS, ROPE_SHORT, ROPE_LONG}


def gguf_context(f: Fields) -> int:
    return f.count("context_length", MOST_CONTEXT)


def gguf_rope(f: Fields, tensors: Mapping[str, HostTensor], head_dim: int) -> RopeConfig:
    n_dims = f.count("rope.dimension_count", limits.MOST_HEAD_DIM, default=head_dim)
    scaling = gguf_scaling(replace(f, prefix=f"{f.prefix}rope.scaling."), gguf_context(f))
    if ROPE_DIVISORS in tensors:
        scaling = Divisors(divisors(tensors[ROPE_DIVISORS], n_dims, scaling))
    if ROPE_SHORT in tensors:
        attention = f.number("rope.scaling.attn_factor", 0, MOST_FACTOR, default=1)
        old_context = f.count("rope.scaling.original_context_length", MOST_CONTEXT)
        has_longer = ROPE_LONG in tensors and gguf_context(f) > old_context
        long = divisors(tensors[ROPE_LONG], n_dims, scaling) if has_longer else ()
        longer = LongRope(long, attention, gguf_context(f)) if has_longer else None
        scaling = LongRope(divisors(tensors[ROPE_SHORT], n_dims, scaling), attention, old_context, longer)
    return RopeConfig(f.number("rope.freq_base", 1, MOST_THETA, default=10000), n_dims, scaling)


def divisors(tensor: HostTensor, n_dims: int, scaling: Scaling | None) -> tuple[float, ...]:
    if scaling is not None:
        raise UnsupportedModel(f"The GGUF has both {tensor.name} and another rope scaling; Tahr knows either alone.")
    if tensor.shape != (n_dims // 2,):
        raise CorruptFile(
            f"Tensor {tensor.name} has {tensor.shape} values, but rope has {n_dims // 2}; fetch it again."
        )
    values = tensor.dense()
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise CorruptFile(f"Tensor {tensor.name} holds values that are not positive numbers; fetch the model again.")
    return tuple(float(v) for v in values)
