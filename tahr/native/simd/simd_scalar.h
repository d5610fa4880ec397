// The vocabulary in plain C++: what every other version must equal, and what runs where none of them can.
#pragma once

#include "half.h"

namespace tahr::TAHR_ISA {

#if defined(TAHR_ISA_amx)
constexpr int LANES = 16;  // its kernels are tested with plain vectors where there is no AVX-512
#else
constexpr int LANES = 8;
#endif
constexpr int DOT_ROWS = 1;       // activation rows a call of `dot` takes
constexpr int TILE_ROWS = 4;      // activation rows a matmul tile keeps in registers
constexpr int DENSE_ROWS = 2;     // the same against dense weights
constexpr int DENSE_TILE = 4;     // activation rows of many that meet dense weights together
constexpr int DENSE_PANELS = 1;   // panels that they meet then
constexpr int MANY_PANELS = 1;    // panels that many rows meet together
constexpr int ATTENTION_ROWS = 2;   // query rows that meet keys and values together
constexpr int ROWS_VECTORS = 4;      // vectors of these
constexpr int SIGNED_OFFSET = 0;  // what must be added to signed codes before `dot`
constexpr bool SIGNED_CODES = false;  // see PanelLayout
constexpr bool OCTETS = false;        // see PanelLayout

struct Floats { float v[LANES]; };
struct Ints { int32_t v[LANES]; };
struct Codes { uint8_t v[LANES * 4]; };

// The vector whose element i is what `f(i)` says.
template <class T, class F>
TAHR_INLINE T each(F f) {
  T out;
  for (int i = 0; i < int(sizeof(out.v) / sizeof(out.v[0])); i++) out.v[i] = f(i);
  return out;
}

TAHR_INLINE Floats set1(float x) { return each<Floats>([=](int) { return x; }); }
TAHR_INLINE Floats load(const float* p) { return each<Floats>([=](int i) { return p[i]; }); }
TAHR_INLINE Floats load_f16(const uint16_t* p) { return each<Floats>([=](int i) { return float_of_f16(p[i]); }); }
TAHR_INLINE Floats load_bf16(const uint16_t* p) { return each<Floats>([=](int i) { return float_of_bf16(p[i]); }); }
TAHR_INLINE void store(float* p, Floats a) { memcpy(p, a.v, sizeof a.v); }
TAHR_INLINE void store(int32_t* p, Ints a) { memcpy(p, a.v, sizeof a.v); }
TAHR_INLINE void store_f16(uint16_t* p, Floats a) { for (int i = 0; i < LANES; i++) p[i] = f16_of_float(a.v[i]); }
TAHR_INLINE void store_bf16(uint16_t* p, Floats a) { for (int i = 0; i < LANES; i++) p[i] = bf16_of_float(a.v[i]); }

TAHR_INLINE Floats add(Floats a, Floats b) { return each<Floats>([&](int i) { return a.v[i] + b.v[i]; }); }
TAHR_INLINE Floats sub(Floats a, Floats b) { return each<Floats>([&](int i) { return a.v[i] - b.v[i]; }); }
TAHR_INLINE Floats mul(Floats a, Floats b) { return each<Floats>([&](int i) { return a.v[i] * b.v[i]; }); }
TAHR_INLINE Floats div(Floats a, Floats b) { return each<Floats>([&](int i) { return a.v[i] / b.v[i]; }); }
TAHR_INLINE Floats max(Floats a, Floats b) { return each<Floats>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
TAHR_INLINE Floats min(Floats a, Floats b) { return each<Floats>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
TAHR_INLINE Floats abs(Floats a) { return each<Floats>([&](int i) { return a.v[i] < 0 ? -a.v[i] : a.v[i]; }); }
// c + a b, and c - a b.
TAHR_INLINE Floats fma(Floats a, Floats b, Floats c) { return each<Floats>([&](int i) { return c.v[i] + a.v[i] * b.v[i]; }); }
TAHR_INLINE Floats fnma(Floats a, Floats b, Floats c) { return each<Floats>([&](int i) { return c.v[i] - a.v[i] * b.v[i]; }); }

// Every fourth of 4 * LANES numbers, from the first, the second and so on.
TAHR_INLINE void deal(const float* p, Floats (&out)[4]) {
  for (int i = 0; i < 4; i++) out[i] = each<Floats>([&](int lane) { return p[4 * lane + i]; });
}

TAHR_INLINE Ints set1(int32_t x) { return each<Ints>([=](int) { return x; }); }
TAHR_INLINE Ints add(Ints a, Ints b) { return each<Ints>([&](int i) { return a.v[i] + b.v[i]; }); }
template <int N>
TAHR_INLINE Ints shift_left(Ints a) { return each<Ints>([&](int i) { return int32_t(uint32_t(a.v[i]) << N); }); }
// Of a byte, 0 .. 255.
TAHR_INLINE Ints low_nibble(Ints a) { return each<Ints>([&](int i) { return a.v[i] & 15; }); }
TAHR_INLINE Ints high_nibble(Ints a) { return each<Ints>([&](int i) { return a.v[i] >> 4; }); }
TAHR_INLINE Ints load(const int32_t* p) { return each<Ints>([=](int i) { return p[i]; }); }
TAHR_INLINE Ints load_i8(const int8_t* p) { return each<Ints>([=](int i) { return p[i]; }); }
TAHR_INLINE Ints load_u8(const uint8_t* p) { return each<Ints>([=](int i) { return p[i]; }); }
TAHR_INLINE void store_i8(int8_t* p, Ints a) { for (int i = 0; i < LANES; i++) p[i] = int8_t(a.v[i]); }
TAHR_INLINE Floats to_floats(Ints a) { return each<Floats>([&](int i) { return float(a.v[i]); }); }
// To the nearest, ties to even, for magnitudes below 2^22: added to 1.5 * 2^23, the integer is in the low bits.
TAHR_INLINE Ints round(Floats a) {
  return each<Ints>([&](int i) { return int32_t(bits_of_float(a.v[i] + 0x1.8p23f)) - 0x4b400000; });
}
TAHR_INLINE Floats as_floats(Ints a) { return each<Floats>([&](int i) { return float_of_bits(uint32_t(a.v[i])); }); }
TAHR_INLINE Ints as_ints(Floats a) { return each<Ints>([&](int i) { return int32_t(bits_of_float(a.v[i])); }); }

// Across the lanes, in a fixed order.
TAHR_INLINE float sum(Floats a) {
  for (int n = LANES / 2; n > 0; n /= 2)
    for (int i = 0; i < n; i++) a.v[i] += a.v[i + n];
  return a.v[0];
}
TAHR_INLINE float max_lane(Floats a) {
  float most = a.v[0];
  for (float x : a.v) most = x > most ? x : most;
  return most;
}
TAHR_INLINE int32_t sum(Ints a) {
  int32_t total = 0;
  for (int32_t x : a.v) total += x;
  return total;
}

// Of 16 bytes.
TAHR_INLINE int32_t sum16(const int8_t* p) {
  int32_t total = 0;
  for (int i = 0; i < 16; i++) total += p[i];
  return total;
}

TAHR_INLINE Codes load_codes(const uint8_t* p) { return each<Codes>([=](int i) { return p[i]; }); }
TAHR_INLINE void store(uint8_t* p, Codes a) { memcpy(p, a.v, sizeof a.v); }
TAHR_INLINE Codes minus(Codes a, int n) { return each<Codes>([&](int i) { return uint8_t(a.v[i] - n); }); }
// (byte >> Right) & Mask; a negative Right shifts left.
template <int Right, int Mask>
TAHR_INLINE Codes field(Codes a) {
  return each<Codes>([&](int i) { return uint8_t((Right < 0 ? a.v[i] << (Right < 0 ? -Right : 0) : a.v[i] >> (Right < 0 ? 0 : Right)) & Mask); });
}
TAHR_INLINE Codes either(Codes a, Codes b) { return each<Codes>([&](int i) { return uint8_t(a.v[i] | b.v[i]); }); }
TAHR_INLINE Codes lookup(const uint8_t* table, Codes nibbles) {
  return each<Codes>([&](int i) { return table[nibbles.v[i]]; });
}
template <int Right, int Mask>
TAHR_INLINE Ints field(Ints a) { return each<Ints>([&](int i) { return a.v[i] >> Right & Mask; }); }

// The first and the last four bytes of the words that each row's number names in the table.
template <class Numbers>
TAHR_INLINE void gather_octets(const uint64_t* table, const Numbers& at, Codes& first, Codes& last) {
  for (int i = 0; i < LANES; i++) {
    const uint64_t word = table[at[i]];
    memcpy(first.v + 4 * i, &word, 4);
    memcpy(last.v + 4 * i, reinterpret_cast<const uint8_t*>(&word) + 4, 4);
  }
}
template <class Numbers>
TAHR_INLINE void gather_fours(const uint32_t* table, const Numbers& at, const Numbers& then, Codes& first, Codes& last) {
  for (int i = 0; i < LANES; i++) {
    memcpy(first.v + 4 * i, &table[at[i]], 4);
    memcpy(last.v + 4 * i, &table[then[i]], 4);
  }
}
// Minus the bytes whose bit is set.
TAHR_INLINE Codes negate(Codes a, const uint8_t* bits) {
  return each<Codes>([&](int i) { return uint8_t(bits[i / 8] >> i % 8 & 1 ? -a.v[i] : a.v[i]); });
}

// Adds to sums[r] the products of codes w[First .. First + Count) with the columns of activation row x[r]. Codes are at most
// MaxCode; 255 stands for signed ones (plus SIGNED_OFFSET).
template <int First, int Count, int MaxCode, int Rows>
TAHR_INLINE void dot(Ints (&sums)[Rows], const Codes (&w)[8], const int8_t* const (&x)[Rows]) {
  for (int r = 0; r < Rows; r++)
    for (int g = First; g < First + Count; g++) {
      const int8_t* c = x[r] + 4 * g;
      for (int i = 0; i < LANES; i++) {
        int8_t q[4];
        memcpy(q, w[g].v + 4 * i, 4);
        sums[r].v[i] += q[0] * c[0] + q[1] * c[1] + q[2] * c[2] + q[3] * c[3];
      }
    }
}

}  // namespace tahr::TAHR_ISA
