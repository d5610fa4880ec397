"""Attention in steps of whole inputs: keys and values are rows of the step, so the library's kernel needs no pages."""

import torch

from tahr.backends.api import AttentionSpec
from tahr.backends.cuda.ops.step_inputs import DeviceInputs

SHORT_TYPES = (torch.bfloat16, torch.float16)
MOST_DIM = 256  # widest heads that the kernel takes, in multiples of
DIM_UNIT = 8


def takes_whole(q: torch.Tensor, kv: list[torch.Tensor], math: torch.dtype, spec: AttentionSpec, dim: int) -> bool:
    """Whether the kernel has a step: tokens that all see each other, in 16 bits."""
    is_bare = spec.whole and not (spec.window or spec.softcap or spec.sinks or spec.slopes)
    fits = dim % DIM_UNIT == 0 and dim <= MOST_DIM and len(kv) == 2
    is_short = math in SHORT_TYPES and all(each.dtype == math for each in (q, *kv))
    return is_bare and fits and is_short and q.device.type == "cuda"


def attend_whole(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dim: int,
    spec: AttentionSpec,
    inputs: DeviceInputs,
    n_longest: int,
) -> torch.Tensor:
    """Attention of rows to those of their own sequence. Rows of padding hold anything afterwards."""
    starts = inputs.query_start
    places = torch.arange(len(starts), dtype=torch.int32, device=q.device)
    starts = torch.where(places <= inputs.counts[2], starts, inputs.counts[0])  # sequences that are not there are empty
    heads = [rows.unflatten(1, (-1, dim)) for rows in (q, k, v)]
    found = torch.ops.aten._flash_attention_forward(
        *heads, starts, starts, n_longest, n_longest, 0.0, False, False, scale=spec.scale
    )
    out: torch.Tensor = found[0].flatten(1)
    return out
