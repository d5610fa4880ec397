// A small vocabulary of vectors, one implementation per instruction set. Kernels are written once on top of it.
//
//   Floats, Ints   LANES numbers of 32 bits
//   Codes          LANES * 4 bytes: four columns of each row of a panel
//
// Loads and stores need no alignment. `fma` is one rounding except in `scalar`, where it is two.
// The files are compiled once per instruction set with TAHR_ISA naming the namespace everything lives in: the same
// inline function compiled with different flags must never be one symbol.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef TAHR_ISA
#error "TAHR_ISA must name the instruction set this file is compiled for"
#endif

// Vectors live in registers only where every call is inlined. The plain version leaves it to the compiler, which would
// otherwise take minutes over it with sanitizers.
#define TAHR_INLINE static inline __attribute__((always_inline))

#if defined(TAHR_ISA_avx512vnni) || (defined(TAHR_ISA_amx) && defined(__x86_64__))
#define TAHR_AVX512
#include "simd_avx512.h"
#elif defined(TAHR_ISA_avx2)
#include "simd_avx2.h"
#elif defined(TAHR_ISA_neon_dotprod) || defined(TAHR_ISA_neon_i8mm)
#define TAHR_NEON
#include "simd_neon.h"
#else
#undef TAHR_INLINE
#define TAHR_INLINE static inline
#include "simd_scalar.h"
#endif

namespace tahr::TAHR_ISA {

TAHR_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
TAHR_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // into the second-level cache
constexpr int64_t FAR_AHEAD = 16384;  // bytes: early enough that they have come from memory when the first-level cache is asked

#if !defined(TAHR_NEON)
// Four numbers of which each is to meet whole vectors.
struct Four { const float* p; };
TAHR_INLINE Four load_four(const float* p) { return {p}; }
template <int I>
TAHR_INLINE Floats fma_of(Floats w, Four x, Floats sum) { return fma(w, set1(x.p[I]), sum); }
#endif

#if !defined(TAHR_AVX512)
// The same as `dot` for several panels, which gain from meeting a row together only where registers abound.
template <int First, int Count, int MaxCode, int Panels, int Rows>
TAHR_INLINE void dot_panels(Ints (&sums)[Panels][Rows], const Codes* const (&w)[Panels], const int8_t* const (&x)[Rows]) {
  for (int p = 0; p < Panels; p++)
    dot<First, Count, MaxCode, Rows>(sums[p], *reinterpret_cast<const Codes(*)[8]>(w[p]), x);
}
#endif

// Whole numbers near to some floats. Only the lower 16 bits of the ints count.
struct Whole {
  Ints ints;
  Floats floats;
};

TAHR_INLINE Whole to_whole(Floats x) {
#if defined(TAHR_NEON)
  // In a float between 2 ** 23 and 2 ** 24 the lowest bits count ones. Conversions take four times as long as additions.
  const Floats base = set1(12582912.0f), based = add(x, base);
  return {as_ints(based), sub(based, base)};
#else
  const Ints n = round(x);
  return {n, to_floats(n)};
#endif
}

// The first n (< LANES) numbers at p, the rest zero.
TAHR_INLINE Floats load_part(const float* p, int n) {
  float lanes[LANES] = {};
  memcpy(lanes, p, size_t(n) * sizeof(float));
  return load(lanes);
}

TAHR_INLINE void store_part(float* p, Floats v, int n) {
  float lanes[LANES];
  store(lanes, v);
  memcpy(p, lanes, size_t(n) * sizeof(float));
}

}  // namespace tahr::TAHR_ISA
