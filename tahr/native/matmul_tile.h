// The innermost loops: one panel of a matrix times a few rows.
//
// Integers are exact inside 32 columns (16 where the format has a scale per 16) and f32 across them, in the order of
// the columns, by the same operations for any number of rows.
#pragma once

#include "matmul.h"
#include "quants.h"
#include "simd.h"

namespace tahr::TAHR_ISA {

constexpr int MAX_TILE_ROWS = 8;

struct Tile {
  const std::byte* panel;
  int64_t cols;
  const std::byte* x[MAX_TILE_ROWS];  // QuantBlocks, or floats for dense formats
  float* out[MAX_TILE_ROWS];
  const float* bias;  // or null
  int n;              // rows of the panel that the matrix has
};

template <int Rows>
TAHR_INLINE void finish(const Tile& tile, Floats (&sums)[Rows]) {
  for (int r = 0; r < Rows; r++) {
    if (tile.n == LANES) {
      store(tile.out[r], tile.bias ? add(sums[r], load(tile.bias)) : sums[r]);
    } else {
      const Floats bias = tile.bias ? load_part(tile.bias, tile.n) : set1(0.0f);
      store_part(tile.out[r], tile.bias ? add(sums[r], bias) : sums[r], tile.n);
    }
  }
}

// ---- dense ----

template <Format F>
TAHR_INLINE Floats load_column(const std::byte* panel, int64_t col) {
  if constexpr (F == Format::F32) return load(reinterpret_cast<const float*>(panel) + col * LANES);
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel) + col * LANES;
  return F == Format::F16 ? load_f16(halves) : load_bf16(halves);
}

// Every fourth column shares a sum, so that four chains of additions run at once.
template <Format F, int Rows>
void dense_tile(const Tile& tile) {
  constexpr int CHAINS = 4;
  const float* x[Rows];
  Floats parts[CHAINS][Rows], sums[Rows];
  for (int r = 0; r < Rows; r++) x[r] = reinterpret_cast<const float*>(tile.x[r]);
  for (auto& part : parts)
    for (auto& lanes : part) lanes = set1(0.0f);
  const auto column = [&](Floats (&part)[Rows], int64_t c) __attribute__((always_inline)) {
    const Floats w = load_column<F>(tile.panel, c);
    for (int r = 0; r < Rows; r++) part[r] = fma(w, set1(x[r][c]), part[r]);
  };
  int64_t c = 0;
  for (; c + CHAINS <= tile.cols; c += CHAINS)
#pragma GCC unroll 4
    for (int i = 0; i < CHAINS; i++) column(parts[i], c + i);
  for (int i = 0; c + i < tile.cols; i++) column(parts[i], c + i);
  for (int r = 0; r < Rows; r++) sums[r] = add(add(parts[0][r], parts[1][r]), add(parts[2][r], parts[3][r]));
  finish(tile, sums);
}

// ---- block formats ----

constexpr bool is_signed(const FormatRow& row) { return row.bits == 8 || row.table; }
constexpr int max_code(const FormatRow& row) { return is_signed(row) ? 255 : (1 << row.bits) - 1; }
// What the codes in `dot` exceed the true ones by.
constexpr int code_offset(const FormatRow& row) { return is_signed(row) ? SIGNED_OFFSET : row.offset; }

struct LookupTable {
  alignas(16) uint8_t bytes[16];
};

constexpr LookupTable offset_table(const int8_t* values) {
  LookupTable table{};
  for (int i = 0; i < 16; i++) table.bytes[i] = uint8_t(values[i] + SIGNED_OFFSET);
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
    static constexpr LookupTable table = offset_table(row.table);
    return lookup(table.bytes, nibbles);
  }
  return nibbles;
}

template <Format F>
TAHR_INLINE void unpack(const uint8_t* p, Codes (&w)[8]) {
  w[0] = unpack_one<F, 0>(p), w[1] = unpack_one<F, 1>(p), w[2] = unpack_one<F, 2>(p), w[3] = unpack_one<F, 3>(p);
  w[4] = unpack_one<F, 4>(p), w[5] = unpack_one<F, 5>(p), w[6] = unpack_one<F, 6>(p), w[7] = unpack_one<F, 7>(p);
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

constexpr int log2(int n) { return n > 1 ? 1 + log2(n / 2) : 0; }

// Adds a group of columns (the first, or for 16-column groups also the second half of the blocks) to the sums.
template <Format F, int Half, int Rows>
TAHR_INLINE void add_group(const Codes (&w)[8], const ScaleMin& s, const QuantBlock* const (&x)[Rows], Floats* sums) {
  constexpr FormatRow row = row_of(F);
  constexpr int count = row.group / 4, offset = code_offset(row);
  static_assert((offset & (offset - 1)) == 0, "offsets are powers of two");
  const auto minus_sum = [](const QuantBlock& block) __attribute__((always_inline)) {
    return row.group == 32 ? block.minus_sum : Half ? block.minus_sum - block.minus_half : block.minus_half;
  };
  Ints dots[Rows];
  const int8_t* codes[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
    codes[r] = x[r]->codes;
    dots[r] = offset ? shift_left<log2(offset)>(set1(minus_sum(*x[r]))) : set1(0);
  }
  dot<Half * count, count, max_code(row), Rows>(dots, w, codes);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
    sums[r] = fma(to_floats(dots[r]), mul(s.scale, set1(x[r]->scale)), sums[r]);
    if constexpr (has_min(row.scales)) {
      const float scaled = row.group == 32 ? x[r]->scaled_sum : x[r]->scale * float(-minus_sum(*x[r]));
      sums[r] = fnma(s.min, set1(scaled), sums[r]);
    }
  }
}

template <Format F, int Rows>
void quantised_tile(const Tile& tile) {
  constexpr FormatRow row = row_of(F);
  constexpr int step = Rows < DOT_ROWS ? Rows : DOT_ROWS, n_groups = 32 / row.group;
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(tile.panel);
  const uint8_t* scales = codes + tile.cols / 32 * piece_bytes(F, LANES);
  Floats sums[Rows];
  for (auto& lanes : sums) lanes = set1(0.0f);
  for (int64_t p = 0; p < tile.cols / 32; p++, codes += piece_bytes(F, LANES)) {
    Codes w[8];
    unpack<F>(codes, w);
    const ScaleMin first = read_scales<F>(scales, p * n_groups);
    const ScaleMin second = n_groups == 2 ? read_scales<F>(scales, p * n_groups + 1) : first;
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r += step) {
      const QuantBlock* x[step];
      for (int i = 0; i < step; i++) x[i] = reinterpret_cast<const QuantBlock*>(tile.x[r + i]) + p;
      add_group<F, 0, step>(w, first, x, sums + r);
      if constexpr (n_groups == 2) add_group<F, 1, step>(w, second, x, sums + r);
    }
  }
  finish(tile, sums);
}

}  // namespace tahr::TAHR_ISA
