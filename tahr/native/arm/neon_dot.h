// Rows as the dot instructions of Arm want them, and products with 32 columns of a panel.
//
// sdot takes one row at a time, smmla two: a unit is that many rows. Sums of products begin with 1.5 * 2 ** 23 as bits of a float
// and stay below 2 ** 22 in size, so that they are floats already: `base + product`, with no conversion.
#pragma once

#include "neon_unpack.h"

namespace tahr::TAHR_ISA {

constexpr float DOT_BASE = 12582912.0f;
alignas(32) static constexpr float DOT_BASES[8] = {DOT_BASE, DOT_BASE, DOT_BASE, DOT_BASE,
                                                   DOT_BASE, DOT_BASE, DOT_BASE, DOT_BASE};

#if defined(TAHR_ISA_neon_i8mm)
constexpr int UNIT_ROWS = 2, UNIT_VECTORS = 4;
#else
constexpr int UNIT_ROWS = 1, UNIT_VECTORS = 2;
#endif

// Numbers of a panel's rows for every row of a unit.
struct UnitFloats { float32x4_t v[UNIT_VECTORS]; };

struct UnitDots { int32x4_t v[UNIT_VECTORS]; };

TAHR_INLINE UnitDots start_dots() {
  UnitDots dots;
#pragma GCC unroll 4
  for (auto& v : dots.v) v = vreinterpretq_s32_f32(load_again(DOT_BASES));
  return dots;
}

#if defined(TAHR_ISA_neon_i8mm)

// 32 columns of two rows: eight columns of the one, the same of the other, and so on.
struct UnitCodes { int8_t codes[64]; };

// Scales, then scale * sum of the codes per group of columns; each twice.
struct UnitFactors { float v[3][4]; };

struct Columns { int8x16_t v[4]; };

TAHR_INLINE Columns columns_of(const UnitCodes& x) {
  return {{vld1q_s8(x.codes), vld1q_s8(x.codes + 16), vld1q_s8(x.codes + 32), vld1q_s8(x.codes + 48)}};
}

TAHR_INLINE Columns columns_of(const QuantBlock& x) {
  const auto twice = [&](int at) { return vcombine_s8(vld1_s8(x.codes + at), vld1_s8(x.codes + at)); };
  return {{twice(0), twice(8), twice(16), twice(24)}};
}

// dots.v[i] holds x0 w(2i), x0 w(2i+1), x1 w(2i), x1 w(2i+1). An octet of columns of eight rows fills two Codes.
// The codes of octet V / 2 are vectors V and V + 1.
template <Format F, int V, int End>
TAHR_INLINE void dot_codes(UnitDots& dots, const uint8_t* p, const Columns& x) {
  const uint8x16_t rows[4] = {code_vector<F, V>(p), code_vector<F, V>(p + 16), code_vector<F, V + 1>(p), code_vector<F, V + 1>(p + 16)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) dots.v[i] = vmmlaq_s32(dots.v[i], x.v[V / 2], vreinterpretq_s8_u8(rows[i]));
  if constexpr (V + 2 < End) dot_codes<F, V + 2, End>(dots, p, x);
}

// The same for several units, with codes that were unpacked.
template <int First, int Count, int Units>
TAHR_INLINE void dot_units(UnitDots (&dots)[Units], const uint8_t* w, const Columns (&x)[Units]) {
#pragma GCC unroll 4
  for (int g = First; g < First + Count; g += 2)
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      const int8x16_t rows = vreinterpretq_s8_u8(vld1q_u8(w + 32 * g + 16 * i));
#pragma GCC unroll 4
      for (int u = 0; u < Units; u++) dots[u].v[i] = vmmlaq_s32(dots[u].v[i], x[u].v[g / 2], rows);
    }
}

TAHR_INLINE float32x4_t both_rows(float32x2_t pair) { return vcombine_f32(pair, pair); }

TAHR_INLINE UnitFloats spread(Floats f) {
  return {{both_rows(vget_low_f32(f.lo)), both_rows(vget_high_f32(f.lo)), both_rows(vget_low_f32(f.hi)),
           both_rows(vget_high_f32(f.hi))}};
}

