// 32 columns of a panel of a block format, ready to multiply: codes a byte each, scales as f32.
#pragma once

#include <type_traits>

#include "matmul.h"
#include "quants.h"
#include "simd.h"

namespace tahr::TAHR_ISA {

// Tables of small numbers are offset to unsigned codes: sums of their products fit 16 bits several times over.
constexpr int SMALL_OFFSET = 16;
constexpr bool is_small(const int8_t* table) {
  for (int i = 0; table && i < 16; i++)
    if (table[i] < -SMALL_OFFSET || table[i] >= SMALL_OFFSET) return false;
  return table != nullptr;
}

constexpr bool is_signed(const FormatRow& row) { return row.bits == 8 || (row.table && !is_small(row.table)); }
constexpr int max_code(const FormatRow& row) {
  return is_signed(row) ? 255 : is_small(row.table) ? 2 * SMALL_OFFSET - 1 : (1 << row.bits) - 1;
}
// What the codes in `dot` exceed the true ones by.
constexpr int code_offset(const FormatRow& row) {
  return is_signed(row) ? SIGNED_OFFSET : is_small(row.table) ? SMALL_OFFSET : row.offset;
}

struct LookupTable {
  alignas(16) uint8_t bytes[16];
};

constexpr LookupTable offset_table(const int8_t* values, int offset) {
  LookupTable table{};
  for (int i = 0; i < 16; i++) table.bytes[i] = uint8_t(values[i] + offset);
  return table;
}

// Vector V of the eight that hold the codes of 32 columns; see quants.h for how the bits lie.
template <Format F, int V>
TAHR_INLINE Codes unpack_one(const uint8_t* p) {
  constexpr FormatRow row = row_of(F);
  constexpr int size = 4 * LANES;
  if constexpr (row.bits == 8) return load_codes(p + V * size);
  if constexpr (row.bits < 4) {
    const Codes low = field<2 * (V % 4), 3>(load_codes(p + V / 4 * size));
    if constexpr (row.bits == 2) return low;
    return either(low, field<V - 2, 4>(load_codes(p + 2 * size)));
  }
  const Codes nibbles = field<V / 4 * 4, 15>(load_codes(p + V % 4 * size));
  if constexpr (row.bits == 5) return either(nibbles, field<V - 4, 16>(load_codes(p + 4 * size)));
  if constexpr (row.bits == 6) return either(nibbles, field<2 * (V % 4) - 4, 48>(load_codes(p + (4 + V / 4) * size)));
  if constexpr (row.table != nullptr) {
    static constexpr LookupTable table = offset_table(row.table, code_offset(row));
    return lookup(table.bytes, nibbles);
  }
  return nibbles;
}

template <Format F>
constexpr auto book_of() {
  if constexpr (F == Format::IQ2_XXS) return CODEBOOKS.iq2_xxs;
  else if constexpr (F == Format::IQ2_XS) return CODEBOOKS.iq2_xs;
  else if constexpr (F == Format::IQ2_S) return CODEBOOKS.iq2_s;
  else if constexpr (F == Format::IQ3_XXS) return CODEBOOKS.iq3_xxs;
  else if constexpr (F == Format::IQ3_S) return CODEBOOKS.iq3_s;
  else return CODEBOOKS.iq1;
}

// The numbers of the I-th codewords of all rows, in memory, from where single ones are loaded.
template <Format F, int I>
struct Codewords {
  static constexpr int BITS = row_of(F).spelling.high_bits, AT = I * BITS;
  alignas(BITS ? 4 * LANES : alignof(void*)) std::conditional_t<BITS == 0, const uint8_t*, int32_t[LANES]> row;

