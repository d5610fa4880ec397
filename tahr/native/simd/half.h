// 16-bit floats, one at a time. Internal linkage throughout: these are compiled with many sets of flags.
#pragma once

#include <cstdint>
#include <cstring>

namespace tahr {

static inline float float_of_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline uint32_t bits_of_float(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof f);
  return bits;
}

static inline float float_of_bf16(uint16_t h) { return float_of_bits(uint32_t(h) << 16); }

static inline float float_of_f16(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // Multiplying moves the exponent from f16's bias to f32's, and normalises what is subnormal in f16.
  return float_of_bits(sign | bits_of_float(float_of_bits(rest << 13) * 0x1p112f));
}

// Both round to the nearest, ties to even.
static inline uint16_t f16_of_float(float f) {
  const uint32_t bits = bits_of_float(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (rest >= 0x477ff000) return uint16_t(sign | 0x7c00);
  if (rest < 0x38800000)  // subnormal in f16: adding 0.5 lines the bits up and rounds them
    return uint16_t(sign | (bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000));
  return uint16_t(sign | (((rest + 0xfff + (rest >> 13 & 1)) >> 13) - (112 << 10)));
}

static inline uint16_t bf16_of_float(float f) {
  const uint32_t bits = bits_of_float(f);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace tahr
