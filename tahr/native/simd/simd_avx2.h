// The vocabulary for AVX2 with FMA and F16C: 8 lanes.
#pragma once

#include <immintrin.h>

#include "simd_words.h"

namespace tahr::TAHR_ISA {

constexpr int LANES = 8;
constexpr int DOT_ROWS = 1;
constexpr int TILE_ROWS = 4;
constexpr int DENSE_ROWS = 2;
constexpr int DENSE_TILE = 4;
constexpr int DENSE_PANELS = 3;
constexpr int MANY_PANELS = 1;
constexpr int ATTENTION_ROWS = 2;
constexpr int ROWS_VECTORS = 4;
constexpr int SIGNED_OFFSET = 0;
constexpr bool SIGNED_CODES = false;
constexpr bool OCTETS = false;

struct Floats { __m256 v; };
struct Ints { __m256i v; };
struct Codes { __m256i v; };

TAHR_INLINE Floats set1(float x) { return {_mm256_set1_ps(x)}; }
TAHR_INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p)}; }
TAHR_INLINE Floats load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
TAHR_INLINE Floats load_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
TAHR_INLINE void store(float* p, Floats a) { _mm256_storeu_ps(p, a.v); }
TAHR_INLINE void store_f16(uint16_t* p, Floats a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TAHR_INLINE void store_bf16(uint16_t* p, Floats a) {
  const __m256i bits = _mm256_castps_si256(a.v), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i safe = _mm256_blendv_epi8(near, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan);
  const __m256i high = _mm256_srli_epi32(safe, 16);
  const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(both));
}

TAHR_INLINE Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
TAHR_INLINE Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.v, b.v)}; }
TAHR_INLINE Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
TAHR_INLINE Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
TAHR_INLINE Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.v, b.v)}; }
TAHR_INLINE Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.v, b.v)}; }
TAHR_INLINE Floats abs(Floats a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
TAHR_INLINE Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
TAHR_INLINE Floats fnma(Floats a, Floats b, Floats c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }

TAHR_INLINE Ints set1(int32_t x) { return {_mm256_set1_epi32(x)}; }
TAHR_INLINE Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.v, b.v)}; }
template <int N>
TAHR_INLINE Ints shift_left(Ints a) { return {_mm256_slli_epi32(a.v, N)}; }
TAHR_INLINE Ints low_nibble(Ints a) { return {_mm256_and_si256(a.v, _mm256_set1_epi32(15))}; }
TAHR_INLINE Ints high_nibble(Ints a) { return {_mm256_srli_epi32(a.v, 4)}; }
TAHR_INLINE Ints load_i8(const int8_t* p) { return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))}; }
TAHR_INLINE Ints load_u8(const uint8_t* p) { return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))}; }
TAHR_INLINE void store_i8(int8_t* p, Ints a) {
  const __m128i low = _mm256_castsi256_si128(a.v), high = _mm256_extracti128_si256(a.v, 1);
  const __m128i words = _mm_packs_epi32(low, high);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
TAHR_INLINE Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.v)}; }
TAHR_INLINE Ints round(Floats a) { return {_mm256_cvtps_epi32(a.v)}; }
TAHR_INLINE Floats as_floats(Ints a) { return {_mm256_castsi256_ps(a.v)}; }
TAHR_INLINE Ints as_ints(Floats a) { return {_mm256_castps_si256(a.v)}; }

// Every fourth of 4 * LANES numbers, from the first, the second and so on: both halves of registers are transposed as they are.
TAHR_INLINE void deal(const float* p, Floats (&out)[4]) {
  __m256 fours[4];
  for (int i = 0; i < 4; i++)
    fours[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 4 * i)), _mm_loadu_ps(p + 16 + 4 * i), 1);
  const __m256 a = _mm256_unpacklo_ps(fours[0], fours[1]), b = _mm256_unpackhi_ps(fours[0], fours[1]);
  const __m256 c = _mm256_unpacklo_ps(fours[2], fours[3]), d = _mm256_unpackhi_ps(fours[2], fours[3]);
  out[0].v = _mm256_shuffle_ps(a, c, 0x44);
  out[1].v = _mm256_shuffle_ps(a, c, 0xee);
  out[2].v = _mm256_shuffle_ps(b, d, 0x44);
  out[3].v = _mm256_shuffle_ps(b, d, 0xee);
}

