"""What a card has, as far as kernels ask for it."""

from functools import cache

import torch

LARGE_BYTES = 200 << 10


@cache
def shared_bytes(device: torch.device) -> int:
    """Shared memory that a program may use; where kernels are interpreted, as much as any card has."""
    if device.type != "cuda":
        return 1 << 18
    found: int = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return found


def is_large(device: torch.device) -> bool:
    """Whether tiles of up to 160 KB fit, as on data-centre cards: some others have a copy engine, but less memory."""
    return shared_bytes(device) >= LARGE_BYTES


@cache
def n_processors(device: torch.device) -> int:
    """Multiprocessors: programs whose tiles fill the shared memory run one on each."""
    found: int = torch.cuda.get_device_properties(device).multi_processor_count
    return found
