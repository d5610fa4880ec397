// The vocabulary for Arm with dot products: 8 lanes in two registers.
#pragma once

#include <arm_neon.h>

namespace tahr::TAHR_ISA {

constexpr int LANES = 8;
#if defined(TAHR_ISA_neon_i8mm)
constexpr int DOT_ROWS = 2;  // smmla multiplies two rows by two rows
constexpr bool OCTETS = true;
#else
constexpr int DOT_ROWS = 1;
constexpr bool OCTETS = false;
#endif
constexpr int TILE_ROWS = 4;
constexpr int DENSE_ROWS = 8;
constexpr int MANY_PANELS = 1;
constexpr int ATTENTION_ROWS = 4;
constexpr int ROWS_VECTORS = 2;
constexpr int SIGNED_OFFSET = 0;
constexpr bool SIGNED_CODES = true;

struct Floats { float32x4_t lo, hi; };
// Four numbers of which each is to meet whole vectors: an instruction takes one out of a register, where copying it to all lanes
// would take as long as multiplying.
struct Four { float32x4_t v; };
TAHR_INLINE Four load_four(const float* p) { return {vld1q_f32(p)}; }
template <int I>
TAHR_INLINE Floats fma_of(Floats w, Four x, Floats sum) {
  return {vfmaq_laneq_f32(sum.lo, w.lo, x.v, I), vfmaq_laneq_f32(sum.hi, w.hi, x.v, I)};
}

struct Ints { int32x4_t lo, hi; };
struct Codes { uint8x16_t lo, hi; };

TAHR_INLINE Floats set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
TAHR_INLINE Floats load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
TAHR_INLINE Floats load_f16(const uint16_t* p) {
  const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
TAHR_INLINE Floats load_bf16(const uint16_t* p) {
  const uint16x8_t h = vld1q_u16(p);
  const uint16x8_t zeros = vdupq_n_u16(0);  // between them: shifting would take twice as long
  return {vreinterpretq_f32_u16(vzip1q_u16(zeros, h)), vreinterpretq_f32_u16(vzip2q_u16(zeros, h))};
}
TAHR_INLINE void store(float* p, Floats a) {
  vst1q_f32(p, a.lo);
  vst1q_f32(p + 4, a.hi);
}
TAHR_INLINE void store_f16(uint16_t* p, Floats a) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.lo), a.hi)));
}
TAHR_INLINE uint16x4_t bf16_of_floats(float32x4_t a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t near = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), near, vorrq_u32(bits, vdupq_n_u32(0x400000))), 16);
}
TAHR_INLINE void store_bf16(uint16_t* p, Floats a) {
  vst1q_u16(p, vcombine_u16(bf16_of_floats(a.lo), bf16_of_floats(a.hi)));
}

TAHR_INLINE Floats add(Floats a, Floats b) { return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
TAHR_INLINE Floats sub(Floats a, Floats b) { return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)}; }
TAHR_INLINE Floats mul(Floats a, Floats b) { return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
TAHR_INLINE Floats div(Floats a, Floats b) { return {vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)}; }
TAHR_INLINE Floats max(Floats a, Floats b) { return {vmaxq_f32(a.lo, b.lo), vmaxq_f32(a.hi, b.hi)}; }
TAHR_INLINE Floats min(Floats a, Floats b) { return {vminq_f32(a.lo, b.lo), vminq_f32(a.hi, b.hi)}; }
TAHR_INLINE Floats abs(Floats a) { return {vabsq_f32(a.lo), vabsq_f32(a.hi)}; }
TAHR_INLINE Floats fma(Floats a, Floats b, Floats c) { return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)}; }
TAHR_INLINE Floats fnma(Floats a, Floats b, Floats c) { return {vfmsq_f32(c.lo, a.lo, b.lo), vfmsq_f32(c.hi, a.hi, b.hi)}; }