TAHR_INLINE float sum(Floats a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
TAHR_INLINE float max_lane(Floats a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
TAHR_INLINE int32_t sum(Ints a) {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

// Sums of absolute differences from -128, which are those of unsigned numbers.
TAHR_INLINE int32_t sum16(const int8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i eights = _mm_sad_epu8(_mm_xor_si128(codes, _mm_set1_epi8(char(0x80))), _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(eights, _mm_unpackhi_epi64(eights, eights))) - 16 * 128;
}

TAHR_INLINE Codes load_codes(const uint8_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
template <int Right, int Mask>
TAHR_INLINE Codes field(Codes a) {
  __m256i v = a.v;  // 16-bit shifts carry bits over from the neighbouring byte, which the mask takes away
  if constexpr (Right > 0) v = _mm256_srli_epi16(v, Right);
  if constexpr (Right < 0) v = _mm256_slli_epi16(v, -Right);
  return {_mm256_and_si256(v, _mm256_set1_epi8(char(Mask)))};
}
TAHR_INLINE Codes minus(Codes a, int n) { return {_mm256_sub_epi8(a.v, _mm256_set1_epi8(char(n)))}; }
TAHR_INLINE Codes either(Codes a, Codes b) { return {_mm256_or_si256(a.v, b.v)}; }
TAHR_INLINE Codes lookup(const uint8_t* table, Codes nibbles) {
  const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), nibbles.v)};
}
template <int Right, int Mask>
TAHR_INLINE Ints field(Ints a) { return {_mm256_and_si256(_mm256_srli_epi32(a.v, Right), _mm256_set1_epi32(Mask))}; }

TAHR_INLINE void store(int32_t* p, Ints a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
template <class Numbers>
TAHR_INLINE void gather_octets(const uint64_t* table, const Numbers& at, Codes& first, Codes& last) {
  const __m256 some = pairs_of_words<0>(table, at), others = pairs_of_words<2>(table, at);
  first.v = _mm256_castps_si256(_mm256_shuffle_ps(some, others, 0x88));
  last.v = _mm256_castps_si256(_mm256_shuffle_ps(some, others, 0xdd));
}
template <class Numbers>
TAHR_INLINE void gather_fours(const uint32_t* table, const Numbers& at, const Numbers& then, Codes& first, Codes& last) {
  first.v = eight_words<0>(table, at);
  last.v = eight_words<0>(table, then);
}
TAHR_INLINE Codes negate(Codes a, const uint8_t* bits) {
  int32_t word;
  memcpy(&word, bits, sizeof word);
  const __m256i byte_of = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
  const __m256i bit_of = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  const __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), byte_of), bit_of);
  const __m256i mask = _mm256_cmpeq_epi8(spread, bit_of);
  return {_mm256_sub_epi8(_mm256_xor_si256(a.v, mask), mask)};
}

// Products of pairs are summed in 16 bits. So many such sums can be added before they might not fit:
template <int MaxCode>
constexpr int ROOM = MaxCode == 255 ? 1 : 32767 / (2 * 127 * MaxCode);

template <int MaxCode>
TAHR_INLINE __m256i pair_products(__m256i w, const int8_t* x) {
  int32_t word;
  memcpy(&word, x, sizeof word);
  const __m256i columns = _mm256_set1_epi32(word);
  if constexpr (MaxCode < 255) return _mm256_maddubs_epi16(w, columns);
  // maddubs wants one side unsigned: signs of w move over to x, which is never -128.
  return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(columns, w));
}

template <int First, int Count, int MaxCode, int Rows>
TAHR_INLINE void dot(Ints (&sums)[Rows], const Codes (&w)[8], const int8_t* const (&x)[Rows]) {
  const __m256i ones = _mm256_set1_epi16(1);
  constexpr int room = ROOM<MaxCode>;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
    __m256i products = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < Count; i++) {
      products = _mm256_add_epi16(products, pair_products<MaxCode>(w[First + i].v, x[r] + 4 * (First + i)));
      if ((i + 1) % room && i + 1 < Count) continue;
      sums[r].v = _mm256_add_epi32(sums[r].v, _mm256_madd_epi16(products, ones));
      products = _mm256_setzero_si256();
    }
  }
}

}  // namespace tahr::TAHR_ISA
