// The rotation of heads that are stored as q8_0: a Hadamard matrix spreads a number that is much larger than the others
// over all of them, so that it no longer costs the others their precision.
//
// The matrix H / sqrt(n) is orthonormal and its own inverse. Queries and keys rotated alike have the same products as
// before; values are averaged rotated, and the average is rotated back.
#pragma once

#include <cmath>
#include <cstdint>

#include "simd.h"

namespace tahr::TAHR_ISA {

// Two stages of butterflies at once, of strides H and 2H, in n numbers. Constant strides let compilers use vectors.
template <int H>
TAHR_INLINE void butterflies_of_four(float* x, int n) {
  for (int i = 0; i < n; i += 4 * H)
    for (int j = i; j < i + H; j++) {
      const float a = x[j] + x[j + H], b = x[j] - x[j + H];
      const float c = x[j + 2 * H] + x[j + 3 * H], d = x[j + 2 * H] - x[j + 3 * H];
      x[j] = a + c;
      x[j + H] = b + d;
      x[j + 2 * H] = a - c;
      x[j + 3 * H] = b - d;
    }
}

template <int H>
TAHR_INLINE void butterflies_of_two(float* x, int n) {
  for (int i = 0; i < n; i += 2 * H)
    for (int j = i; j < i + H; j++) {
      const float a = x[j], b = x[j + H];
      x[j] = a + b;
      x[j + H] = a - b;
    }
}

// Rotates every N numbers of a head. Stages follow each other by growing stride, then everything is scaled: as the
// reference does.
template <int N>
TAHR_INLINE void hadamard_of(float* x, int head_dim) {
  static_assert(N >= 32 && N <= 512);
  butterflies_of_four<1>(x, head_dim);
  butterflies_of_four<4>(x, head_dim);
  if constexpr (N >= 64) butterflies_of_four<16>(x, head_dim);
  if constexpr (N >= 256) butterflies_of_four<64>(x, head_dim);
  if constexpr (N == 32) butterflies_of_two<16>(x, head_dim);
  if constexpr (N == 128) butterflies_of_two<64>(x, head_dim);
  if constexpr (N == 512) butterflies_of_two<256>(x, head_dim);
  const float scale = float(1 / std::sqrt(double(N)));
  for (int i = 0; i < head_dim; i++) x[i] *= scale;
}

// Rotates one head in place: every so many of its numbers as the largest power of two that divides it.
inline void hadamard(float* x, int head_dim) {
  switch (head_dim & -head_dim) {
    case 32: return hadamard_of<32>(x, head_dim);
    case 64: return hadamard_of<64>(x, head_dim);
    case 128: return hadamard_of<128>(x, head_dim);
    case 256: return hadamard_of<256>(x, head_dim);
    default: return hadamard_of<512>(x, head_dim);
  }
}

}  // namespace tahr::TAHR_ISA
