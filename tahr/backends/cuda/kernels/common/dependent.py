"""Programmatic dependent launch: a kernel may start while the one before it still runs.

A kernel launched with `OVERLAP` calls `wait_for_previous` before it touches anything an earlier kernel reads or writes;
until then it may load weights, which nobody writes. `let_next_start` allows the next kernel the same. At least one
program of every kernel waits: the next kernel waits for this one alone, and takes it that all before have finished.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from tahr.backends.cuda.layouts.presence import interprets


def supported() -> bool:
    """Whether the device can overlap kernels: Hopper and later."""
    return not interprets() and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


ENABLED = supported()
OVERLAP: dict[str, Any] = {"launch_pdl": True} if ENABLED else {}  # launch options
_enabled = tl.constexpr(ENABLED)


@triton.jit
def let_next_start():
    """Let the next kernel begin as soon as every program of this one has come here."""
    if _enabled:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous():
    """Wait until the kernels before this one have finished and what they wrote can be read."""
    if _enabled:
        tl.extra.cuda.gdc_wait()
