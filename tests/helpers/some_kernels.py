"""Kernels of the tests' own, imported only where Triton is."""

import triton
import triton.language as tl


@triton.jit
def ones_kernel(out):
    """Every program writes a one."""
    tl.store(out + tl.program_id(0), 1.0)


@triton.jit
def broken_kernel(out):
    """It does not compile."""
    tl.static_assert(out.dtype.element_ty == tl.int8)
    tl.store(out, 1)