TAHR_INLINE Ints set1(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
TAHR_INLINE Ints add(Ints a, Ints b) { return {vaddq_s32(a.lo, b.lo), vaddq_s32(a.hi, b.hi)}; }
template <int N>
TAHR_INLINE Ints shift_left(Ints a) { return {vshlq_n_s32(a.lo, N), vshlq_n_s32(a.hi, N)}; }
TAHR_INLINE Ints low_nibble(Ints a) { return {vandq_s32(a.lo, vdupq_n_s32(15)), vandq_s32(a.hi, vdupq_n_s32(15))}; }
TAHR_INLINE Ints high_nibble(Ints a) { return {vshrq_n_s32(a.lo, 4), vshrq_n_s32(a.hi, 4)}; }
TAHR_INLINE Ints load_i8(const int8_t* p) {
  const int16x8_t h = vmovl_s8(vld1_s8(p));
  return {vmovl_s16(vget_low_s16(h)), vmovl_high_s16(h)};
}
TAHR_INLINE Ints load_u8(const uint8_t* p) {
  const uint16x8_t h = vmovl_u8(vld1_u8(p));
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(h))), vreinterpretq_s32_u32(vmovl_high_u16(h))};
}
TAHR_INLINE void store_i8(int8_t* p, Ints a) { vst1_s8(p, vmovn_s16(vcombine_s16(vmovn_s32(a.lo), vmovn_s32(a.hi)))); }
TAHR_INLINE Floats to_floats(Ints a) { return {vcvtq_f32_s32(a.lo), vcvtq_f32_s32(a.hi)}; }
TAHR_INLINE Ints round(Floats a) { return {vcvtnq_s32_f32(a.lo), vcvtnq_s32_f32(a.hi)}; }
TAHR_INLINE Floats as_floats(Ints a) { return {vreinterpretq_f32_s32(a.lo), vreinterpretq_f32_s32(a.hi)}; }
TAHR_INLINE Ints as_ints(Floats a) { return {vreinterpretq_s32_f32(a.lo), vreinterpretq_s32_f32(a.hi)}; }

TAHR_INLINE float sum(Floats a) { return vaddvq_f32(vaddq_f32(a.lo, a.hi)); }
TAHR_INLINE float max_lane(Floats a) { return vmaxvq_f32(vmaxq_f32(a.lo, a.hi)); }
TAHR_INLINE int32_t sum(Ints a) { return vaddvq_s32(vaddq_s32(a.lo, a.hi)); }

TAHR_INLINE int32_t sum16(const int8_t* p) { return vaddlvq_s8(vld1q_s8(p)); }

TAHR_INLINE Codes load_codes(const uint8_t* p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
template <int Right, int Mask>
TAHR_INLINE uint8x16_t field(uint8x16_t a) {
  uint8x16_t v = a;
  if constexpr (Right > 0) v = vshrq_n_u8(v, Right);
  if constexpr (Right < 0) v = vshlq_n_u8(v, -Right);
  if constexpr (Right > 0 && Mask == 256 / (1 << (Right > 0 ? Right : 0)) - 1) return v;  // only zeros came in
  return vandq_u8(v, vdupq_n_u8(Mask));
}
template <int Right, int Mask>
TAHR_INLINE Codes field(Codes a) { return {field<Right, Mask>(a.lo), field<Right, Mask>(a.hi)}; }
TAHR_INLINE Codes minus(Codes a, int n) {
  return {vsubq_u8(a.lo, vdupq_n_u8(uint8_t(n))), vsubq_u8(a.hi, vdupq_n_u8(uint8_t(n)))};
}
TAHR_INLINE Codes either(Codes a, Codes b) { return {vorrq_u8(a.lo, b.lo), vorrq_u8(a.hi, b.hi)}; }
TAHR_INLINE Codes lookup(const uint8_t* table, Codes nibbles) {
  const uint8x16_t entries = vld1q_u8(table);
  return {vqtbl1q_u8(entries, nibbles.lo), vqtbl1q_u8(entries, nibbles.hi)};
}
template <int Right, int Mask>
TAHR_INLINE Ints field(Ints a) {
  const auto one = [](int32x4_t v) {
    if constexpr (Right > 0) v = vshrq_n_s32(v, Right);
    return vandq_s32(v, vdupq_n_s32(Mask));
  };
  return {one(a.lo), one(a.hi)};
}

// Octets of eight rows as vectors have them: all rows' first four columns and then the others, or octet after octet.
TAHR_INLINE void lay_out(const uint64_t (&octets)[LANES], Codes& first, Codes& last) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(octets);
#if defined(TAHR_ISA_neon_i8mm)
  first = load_codes(bytes);
  last = load_codes(bytes + 32);
#else
  const uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(bytes)), b = vreinterpretq_u32_u8(vld1q_u8(bytes + 16));
  const uint32x4_t c = vreinterpretq_u32_u8(vld1q_u8(bytes + 32)), d = vreinterpretq_u32_u8(vld1q_u8(bytes + 48));
  first = {vreinterpretq_u8_u32(vuzp1q_u32(a, b)), vreinterpretq_u8_u32(vuzp1q_u32(c, d))};
  last = {vreinterpretq_u8_u32(vuzp2q_u32(a, b)), vreinterpretq_u8_u32(vuzp2q_u32(c, d))};
