// The vocabulary for AVX-512 with VNNI: 16 lanes.
#pragma once

// GCC 12 takes the don't-care operands inside its own intrinsics for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include "simd_words.h"

namespace tahr::TAHR_ISA {

constexpr int LANES = 16;
constexpr int DOT_ROWS = 8;
constexpr int TILE_ROWS = 8;
constexpr int DENSE_ROWS = 4;
constexpr int DENSE_TILE = 8;
constexpr int DENSE_PANELS = 3;
constexpr int MANY_PANELS = 3;
constexpr int ATTENTION_ROWS = 8;
constexpr int ROWS_VECTORS = 2;
constexpr int SIGNED_OFFSET = 128;  // vpdpbusd takes unsigned weights
constexpr bool SIGNED_CODES = false;
constexpr bool OCTETS = false;

struct Floats { __m512 v; };
struct Ints { __m512i v; };
struct Codes { __m512i v; };

TAHR_INLINE Floats set1(float x) { return {_mm512_set1_ps(x)}; }
TAHR_INLINE Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
TAHR_INLINE Floats load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
TAHR_INLINE Floats load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
TAHR_INLINE void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
TAHR_INLINE void store_f16(uint16_t* p, Floats a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TAHR_INLINE void store_bf16(uint16_t* p, Floats a) {
  const __m512i bits = _mm512_castps_si512(a.v), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i safe = _mm512_mask_or_epi32(near, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16)));
}

TAHR_INLINE Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
TAHR_INLINE Floats sub(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
TAHR_INLINE Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
TAHR_INLINE Floats div(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
TAHR_INLINE Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
TAHR_INLINE Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
TAHR_INLINE Floats abs(Floats a) { return {_mm512_abs_ps(a.v)}; }
TAHR_INLINE Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TAHR_INLINE Floats fnma(Floats a, Floats b, Floats c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }

TAHR_INLINE Ints set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
TAHR_INLINE Ints add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
template <int N>
TAHR_INLINE Ints shift_left(Ints a) { return {_mm512_slli_epi32(a.v, N)}; }
TAHR_INLINE Ints low_nibble(Ints a) { return {_mm512_and_si512(a.v, _mm512_set1_epi32(15))}; }
TAHR_INLINE Ints high_nibble(Ints a) { return {_mm512_srli_epi32(a.v, 4)}; }
TAHR_INLINE Ints load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
TAHR_INLINE Ints load_i8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
TAHR_INLINE Ints load_u8(const uint8_t* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
TAHR_INLINE void store_i8(int8_t* p, Ints a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v)); }
TAHR_INLINE Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
TAHR_INLINE Ints round(Floats a) { return {_mm512_cvtps_epi32(a.v)}; }
TAHR_INLINE Floats as_floats(Ints a) { return {_mm512_castsi512_ps(a.v)}; }
TAHR_INLINE Ints as_ints(Floats a) { return {_mm512_castps_si512(a.v)}; }

// Every fourth of 4 * LANES numbers, from the first, the second and so on.
TAHR_INLINE void deal(const float* p, Floats (&out)[4]) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16), c = _mm512_loadu_ps(p + 32), d = _mm512_loadu_ps(p + 48);
  const __m512 evens[2] = {_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(c, even, d)};
  const __m512 odds[2] = {_mm512_permutex2var_ps(a, odd, b), _mm512_permutex2var_ps(c, odd, d)};
  out[0].v = _mm512_permutex2var_ps(evens[0], even, evens[1]);
  out[1].v = _mm512_permutex2var_ps(odds[0], even, odds[1]);
  out[2].v = _mm512_permutex2var_ps(evens[0], odd, evens[1]);
  out[3].v = _mm512_permutex2var_ps(odds[0], odd, odds[1]);
}

TAHR_INLINE float sum(Floats a) { return _mm512_reduce_add_ps(a.v); }
TAHR_INLINE float max_lane(Floats a) { return _mm512_reduce_max_ps(a.v); }
TAHR_INLINE int32_t sum(Ints a) { return _mm512_reduce_add_epi32(a.v); }

