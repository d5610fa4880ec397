"""Sizes of a card that kernels depend on."""

from functools import cache

import torch
import triton

from tahr.backends.cuda.layouts.presence import interprets

LARGE_BYTES = 200 << 10
GLUON = ("3.6.", "3.7.", "3.8.", "3.9.")  # versions of Triton whose lower language, an experiment, is as used here


@cache
def shared_bytes(device: torch.device) -> int:
    """Shared memory that a program may use; where kernels are interpreted, as much as any card has."""
    if device.type != "cuda":
        return 1 << 18
    found: int = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return found


def stages_within(n_stages: int, stage_bytes: int, device: torch.device) -> int:
    """Stages of loads that shared memory holds, `n_stages` at most; it holds one fewer than there are."""
    return min(n_stages, 1 + shared_bytes(device) // stage_bytes)


def is_large(device: torch.device) -> bool:
    """Whether tiles of up to 160 KB fit, as on data-centre cards: some others have a copy engine, but less memory."""
    return shared_bytes(device) >= LARGE_BYTES


@cache
def n_processors(device: torch.device) -> int:
    """Multiprocessors: programs whose tiles fill the shared memory run one on each."""
    found: int = torch.cuda.get_device_properties(device).multi_processor_count
    return found


@cache
def has_warp_groups(device: torch.device) -> bool:
    """Whether the kernels of `hopper` run: no card before or after Hopper has its instructions."""
    if interprets() or device.type != "cuda" or not triton.__version__.startswith(GLUON):
        return False
    major: int = torch.cuda.get_device_capability(device)[0]
    return major == 9
