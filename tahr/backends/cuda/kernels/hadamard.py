"""The rotation of heads that are stored as q8_0: see `api.KVStore`."""

import triton
import triton.language as tl


@triton.jit
def butterflies(x, n: tl.constexpr, width: tl.constexpr, stride: tl.constexpr):
    """Sums and differences of the numbers of x [n, width] that lie `stride` apart."""
    pairs = tl.permute(tl.reshape(x, (n, width // (2 * stride), 2, stride)), (0, 1, 3, 2))
    first, second = tl.split(pairs)
    both = tl.join(first + second, first - second)
    return tl.reshape(tl.permute(both, (0, 1, 3, 2)), (n, width))


@triton.jit
def hadamard(x, n: tl.constexpr, width: tl.constexpr, together: tl.constexpr):
    """Rows of x [n, width], f32, each `together` neighbours of them rotated by a Hadamard matrix (its own inverse)."""
    for stage in tl.static_range(0, 10):
        if (1 << stage) < together:
            x = butterflies(x, n, width, 1 << stage)
    return x * together**-0.5