  __attribute__((always_inline)) explicit Codewords(const uint8_t* p) {
    if constexpr (BITS == 0) {
      row = p + I * LANES;
    } else {
      const Ints high = field<AT % 8, (1 << BITS) - 1>(load_u8(p + (n_codewords(F) + AT / 8) * LANES));
      store(row, add(load_u8(p + I * LANES), shift_left<8>(high)));
      asm("" : "+m"(row));  // or GCC takes them out of the vector one by one, which is slower
    }
  }
};

// Octet I of the columns: vectors 2 I and 2 I + 1.
template <Format F, int I>
TAHR_INLINE void spell_octet(const uint8_t* p, Codes (&w)[8]) {
  constexpr Spelling spelling = row_of(F).spelling;
  if constexpr (spelling.width == 8) {
    const Codewords<F, I> at(p);
    gather_octets(book_of<F>(), at.row, w[2 * I], w[2 * I + 1]);
  } else {
    const Codewords<F, 2 * I> at(p);
    const Codewords<F, 2 * I + 1> then(p);
    gather_fours(book_of<F>(), at.row, then.row, w[2 * I], w[2 * I + 1]);
  }
  const uint8_t* signs = p + (n_codewords(F) + n_high_bytes(F)) * LANES;
#pragma GCC unroll 2
  for (int v = 2 * I; v < 2 * I + 2; v++) {
    if constexpr (spelling.has_signs) w[v] = negate(w[v], signs + v * LANES / 2);
    if constexpr (SIGNED_OFFSET != 0) w[v] = minus(w[v], -SIGNED_OFFSET);
  }
}

template <Format F>
TAHR_INLINE void unpack_planes(const uint8_t* p, Codes (&w)[8]) {
  w[0] = unpack_one<F, 0>(p), w[1] = unpack_one<F, 1>(p), w[2] = unpack_one<F, 2>(p), w[3] = unpack_one<F, 3>(p);
  w[4] = unpack_one<F, 4>(p), w[5] = unpack_one<F, 5>(p), w[6] = unpack_one<F, 6>(p), w[7] = unpack_one<F, 7>(p);
}

template <Format F>
TAHR_INLINE void unpack_codes(const uint8_t* p, Codes (&w)[8]) {
  if constexpr (is_spelt(F)) {
    spell_octet<F, 0>(p, w);
    spell_octet<F, 1>(p, w);
    spell_octet<F, 2>(p, w);
    spell_octet<F, 3>(p, w);
  } else {
    unpack_planes<F>(p, w);
  }
}

struct ScaleMin {
  Floats scale, min;
};

// Scales of a group of columns; `scales` begins those of the panel.
template <Format F>
TAHR_INLINE ScaleMin read_scales(const uint8_t* scales, int64_t group) {
  constexpr FormatRow row = row_of(F);
  constexpr int64_t unit_groups = scale_cols(row.scales) / row.group;
  const uint8_t* unit = scales + group / unit_groups * scale_bytes(F, LANES);
  const uint16_t* floats = reinterpret_cast<const uint16_t*>(unit);
  ScaleMin s{row.scales == Scales::BRAIN ? load_bf16(floats) : load_f16(floats), {}};
  if constexpr (has_min(row.scales)) s.min = load_f16(floats + LANES);
  const int64_t at = group % unit_groups * LANES;
  if constexpr (row.scales == Scales::SUPER)
    s.scale = mul(s.scale, to_floats(load_i8(reinterpret_cast<const int8_t*>(unit) + 2 * LANES + at)));
  if constexpr (row.scales == Scales::SUPER_ODD) {
    const Ints both = load_u8(unit + 2 * LANES + group % unit_groups / 2 * LANES);
    const Floats n = to_floats(group % 2 ? high_nibble(both) : low_nibble(both));
    s.scale = mul(s.scale, fma(n, set1(2 * row.unit), set1(row.unit)));
  }
  if constexpr (row.scales == Scales::SUPER_MIN) {
    s.scale = mul(s.scale, to_floats(load_u8(unit + 4 * LANES + 2 * at)));
    s.min = mul(s.min, to_floats(load_u8(unit + 4 * LANES + 2 * at + LANES)));
  }
  if constexpr (row.scales == Scales::SUPER_SHORT) {
    const Ints both = load_u8(unit + 4 * LANES + at);
    s.scale = mul(s.scale, to_floats(low_nibble(both)));
    s.min = mul(s.min, to_floats(high_nibble(both)));
  }
  return s;
}

template <Format F>
struct Unpacked {
  static constexpr int N_GROUPS = 32 / row_of(F).group;
  Codes w[8];
  ScaleMin groups[N_GROUPS];
};

// Piece p of a panel.
template <Format F>
TAHR_INLINE void unpack(const uint8_t* codes, const uint8_t* scales, int64_t p, Unpacked<F>& out) {
  unpack_codes<F>(codes + p * piece_bytes(F, LANES), out.w);
  for (int g = 0; g < out.N_GROUPS; g++) out.groups[g] = read_scales<F>(scales, p * out.N_GROUPS + g);
}

constexpr int log2(int n) { return n > 1 ? 1 + log2(n / 2) : 0; }

// Adds a group of columns (the first, or for 16-column groups also the second half of the blocks) to the sums.
template <Format F, int Half, int Panels, int Rows>
TAHR_INLINE void add_group(const Unpacked<F>* const (&u)[Panels], const QuantBlock* const (&x)[Rows],
                           Floats (&sums)[Panels][Rows]) {
  constexpr FormatRow row = row_of(F);
  constexpr int count = row.group / 4, offset = code_offset(row);
  static_assert((offset & (offset - 1)) == 0, "offsets are powers of two");
  const auto minus_sum = [](const QuantBlock& block) __attribute__((always_inline)) {
    return row.group == 32 ? block.minus_sum : Half ? block.minus_sum - block.minus_half : block.minus_half;
  };
  Ints dots[Panels][Rows];
  const Codes* w[Panels];
  const int8_t* codes[Rows];
#pragma GCC unroll 8
  for (int p = 0; p < Panels; p++) w[p] = u[p]->w;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
    codes[r] = x[r]->codes;
    const Ints start = offset ? shift_left<log2(offset)>(set1(minus_sum(*x[r]))) : set1(0);
#pragma GCC unroll 8
    for (int p = 0; p < Panels; p++) dots[p][r] = start;
  }
  dot_panels<Half * count, count, max_code(row)>(dots, w, codes);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
    const Floats scale = set1(x[r]->scale);
#pragma GCC unroll 8
    for (int p = 0; p < Panels; p++)
      sums[p][r] = fma(to_floats(dots[p][r]), mul(u[p]->groups[Half].scale, scale), sums[p][r]);
    if constexpr (has_min(row.scales)) {
      const float scaled = row.group == 32 ? x[r]->scaled_sum : x[r]->scale * float(-minus_sum(*x[r]));
#pragma GCC unroll 8
      for (int p = 0; p < Panels; p++) sums[p][r] = fnma(u[p]->groups[Half].min, set1(scaled), sums[p][r]);
    }
  }
}

// Adds 32 columns of some panels times as many of some rows to the sums.
template <Format F, int Panels, int Rows>
TAHR_INLINE void add_piece(const Unpacked<F>* const (&u)[Panels], const QuantBlock* const (&x)[Rows],
                           Floats (&sums)[Panels][Rows]) {
  add_group<F, 0>(u, x, sums);
  if constexpr (Unpacked<F>::N_GROUPS == 2) add_group<F, 1>(u, x, sums);
}

}  // namespace tahr::TAHR_ISA
