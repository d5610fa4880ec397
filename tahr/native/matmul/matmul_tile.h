// The innermost loops: one panel of a matrix times a few rows.
//
// Integers are exact inside 32 columns (16 where the format has a scale per 16) and f32 across them, in the order of
// the columns, by the same operations for any number of rows.
#pragma once

#include "matmul.h"
#include "unpack.h"

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

// Row r of the tile, with the bias if there is one.
TAHR_INLINE void finish(const Tile& tile, int r, Floats sum) {
  if (tile.n == LANES) return store(tile.out[r], tile.bias ? add(sum, load(tile.bias)) : sum);
  store_part(tile.out[r], tile.bias ? add(sum, load_part(tile.bias, tile.n)) : sum, tile.n);
}

// ---- dense ----

template <Format F>
TAHR_INLINE Floats load_column(const std::byte* panel, int64_t col) {
  if constexpr (F == Format::F32) return load(reinterpret_cast<const float*>(panel) + col * LANES);
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel) + col * LANES;
  return F == Format::F16 ? load_f16(halves) : load_bf16(halves);
}

constexpr int CHAINS = 4;
#if defined(TAHR_NEON)
constexpr bool FETCH_AHEAD = true;
#else
constexpr bool FETCH_AHEAD = false;  // hardware sees by itself what comes
#endif

// Asks for the bytes of halves well before CHAINS columns need them.
TAHR_INLINE void fetch_ahead(const std::byte* panel, int64_t col) {
  constexpr int64_t column = LANES * sizeof(uint16_t);
  for (int64_t i = 0; i < CHAINS * column; i += 64) prefetch_far(panel + col * column + FAR_AHEAD + i);
}

// Columns col + I to col + CHAINS - 1, each added to the sums of its chain.
template <Format F, int I, int Rows>
TAHR_INLINE void add_column(const std::byte* panel, int64_t col, const Four (&x)[Rows], Floats (&parts)[CHAINS][Rows]) {
  const Floats w = load_column<F>(panel, col + I);
  for (int r = 0; r < Rows; r++) parts[I][r] = fma_of<I>(w, x[r], parts[I][r]);
  if constexpr (I + 1 < CHAINS) add_column<F, I + 1>(panel, col, x, parts);
}

// Every fourth column shares a sum, so that four chains of additions run at once.
template <Format F, int Rows>
void dense_tile(const Tile& tile) {
  const float* x[Rows];
  Floats parts[CHAINS][Rows];
  for (int r = 0; r < Rows; r++) x[r] = reinterpret_cast<const float*>(tile.x[r]);
  for (auto& part : parts)
    for (auto& lanes : part) lanes = set1(0.0f);
  int64_t c = 0;
  for (; c + CHAINS <= tile.cols; c += CHAINS) {
    if constexpr (FETCH_AHEAD && F != Format::F32) fetch_ahead(tile.panel, c);
    Four four[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++) four[r] = load_four(x[r] + c);
    add_column<F, 0>(tile.panel, c, four, parts);
  }
#pragma GCC unroll 4
  for (int i = 0; i < CHAINS - 1; i++) {  // without a variable in the place of a sum, or all would be kept in memory
    if (c + i >= tile.cols) break;
    const Floats w = load_column<F>(tile.panel, c + i);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++) parts[i][r] = fma(w, set1(x[r][c + i]), parts[i][r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++)
    finish(tile, r, add(add(parts[0][r], parts[1][r]), add(parts[2][r], parts[3][r])));
}

// More rows than have registers for the sums of all their chains: two at a time pass by a panel, which stays in the nearest cache.
template <Format F, int Rows>
void dense_pairs(const Tile& tile) {
  for (int r = 0; r < Rows; r += 2) {
    Tile pair = tile;
    for (int i = 0; i < 2; i++) pair.x[i] = tile.x[r + i], pair.out[i] = tile.out[r + i];
    dense_tile<F, 2>(pair);
  }
}

// ---- block formats ----

constexpr int64_t AHEAD = 4096;  // bytes of a panel asked for before they are needed, across the pages hardware stops at

template <Format F, int Rows>
void quantised_tile(const Tile& tile) {
  constexpr int step = Rows < DOT_ROWS ? Rows : DOT_ROWS;
  constexpr int64_t size = piece_bytes(F, LANES), scale_size = scale_bytes(F, LANES) * 32 / scale_cols(row_of(F).scales);
  const int64_t n_pieces = tile.cols / 32;
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(tile.panel);
  const uint8_t* scales = codes + n_pieces * size;
  const uint8_t* next_scales = scales + n_pieces * (scale_size + size);  // of the next panel
  Floats sums[Rows / step][1][step];
  for (auto& some : sums)
    for (auto& lanes : some[0]) lanes = set1(0.0f);
  for (int64_t p = 0; p < n_pieces; p++) {
    for (int64_t i = 0; i < size; i += 64) prefetch(codes + p * size + AHEAD + i);
    prefetch(next_scales + p * scale_size);  // or every panel would begin with a wait for memory
    Unpacked<F> piece;
    unpack(codes, scales, p, piece);
    const Unpacked<F>* const only[1] = {&piece};
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r += step) {
      const QuantBlock* x[step];
      for (int i = 0; i < step; i++) x[i] = reinterpret_cast<const QuantBlock*>(tile.x[r + i]) + p;
      add_piece<F>(only, x, sums[r / step]);
    }
  }
  for (int r = 0; r < Rows; r++) finish(tile, r, sums[r / step][0][r % step]);
}

}  // namespace tahr::TAHR_ISA
