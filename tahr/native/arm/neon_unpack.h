// Panels on Arm: codes as signed bytes, scales as f32. Written for the Neoverse N1, where converting numbers takes four times
// as long as multiplying them, and shifting twice as long: bytes become floats by placing them in one.
#pragma once

#include "unpack.h"

namespace tahr::TAHR_ISA {

// Codes come out of `code_vector` multiplied by two to this power; results are divided by it once, at the end.
constexpr int code_shift(const FormatRow& row) { return row.bits == 6 ? 2 : row.bits == 4 && row.offset ? 4 : 0; }

constexpr int PLANE = 4 * LANES;  // bytes of a vector of codes, in two registers

// Vector V of four that lie in three: each of three bytes begins with a code of 6 bits and ends with 2 bits of the fourth.
template <int V>
TAHR_INLINE uint8x16_t four_of_three(const uint8_t* p) {
  if constexpr (V < 3) {
    return vandq_u8(vld1q_u8(p + V * PLANE), vdupq_n_u8(0xfc));
  } else {
    const uint8x16_t two = vsliq_n_u8(vld1q_u8(p + PLANE), vld1q_u8(p), 2);
    return vshlq_n_u8(vsliq_n_u8(vld1q_u8(p + 2 * PLANE), two, 2), 2);
  }
}

// The bits that stand for themselves, below those of `upper_bits`; see quants.h for how they lie.
template <Format F, int V>
TAHR_INLINE uint8x16_t lower_bits(const uint8_t* p) {
  if constexpr (row_of(F).bits < 4) return field<2 * (V % 4), 3>(vld1q_u8(p + V / 4 * PLANE));
  else return field<V / 4 * 4, 15>(vld1q_u8(p + V % 4 * PLANE));
}

template <Format F, int V>
TAHR_INLINE uint8x16_t upper_bits(const uint8_t* p) {
  if constexpr (row_of(F).bits == 3) return field<V - 2, 4>(vld1q_u8(p + 2 * PLANE));
  else return field<V - 4, 16>(vld1q_u8(p + 4 * PLANE));
}

template <Format F>
TAHR_INLINE uint8x16_t values_of(uint8x16_t codes) {
  constexpr FormatRow row = row_of(F);
  if constexpr (row.table != nullptr) {
    static constexpr LookupTable table = offset_table(row.table, SIGNED_OFFSET);
    return vqtbl1q_u8(vld1q_u8(table.bytes), codes);
  } else if constexpr (row.offset != 0) {
    return vsubq_u8(codes, vdupq_n_u8(row.offset));
  } else {
    return codes;
  }
}

// Half of vector V of the eight that hold the codes of 32 columns, signed, times 2 ** code_shift. The other half lies 16 bytes on.
template <Format F, int V>
TAHR_INLINE uint8x16_t code_vector(const uint8_t* p) {
  constexpr FormatRow row = row_of(F);
  if constexpr (row.bits == 8) {
    return vld1q_u8(p + V * PLANE);
  } else if constexpr (row.bits == 6) {
    return four_of_three<V % 4>(p + V / 4 * 3 * PLANE);
  } else if constexpr (code_shift(row) == 4) {
    const uint8x16_t both = vld1q_u8(p + V % 4 * PLANE);
    if constexpr (V < 4) return vshlq_n_u8(both, 4);
    else return vandq_u8(both, vdupq_n_u8(0xf0));
  } else if constexpr (row.bits == 3 || row.bits == 5) {
    return values_of<F>(vorrq_u8(lower_bits<F, V>(p), upper_bits<F, V>(p)));
  } else {
    return values_of<F>(lower_bits<F, V>(p));
  }
}

// All eight, one after the other.
template <Format F, int V = 0>
TAHR_INLINE void unpack_to(const uint8_t* p, uint8_t* out) {
  const uint8x16_t lo = code_vector<F, V>(p), hi = code_vector<F, V>(p + 16);
  vst1q_u8(out + V * PLANE, lo);
  vst1q_u8(out + V * PLANE + 16, hi);
  if constexpr (V < 7) unpack_to<F, V + 1>(p, out);
}

// ---- scales ----

// Loads where the compiler would copy a register: copying takes the time of a multiplication, loading none.
TAHR_INLINE float32x4_t load_again(const float* p) {
  float32x4_t v;
  asm volatile("ldr %q0, %1" : "=w"(v) : "m"(*reinterpret_cast<const float32x4_t*>(p)));
  return v;
}

constexpr float BYTE_BASE = 8388608.0f;  // 2 ** 23: a float whose lowest bits count ones

// BYTE_BASE plus the first (Half = 0) or last eight of the bytes. Zeros and the upper half of the base are put between them.
template <int Half>
TAHR_INLINE Floats based_floats(uint8x16_t bytes) {
  const uint8x16_t zeros = vdupq_n_u8(0);
  const uint16x8_t words = vreinterpretq_u16_u8(Half ? vzip2q_u8(bytes, zeros) : vzip1q_u8(bytes, zeros));
  const uint16x8_t base = vdupq_n_u16(0x4b00);
  return {vreinterpretq_f32_u16(vzip1q_u16(words, base)), vreinterpretq_f32_u16(vzip2q_u16(words, base))};
}

// The f16 numbers that hold for 32 or 256 columns, and these times -BYTE_BASE.
template <Format F>
struct UnitScales {
  Floats scale, min, minus_scale, minus_min;
};

template <Format F>
TAHR_INLINE UnitScales<F> read_unit(const uint8_t* unit) {
  constexpr FormatRow row = row_of(F);
  const uint16_t* floats = reinterpret_cast<const uint16_t*>(unit);
  UnitScales<F> u{};
  u.scale = row.scales == Scales::BRAIN ? load_bf16(floats) : load_f16(floats);
  if constexpr (has_min(row.scales)) u.min = load_f16(floats + LANES);
  if constexpr (has_min(row.scales) && has_super(row.scales)) {
    u.minus_scale = mul(u.scale, set1(-BYTE_BASE));
    u.minus_min = mul(u.min, set1(-BYTE_BASE));
  }
  return u;
}

// scale * byte for unsigned bytes that carry BYTE_BASE: exact, since neither factor has many bits.
TAHR_INLINE Floats times_bytes(Floats scale, const Floats& minus_scale, Floats based) {
  const float* minus = reinterpret_cast<const float*>(&minus_scale);
  return fma(scale, based, {load_again(minus), load_again(minus + 4)});
}

// scale * byte for signed bytes whose highest bit was flipped.
TAHR_INLINE Floats times_flipped(Floats scale, Floats based) { return mul(scale, sub(based, set1(BYTE_BASE + 128.0f))); }

// Scales of the groups of one piece; `unit` begins the scales of its unit, in which it is number `index`.
template <Format F>
TAHR_INLINE void piece_scales(const UnitScales<F>& u, const uint8_t* unit, int64_t index,
                              ScaleMin (&out)[Unpacked<F>::N_GROUPS]) {
  constexpr FormatRow row = row_of(F);
  constexpr int n_groups = Unpacked<F>::N_GROUPS;
  if constexpr (!has_super(row.scales)) out[0] = {u.scale, u.min};
  if constexpr (row.scales == Scales::SUPER) {
    const uint8_t* subs = unit + 2 * LANES + index * n_groups * LANES;
    const uint8x16_t loaded = n_groups == 2 ? vld1q_u8(subs) : vcombine_u8(vld1_u8(subs), vdup_n_u8(0));
    const uint8x16_t bytes = veorq_u8(loaded, vdupq_n_u8(0x80));
    out[0].scale = times_flipped(u.scale, based_floats<0>(bytes));
    if constexpr (n_groups == 2) out[1].scale = times_flipped(u.scale, based_floats<1>(bytes));
  }
  if constexpr (row.scales == Scales::SUPER_MIN) {
    const uint8x16_t bytes = vld1q_u8(unit + 4 * LANES + index * 2 * LANES);
    out[0].scale = times_bytes(u.scale, u.minus_scale, based_floats<0>(bytes));
    out[0].min = times_bytes(u.min, u.minus_min, based_floats<1>(bytes));
  }
  if constexpr (row.scales == Scales::SUPER_SHORT) {
    const uint8x16_t both = vld1q_u8(unit + 4 * LANES + index * 2 * LANES);
    const uint8x16_t low = vandq_u8(both, vdupq_n_u8(15)), high = vshrq_n_u8(both, 4);
    out[0] = {times_bytes(u.scale, u.minus_scale, based_floats<0>(low)),
              times_bytes(u.min, u.minus_min, based_floats<0>(high))};
    out[1] = {times_bytes(u.scale, u.minus_scale, based_floats<1>(low)),
              times_bytes(u.min, u.minus_min, based_floats<1>(high))};
  }
}

}  // namespace tahr::TAHR_ISA