// Sums of absolute differences from -128, which are those of unsigned numbers.
TAHR_INLINE int32_t sum16(const int8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i eights = _mm_sad_epu8(_mm_xor_si128(codes, _mm_set1_epi8(char(0x80))), _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(eights, _mm_unpackhi_epi64(eights, eights))) - 16 * 128;
}

TAHR_INLINE Codes load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
TAHR_INLINE void store(uint8_t* p, Codes a) { _mm512_storeu_si512(p, a.v); }
TAHR_INLINE Codes minus(Codes a, int n) { return {_mm512_sub_epi8(a.v, _mm512_set1_epi8(char(n)))}; }
template <int Right, int Mask>
TAHR_INLINE Codes field(Codes a) {
  __m512i v = a.v;  // 16-bit shifts carry bits over from the neighbouring byte, which the mask takes away
  if constexpr (Right > 0) v = _mm512_srli_epi16(v, Right);
  if constexpr (Right < 0) v = _mm512_slli_epi16(v, -Right);
  return {_mm512_and_si512(v, _mm512_set1_epi8(char(Mask)))};
}
TAHR_INLINE Codes either(Codes a, Codes b) { return {_mm512_or_si512(a.v, b.v)}; }
TAHR_INLINE Codes lookup(const uint8_t* table, Codes nibbles) {
  const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), nibbles.v)};
}
template <int Right, int Mask>
TAHR_INLINE Ints field(Ints a) { return {_mm512_and_si512(_mm512_srli_epi32(a.v, Right), _mm512_set1_epi32(Mask))}; }

// In halves: single numbers of the upper one come back from a whole store only when it has reached the cache.
TAHR_INLINE void store(int32_t* p, Ints a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_castsi512_si256(a.v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), _mm512_extracti64x4_epi64(a.v, 1));
}
template <class Numbers>
TAHR_INLINE void gather_octets(const uint64_t* table, const Numbers& at, Codes& first, Codes& last) {
  const auto join = [](__m256 low, __m256 high) { return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1); };
  const __m512 some = join(pairs_of_words<0>(table, at), pairs_of_words<8>(table, at));
  const __m512 others = join(pairs_of_words<2>(table, at), pairs_of_words<10>(table, at));
  first.v = _mm512_castps_si512(_mm512_shuffle_ps(some, others, 0x88));
  last.v = _mm512_castps_si512(_mm512_shuffle_ps(some, others, 0xdd));
}
template <class Numbers>
TAHR_INLINE void gather_fours(const uint32_t* table, const Numbers& at, const Numbers& then, Codes& first, Codes& last) {
  const auto join = [](__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); };
  first.v = join(eight_words<0>(table, at), eight_words<8>(table, at));
  last.v = join(eight_words<0>(table, then), eight_words<8>(table, then));
}
TAHR_INLINE Codes negate(Codes a, const uint8_t* bits) {
  uint64_t mask;
  memcpy(&mask, bits, sizeof mask);
  return {_mm512_mask_sub_epi8(a.v, mask, _mm512_setzero_si512(), a.v)};
}

template <int First, int Count, int MaxCode, int Panels, int Rows>
TAHR_INLINE void dot_panels(Ints (&sums)[Panels][Rows], const Codes* const (&w)[Panels], const int8_t* const (&x)[Rows]) {
#pragma GCC unroll 8
  for (int g = First; g < First + Count; g++)
#pragma GCC unroll 12
    for (int r = 0; r < Rows; r++) {
      int32_t word;
      memcpy(&word, x[r] + 4 * g, sizeof word);
      const __m512i columns = _mm512_set1_epi32(word);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; p++) sums[p][r].v = _mm512_dpbusd_epi32(sums[p][r].v, w[p][g].v, columns);
    }
}

}  // namespace tahr::TAHR_ISA
