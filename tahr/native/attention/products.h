// Sums of vectors times numbers: what scores and weighted values are made of. Vectors may be stored as halves.
#pragma once

#include "kv_types.h"

namespace tahr::TAHR_ISA {

// sums[r][v] += factors[r][k] * vector v of those at `vectors` + k * stride, for one k.
template <int N, int V, class T>
TAHR_INLINE void add_product(Floats (&sums)[N][V], const float* const (&factors)[N], const T* vectors, int k) {
  Floats loaded[V];
  for (int v = 0; v < V; v++) loaded[v] = load(vectors + v * LANES);
  for (int r = 0; r < N; r++)
    for (int v = 0; v < V; v++) sums[r][v] = fma(set1(factors[r][k]), loaded[v], sums[r][v]);
}

#if defined(TAHR_NEON)

// sum += vector * factors[Lane]. In the order of the source: the compiler would copy sums, and add to one several times in a row.
template <int Lane>
TAHR_INLINE void fma_lane(float32x4_t& sum, float32x4_t vector, float32x4_t factors) {
  asm volatile("fmla %0.4s, %1.4s, %2.s[%c3]" : "+w"(sum) : "w"(vector), "w"(factors), "i"(Lane));
}

template <int Lane, int N, int V, class T>
TAHR_INLINE void add_lane_product(Floats (&sums)[N][V], const float32x4_t (&factors)[N], const T* vectors) {
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    const Floats loaded = load(vectors + v * LANES);
#pragma GCC unroll 4
    for (int r = 0; r < N; r++) {
      fma_lane<Lane>(sums[r][v].lo, loaded.lo, factors[r]);
      fma_lane<Lane>(sums[r][v].hi, loaded.hi, factors[r]);
    }
  }
}

#endif

// The same for k = 0 .. n - 1, in this order. Arm multiplies by one of four numbers in a register as fast as by a vector, and takes
// longer to load one number into all lanes.
template <int N, int V, class T>
TAHR_INLINE void add_products(Floats (&sums)[N][V], const float* const (&factors)[N], const T* vectors, int stride, int n) {
  int k = 0;
#if defined(TAHR_NEON)
  for (; k + 4 <= n; k += 4) {
    float32x4_t four[N];
#pragma GCC unroll 4
    for (int r = 0; r < N; r++) four[r] = vld1q_f32(factors[r] + k);
    add_lane_product<0>(sums, four, vectors + int64_t{k} * stride);
    add_lane_product<1>(sums, four, vectors + int64_t{k + 1} * stride);
    add_lane_product<2>(sums, four, vectors + int64_t{k + 2} * stride);
    add_lane_product<3>(sums, four, vectors + int64_t{k + 3} * stride);
  }
#endif
  for (; k < n; k++) add_product(sums, factors, vectors + int64_t{k} * stride, k);
}

}  // namespace tahr::TAHR_ISA