#endif
}

TAHR_INLINE void store(int32_t* p, Ints a) {
  vst1q_s32(p, a.lo);
  vst1q_s32(p + 4, a.hi);
}

template <class Numbers>
TAHR_INLINE void gather_octets(const uint64_t* table, const Numbers& at, Codes& first, Codes& last) {
  uint64_t octets[LANES];
#pragma GCC unroll 8
  for (int i = 0; i < LANES; i++) octets[i] = table[at[i]];
  lay_out(octets, first, last);
}
template <class Numbers>
TAHR_INLINE void gather_fours(const uint32_t* table, const Numbers& at, const Numbers& then, Codes& first, Codes& last) {
  uint64_t octets[LANES];
#pragma GCC unroll 8
  for (int i = 0; i < LANES; i++) octets[i] = table[at[i]] | uint64_t(table[then[i]]) << 32;
  lay_out(octets, first, last);
}
TAHR_INLINE Codes negate(Codes a, const uint8_t* bits) {
  const uint8x16_t bit_of = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  const auto one = [&](uint8x16_t v, const uint8_t* p) {
    const uint8x16_t mask = vtstq_u8(vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1])), bit_of);
    return vsubq_u8(veorq_u8(v, mask), mask);
  };
  return {one(a.lo, bits), one(a.hi, bits + 2)};
}

#if defined(TAHR_ISA_neon_i8mm)

// An octet of columns of eight rows fills two Codes, two rows to a register; x rows come in pairs too. A lone row is
// paired with itself.
template <int First, int Count, int MaxCode, int Rows>
TAHR_INLINE void dot(Ints (&sums)[Rows], const Codes (&w)[8], const int8_t* const (&x)[Rows]) {
  static_assert(Rows <= 2, "smmla takes two rows");
  int32x4_t pairs[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
#pragma GCC unroll 4
  for (int g = First; g < First + Count; g += 2) {
    const int8x16_t columns = vcombine_s8(vld1_s8(x[0] + 4 * g), vld1_s8(x[Rows - 1] + 4 * g));
    const uint8x16_t rows[4] = {w[g].lo, w[g].hi, w[g + 1].lo, w[g + 1].hi};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) pairs[i] = vmmlaq_s32(pairs[i], columns, vreinterpretq_s8_u8(rows[i]));
  }
  // pairs[i] holds x0 w(2i), x0 w(2i+1), x1 w(2i), x1 w(2i+1).
  const auto join = [](int64x2_t a, int64x2_t b, bool second) {
    return vreinterpretq_s32_s64(second ? vzip2q_s64(a, b) : vzip1q_s64(a, b));
  };
#pragma GCC unroll 2
  for (int r = 0; r < Rows; r++) {
    sums[r].lo = vaddq_s32(sums[r].lo, join(vreinterpretq_s64_s32(pairs[0]), vreinterpretq_s64_s32(pairs[1]), r == 1));
    sums[r].hi = vaddq_s32(sums[r].hi, join(vreinterpretq_s64_s32(pairs[2]), vreinterpretq_s64_s32(pairs[3]), r == 1));
  }
}

#else

template <int Index>
TAHR_INLINE void dot_lane(Ints& sum, Codes w, int8x16_t x) {
  sum.lo = vdotq_laneq_s32(sum.lo, vreinterpretq_s8_u8(w.lo), x, Index);
  sum.hi = vdotq_laneq_s32(sum.hi, vreinterpretq_s8_u8(w.hi), x, Index);
}

template <int First, int Count, int MaxCode, int Rows>
TAHR_INLINE void dot(Ints (&sums)[Rows], const Codes (&w)[8], const int8_t* const (&x)[Rows]) {
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++)
#pragma GCC unroll 2
    for (int g = First; g < First + Count; g += 4) {
      const int8x16_t columns = vld1q_s8(x[r] + 4 * g);
      dot_lane<0>(sums[r], w[g], columns);
      dot_lane<1>(sums[r], w[g + 1], columns);
      dot_lane<2>(sums[r], w[g + 2], columns);
      dot_lane<3>(sums[r], w[g + 3], columns);
    }
}

#endif

}  // namespace tahr::TAHR_ISA
