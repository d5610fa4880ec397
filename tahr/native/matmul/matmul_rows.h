// Many rows times a few panels: the panels are unpacked once, a few columns at a time, and stay in the nearest cache
// while all the rows pass by. Every sum is formed by the same operations in the same order as in matmul_tile.h.
#pragma once

#include "matmul_tile.h"
#include "row_block.h"

namespace tahr::TAHR_ISA {

constexpr int MANY_TILE = 4;           // rows whose sums are in registers together
constexpr int64_t MIN_MANY_ROWS = 24;  // fewer do not repay the unpacking
constexpr int64_t CHUNK_PIECES = 8;    // 256 columns: unpacked, those of all panels fit the nearest cache

// Some neighbouring panels of a matrix and up to MAX_BLOCK_ROWS rows.
struct ManyRows {
  const std::byte* panels;
  int64_t panel_bytes, cols;
  int n_rows;
  const QuantBlock* x[MAX_BLOCK_ROWS + MANY_TILE];
  float* out[MAX_BLOCK_ROWS];  // where the first panel's rows go
  const float* bias;          // or null
  int64_t n;                  // rows of the matrix from the first panel's on
  std::byte* scratch;
};

template <Format F, int Panels>
struct ManyScratch {
  Unpacked<F> pieces[CHUNK_PIECES][Panels];
  Floats sums[MAX_BLOCK_ROWS + MANY_TILE][Panels];
};

template <Format F, int Panels>
void unpack_chunk(const ManyRows& job, int64_t first, int64_t n, ManyScratch<F, Panels>& s) {
  for (int p = 0; p < Panels; p++) {
    const auto* codes = reinterpret_cast<const uint8_t*>(job.panels + p * job.panel_bytes);
    for (int64_t i = 0; i < n; i++) unpack(codes, codes + job.cols / 32 * piece_bytes(F, LANES), first + i, s.pieces[i][p]);
  }
}

// Rows [row, row + MANY_TILE) times the unpacked columns; `first` is the first piece.
template <Format F, int Panels>
void add_chunk(const ManyRows& job, int row, int64_t first, int64_t n, ManyScratch<F, Panels>& s) {
  constexpr int step = MANY_TILE < DOT_ROWS ? MANY_TILE : DOT_ROWS;
  Floats sums[MANY_TILE / step][Panels][step];
  for (int r = 0; r < MANY_TILE; r++)
    for (int p = 0; p < Panels; p++) sums[r / step][p][r % step] = s.sums[row + r][p];
  for (int64_t i = 0; i < n; i++) {
    const Unpacked<F>* u[Panels];
    for (int p = 0; p < Panels; p++) u[p] = &s.pieces[i][p];
#pragma GCC unroll 4
    for (int r = 0; r < MANY_TILE; r += step) {
      const QuantBlock* x[step];
      for (int j = 0; j < step; j++) x[j] = job.x[row + r + j] + first + i;
      add_piece<F>(u, x, sums[r / step]);
    }
  }
  for (int r = 0; r < MANY_TILE; r++)
    for (int p = 0; p < Panels; p++) s.sums[row + r][p] = sums[r / step][p][r % step];
}

template <Format F, int Panels>
void many_rows(const ManyRows& job) {
  static_assert(sizeof(ManyScratch<F, Panels>) <= WORKER_SCRATCH_BYTES);
  auto& s = *reinterpret_cast<ManyScratch<F, Panels>*>(job.scratch);
  for (int r = 0; r < job.n_rows + MANY_TILE; r++)
    for (auto& lanes : s.sums[r]) lanes = set1(0.0f);
  const int64_t n_pieces = job.cols / 32;
  for (int64_t first = 0; first < n_pieces; first += CHUNK_PIECES) {
    const int64_t n = n_pieces - first < CHUNK_PIECES ? n_pieces - first : CHUNK_PIECES;
    unpack_chunk<F, Panels>(job, first, n, s);
    for (int row = 0; row < job.n_rows; row += MANY_TILE) add_chunk<F, Panels>(job, row, first, n, s);
  }
  for (int p = 0; p < Panels; p++) {
    Tile tile;
    const int64_t left = job.n - p * LANES;
    tile.n = left < LANES ? int(left) : LANES;
    tile.bias = job.bias ? job.bias + p * LANES : nullptr;
    for (int r = 0; r < job.n_rows; r++) {
      tile.out[0] = job.out[r] + p * LANES;
      finish(tile, 0, s.sums[r][p]);
    }
  }
}

}  // namespace tahr::TAHR_ISA
