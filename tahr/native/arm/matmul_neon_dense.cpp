// Eight rows times panels of floats.
//
// A Neoverse N1 copies a number to all lanes with the units that multiply, so the rows are laid out beforehand for products with
// one element of a register, which need no copies. Sums are formed by the same operations in the same order as in matmul_tile.h.
#include <array>
#include <utility>

#include "matmul_tile.h"
#include "row_block.h"
#include "simd_tail.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int ROWS = NEON_DENSE_ROWS;
constexpr int CHAIN_COLS = 256;  // a multiple of CHAINS; so many columns of a panel and of the rows stay in the nearest cache
static_assert(ROWS == LANES, "a tile of rows is as large as a panel of floats");
constexpr int64_t STEP = 4 * CHAINS;  // columns of which a register holds those of one chain

template <Format F>
constexpr int64_t COLUMN_BYTES = LANES * (F == Format::F32 ? 4 : 2);  // of a panel

// Of every CHAIN_COLS columns those of the first chain, then of the second and so on: four of each row, row after row.
void lay_out(const RowBlock& block, int first, float* out) {
  for (int64_t begin = 0; begin < block.matrix->cols; begin += CHAIN_COLS) {
    const int64_t left = block.matrix->cols - begin, n = (left < CHAIN_COLS ? left : CHAIN_COLS) / STEP;
    for (int r = 0; r < ROWS; r++) {
      const float* x = reinterpret_cast<const float*>(block.x[first + r]) + begin;
      for (int64_t i = 0; i < n; i++) {
        const float32x4x4_t columns = vld4q_f32(x + STEP * i);
        for (int chain = 0; chain < CHAINS; chain++) vst1q_f32(out + ((chain * n + i) * ROWS + r) * 4, columns.val[chain]);
      }
    }
    out += n * STEP * ROWS;
  }
}

template <Format F, int Lane>
TAHR_INLINE void add_column(const std::byte* panel, int64_t column, const float32x4_t (&x)[ROWS], Floats (&sums)[ROWS]) {
  const Floats w = load_column<F>(panel, column);
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) {
    sums[r].lo = vfmaq_laneq_f32(sums[r].lo, w.lo, x[r], Lane);
    sums[r].hi = vfmaq_laneq_f32(sums[r].hi, w.hi, x[r], Lane);
  }
}

// Adds every fourth column from `column` on, 4 * n of them. As many columns from `next` on are fetched for later meanwhile.
template <Format F>
TAHR_INLINE void add_lanes(const std::byte* panel, int64_t column, int64_t n, const float* x, const std::byte* next,
                           Floats (&kept)[ROWS]) {
  constexpr int64_t fetched = 4 * COLUMN_BYTES<F>;
  Floats sums[ROWS];  // in registers
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) sums[r] = kept[r];
  for (int64_t i = 0; i < n; i++, column += STEP, x += 4 * ROWS) {
    for (int64_t at = 0; at < fetched; at += 64) prefetch(next + fetched * i + at);
    float32x4_t columns[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) columns[r] = vld1q_f32(x + 4 * r);
    add_column<F, 0>(panel, column, columns, sums);
    add_column<F, 1>(panel, column + CHAINS, columns, sums);
    add_column<F, 2>(panel, column + 2 * CHAINS, columns, sums);
    add_column<F, 3>(panel, column + 3 * CHAINS, columns, sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) kept[r] = sums[r];
}

template <Format F>
void dense_panel(const RowBlock& block, int first, int64_t panel, const std::byte* weights, const float* x) {
  const PackedMatrix& m = *block.matrix;
  Floats parts[CHAINS][ROWS];
  for (auto& part : parts)
    for (auto& lanes : part) lanes = set1(0.0f);
  for (int64_t begin = 0; begin < m.cols; begin += CHAIN_COLS) {
    const int64_t left = m.cols - begin, n = (left < CHAIN_COLS ? left : CHAIN_COLS) / STEP;
    for (int chain = 0; chain < CHAINS; chain++, x += n * 4 * ROWS) {
      const std::byte* next = weights + (begin + n * (STEP + 4 * chain)) * COLUMN_BYTES<F>;  // or of the next panel
      add_lanes<F>(weights, begin + chain, n, x, next, parts[chain]);
    }
  }
  const int64_t at = panel * LANES, left = m.rows - at;
  const int n = left < LANES ? int(left) : LANES;
  for (int r = 0; r < ROWS; r++) {
    const Floats sum = add(add(parts[0][r], parts[1][r]), add(parts[2][r], parts[3][r]));
    store_some(block.out[first + r] + at, block.bias ? add(sum, load_some(block.bias + at, n)) : sum, n);
  }
}

// Halves become floats once per panel for several tiles of rows: converting a number takes as long as four products.
template <Format F>
void run_converted(const RowBlock& block, int64_t n_tiles, float* scratch) {
  const int64_t cols = block.matrix->cols, tile = cols * ROWS;
  float *weights = scratch, *rows = scratch + cols * LANES;
  for (int first = 0; first < block.n_rows; first += int(n_tiles) * ROWS) {
    const int64_t left = (block.n_rows - first) / ROWS, n = left < n_tiles ? left : n_tiles;
    for (int64_t t = 0; t < n; t++) lay_out(block, first + int(t) * ROWS, rows + t * tile);
    for (int64_t panel = block.panels.begin; panel < block.panels.end; panel++) {
      const std::byte* halves = block.matrix->panel(block.index, panel);
      for (int64_t c = 0; c < cols; c++) store(weights + c * LANES, load_column<F>(halves, c));
      for (int64_t t = 0; t < n; t++)
        dense_panel<Format::F32>(block, first + int(t) * ROWS, panel, reinterpret_cast<const std::byte*>(weights), rows + t * tile);
    }
  }
}

template <Format F>
void run_format(const RowBlock& block, float* scratch) {
  if constexpr (is_dense(F)) {
    const int64_t n_tiles = int64_t(WORKER_SCRATCH_BYTES / sizeof(float)) / (block.matrix->cols * ROWS) - 1;
    if (F != Format::F32 && n_tiles > 1 && block.n_rows > ROWS) return run_converted<F>(block, n_tiles, scratch);
    for (int first = 0; first < block.n_rows; first += ROWS) {
      lay_out(block, first, scratch);
      for (int64_t panel = block.panels.begin; panel < block.panels.end; panel++)
        dense_panel<F>(block, first, panel, block.matrix->panel(block.index, panel), scratch);
    }
  }
}

using RunFormat = void (*)(const RowBlock&, float*);

template <size_t... I>
constexpr std::array<RunFormat, N_FORMATS> make_formats(std::index_sequence<I...>) {
  return {run_format<Format(I)>...};
}

}  // namespace

int neon_dense_rows(const PackedMatrix& m, int64_t n_rows) {
  const bool fits = m.cols % STEP == 0 && m.cols * ROWS * int64_t(sizeof(float)) <= int64_t(WORKER_SCRATCH_BYTES);
  return fits ? int(n_rows / ROWS * ROWS) : 0;
}

void run_neon_dense(const RowBlock& block, std::byte* scratch) {
  static constexpr auto formats = make_formats(std::make_index_sequence<N_FORMATS>{});
  formats[size_t(block.matrix->format)](block, reinterpret_cast<float*>(scratch));
}

}  // namespace tahr::TAHR_ISA