TAHR_INLINE Floats row_of_unit(const UnitFloats& u, int row) {
  const auto join = [row](float32x4_t a, float32x4_t b) {
    return row ? vcombine_f32(vget_high_f32(a), vget_high_f32(b)) : vcombine_f32(vget_low_f32(a), vget_low_f32(b));
  };
  return {join(u.v[0], u.v[1]), join(u.v[2], u.v[3])};
}

template <int Factor>
TAHR_INLINE float32x4_t fma_factor(float32x4_t sum, float32x4_t a, const UnitFactors& x) {
  return vfmaq_f32(sum, a, vld1q_f32(x.v[Factor]));
}

TAHR_INLINE void put_row(UnitCodes& unit, UnitFactors& scaled, int row, const QuantBlock& x, const float (&factors)[3]) {
  for (int i = 0; i < 4; i++) memcpy(unit.codes + 16 * i + 8 * row, x.codes + 8 * i, 8);
  for (int i = 0; i < 3; i++) scaled.v[i][2 * row] = scaled.v[i][2 * row + 1] = factors[i];
}

#else

struct UnitCodes { int8_t codes[32]; };

// The scale, then scale * sum of the codes per group of columns.
struct UnitFactors { float v[4]; };

struct Columns { int8x16_t v[2]; };

template <class Row>
TAHR_INLINE Columns columns_of(const Row& x) { return {{vld1q_s8(x.codes), vld1q_s8(x.codes + 16)}}; }

template <int V>
TAHR_INLINE void dot_vector(UnitDots& dots, uint8x16_t lo, uint8x16_t hi, const Columns& x) {
  dots.v[0] = vdotq_laneq_s32(dots.v[0], vreinterpretq_s8_u8(lo), x.v[V / 4], V % 4);
  dots.v[1] = vdotq_laneq_s32(dots.v[1], vreinterpretq_s8_u8(hi), x.v[V / 4], V % 4);
}

// Vectors [V, End) of the codes at p.
template <Format F, int V, int End>
TAHR_INLINE void dot_codes(UnitDots& dots, const uint8_t* p, const Columns& x) {
  dot_vector<V>(dots, code_vector<F, V>(p), code_vector<F, V>(p + 16), x);
  if constexpr (V + 1 < End) dot_codes<F, V + 1, End>(dots, p, x);
}

// The same for several units, with codes that were unpacked.
template <int First, int Count, int Units>
TAHR_INLINE void dot_units(UnitDots (&dots)[Units], const uint8_t* w, const Columns (&x)[Units]) {
  const uint8x16_t lo = vld1q_u8(w + PLANE * First), hi = vld1q_u8(w + PLANE * First + 16);
#pragma GCC unroll 4
  for (int u = 0; u < Units; u++) dot_vector<First>(dots[u], lo, hi, x[u]);
  if constexpr (Count > 1) dot_units<First + 1, Count - 1>(dots, w, x);
}

TAHR_INLINE UnitFloats spread(Floats f) { return {{f.lo, f.hi}}; }

TAHR_INLINE Floats row_of_unit(const UnitFloats& u, int) { return {u.v[0], u.v[1]}; }

template <int Factor>
TAHR_INLINE float32x4_t fma_factor(float32x4_t sum, float32x4_t a, const UnitFactors& x) {
  return vfmaq_laneq_f32(sum, a, load_again(x.v), Factor);
}

TAHR_INLINE void put_row(UnitCodes& unit, UnitFactors& scaled, int, const QuantBlock& x, const float (&factors)[3]) {
  memcpy(unit.codes, x.codes, sizeof unit.codes);
  memcpy(scaled.v, factors, sizeof factors);
  scaled.v[3] = 0;
}

#endif

// 32 columns of some units. Codes lie together, so that no load of two registers crosses a line of the cache.
template <int Units>
struct RowTile {
  UnitCodes codes[Units];
  UnitFactors factors[Units];
};

}  // namespace tahr::TAHR_ISA
