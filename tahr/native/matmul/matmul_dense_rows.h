// Many rows times panels of floats: sums of a tile of rows and a few panels stay in registers, one chain of them at a time. Every
// sum is formed by the same operations in the same order as in matmul_tile.h.
#pragma once

#include "matmul_tile.h"
#include "row_block.h"

namespace tahr::TAHR_ISA {

constexpr int64_t CHAIN_STEPS = 128;  // columns of one chain that stay in the nearest cache while rows pass by
constexpr int64_t DENSE_COLS = CHAINS * CHAIN_STEPS;
constexpr int64_t DENSE_BLOCK_PANELS = 12;  // at a time: their sums and the rows stay in the second-level cache
constexpr int64_t MIN_DENSE_ROWS = 4 * DENSE_TILE;  // fewer do not repay the copies

// Columns at work, those of a chain side by side. Where rows of 4 KiB lie they would all be in the same sets of a cache.
struct DenseScratch {
  alignas(64) float weights[CHAIN_STEPS][DENSE_PANELS][LANES];
  alignas(64) float x[CHAINS][MAX_BLOCK_ROWS][CHAIN_STEPS + 16];
  Floats sums[DENSE_BLOCK_PANELS / DENSE_PANELS][CHAINS][MAX_BLOCK_ROWS / DENSE_TILE][DENSE_TILE][DENSE_PANELS];
};
static_assert(sizeof(DenseScratch) <= WORKER_SCRATCH_BYTES);

// Adds `n` columns of a chain to a tile's sums: enough products at once to hide how long one takes.
template <int Panels>
TAHR_INLINE void add_columns(const DenseScratch& s, const float (*x)[CHAIN_STEPS + 16], int64_t n,
                             Floats (&kept)[DENSE_TILE][DENSE_PANELS]) {
  Floats sums[DENSE_TILE][Panels];  // in registers
#pragma GCC unroll 8
  for (int r = 0; r < DENSE_TILE; r++)
#pragma GCC unroll 8
    for (int p = 0; p < Panels; p++) sums[r][p] = kept[r][p];
  for (int64_t c = 0; c < n; c++) {
    Floats columns[Panels];
#pragma GCC unroll 8
    for (int p = 0; p < Panels; p++) columns[p] = load(s.weights[c][p]);
#pragma GCC unroll 8
    for (int r = 0; r < DENSE_TILE; r++) {
      const Floats number = set1(x[r][c]);
#pragma GCC unroll 8
      for (int p = 0; p < Panels; p++) sums[r][p] = fma(columns[p], number, sums[r][p]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < DENSE_TILE; r++)
#pragma GCC unroll 8
    for (int p = 0; p < Panels; p++) kept[r][p] = sums[r][p];
}

// Some columns of some neighbouring panels.
struct DensePart {
  int64_t panel, begin, n;
};

template <Format F>
constexpr int64_t COLUMN_BYTES = LANES * (F == Format::F32 ? 4 : 2);  // of a panel

// A share of a part, so that it is near when its turn comes: hardware stops at the ends of pages.
template <Format F, int Panels>
void fetch(const RowBlock& block, const DensePart& part, int share, int n_shares) {
  const int64_t n_bytes = part.n * COLUMN_BYTES<F>;
  for (int p = 0; p < Panels; p++) {
    const std::byte* from = block.matrix->panel(block.index, part.panel + p) + part.begin * COLUMN_BYTES<F>;
    for (int64_t i = n_bytes * share / n_shares / 64 * 64; i < n_bytes * (share + 1) / n_shares; i += 64) prefetch(from + i);
  }
}

// Adds some columns of neighbouring panels to the sums of all rows. Halves become floats once for all of them.
template <Format F, int Panels>
void add_dense(const RowBlock& block, const DensePart& part, const DensePart& next, int group, DenseScratch& s) {
  const int n_tiles = block.n_rows / DENSE_TILE;
  for (int i = 0; i < CHAINS; i++) {
    const int64_t n = (part.n - i + CHAINS - 1) / CHAINS;
    for (int p = 0; p < Panels; p++) {
      const std::byte* from = block.matrix->panel(block.index, part.panel + p);
      for (int64_t c = 0; c < n; c++) store(s.weights[c][p], load_column<F>(from, part.begin + CHAINS * c + i));
    }
    for (int t = 0; t < n_tiles; t++) {
      fetch<F, Panels>(block, next, i * n_tiles + t, CHAINS * n_tiles);
      add_columns<Panels>(s, s.x[i] + t * DENSE_TILE, n, s.sums[group][i][t]);
    }
  }
}

// Columns of a row, each to those of its chain.
static inline void deal_columns(const float* from, int64_t n, int row, DenseScratch& s) {
  int64_t c = 0;
  for (; c + CHAINS * LANES <= n; c += CHAINS * LANES) {
    Floats chains[CHAINS];
    deal(from + c, chains);
    for (int i = 0; i < CHAINS; i++) store(s.x[i][row] + c / CHAINS, chains[i]);
  }
  for (; c < n; c++) s.x[c % CHAINS][row][c / CHAINS] = from[c];
}

template <Format F>
void add_dense_panels(const RowBlock& block, Range panels, int64_t begin, int64_t n, DenseScratch& s) {
  for (int r = 0; r < block.n_rows; r++) deal_columns(reinterpret_cast<const float*>(block.x[r]) + begin, n, r, s);
  int group = 0;
  for (int64_t panel = panels.begin; panel < panels.end; panel += DENSE_PANELS, group++) {
    const DensePart part{panel, begin, n};
    const bool last = panel + DENSE_PANELS >= panels.end;
    const DensePart next = last ? DensePart{panels.begin, begin + n, n} : DensePart{panel + DENSE_PANELS, begin, n};
    switch (panels.end - panel) {
      case 1: add_dense<F, 1>(block, part, next, group, s); break;
      case 2: add_dense<F, DENSE_PANELS < 2 ? 1 : 2>(block, part, next, group, s); break;
      default: add_dense<F, DENSE_PANELS>(block, part, next, group, s);
    }
  }
}

static inline void write_dense(const RowBlock& block, Range panels, const DenseScratch& s) {
  for (int r = 0; r < block.n_rows; r++)
    for (int64_t panel = panels.begin; panel < panels.end; panel++) {
      const int64_t at = panel - panels.begin, first = panel * LANES, left = block.matrix->rows - first;
      const auto& chains = s.sums[at / DENSE_PANELS];
      const auto part = [&](int chain) { return chains[chain][r / DENSE_TILE][r % DENSE_TILE][at % DENSE_PANELS]; };
      Tile tile;
      tile.n = left < LANES ? int(left) : LANES;
      tile.bias = block.bias ? block.bias + first : nullptr;
      tile.out[0] = block.out[r] + first;
      finish(tile, 0, add(add(part(0), part(1)), add(part(2), part(3))));
    }
}

// A multiple of DENSE_TILE rows.
template <Format F>
void dense_block(const RowBlock& block, std::byte* scratch) {
  auto& s = *reinterpret_cast<DenseScratch*>(scratch);
  const int64_t cols = block.matrix->cols;
  for (int64_t begin = block.panels.begin; begin < block.panels.end; begin += DENSE_BLOCK_PANELS) {
    const Range panels = {begin, begin + DENSE_BLOCK_PANELS < block.panels.end ? begin + DENSE_BLOCK_PANELS : block.panels.end};
    memset(s.sums, 0, size_t((panels.end - panels.begin + DENSE_PANELS - 1) / DENSE_PANELS) * sizeof s.sums[0]);
    for (int64_t c = 0; c < cols; c += DENSE_COLS)
      add_dense_panels<F>(block, panels, c, cols - c < DENSE_COLS ? cols - c : DENSE_COLS, s);
    write_dense(block, panels, s);
  }
}

}  // namespace tahr::TAHR_ISA
