"""A kernel of the tests' own, imported only where Triton is."""

import triton
import triton.language as tl


@triton.jit
def ones_kernel(out):
    """Every program writes a one."""
    tl.store(out + tl.program_id(0), 1.0)
