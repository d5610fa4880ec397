// Blocks of many rows by tile instructions.
//
// A tile product is exact int32 over the columns of one scale; it goes through memory to the vector registers, where it is
// scaled and added as the kernels for a few rows do it. Storing and adding take two thirds of the time, so what matters is that
// they find everything in the nearest cache: the columns are cut into chunks for which activations of 64 rows and codes of a
// panel fit. Few tile registers are faster than many: while the other thread of a core is busy, only those that are not in use
// can be written ahead of time.
#include "row_block.h"

#include <array>
#include <utility>

#include "amx_tiles.h"
#include "matmul_tile.h"
#include "simd_tail.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int CHUNK = 8;             // pieces of 32 columns
constexpr int LINES_AHEAD = 2;       // fetched per step: about as much as a step reads itself
constexpr int64_t MAX_PANELS = 128;  // at a time: their sums lie in the scratch memory

enum Tiles { C0, C1, X, W };

struct Panel {
  alignas(64) uint8_t codes[CHUNK][8 * 64];  // signed
  ScaleMin scales[CHUNK];
};

struct AmxWorkspace {
  Panel panel;
  alignas(64) int32_t dots[2][AMX_TILE_ROWS][LANES];
  alignas(64) QuantBlock x[CHUNK][MAX_BLOCK_ROWS];
  alignas(64) float sums[MAX_PANELS][MAX_BLOCK_ROWS][LANES];
};
static_assert(sizeof(AmxWorkspace) <= WORKER_SCRATCH_BYTES);

// Which pieces of the columns are at work.
struct PieceRange {
  int64_t first;
  int n;
};

tiles::Shape shape() {
  tiles::Shape shape;
  shape.set(C0, AMX_TILE_ROWS, tiles::ROW_BYTES);
  shape.set(C1, AMX_TILE_ROWS, tiles::ROW_BYTES);
  shape.set(X, AMX_TILE_ROWS, PIECE_COLS);
  shape.set(W, PIECE_COLS / 4, tiles::ROW_BYTES);
  return shape;
}

template <Format F>
void unpack_panel(const std::byte* packed, int64_t cols, PieceRange pieces, Panel& panel) {
  const auto* codes = reinterpret_cast<const uint8_t*>(packed);
  const uint8_t* scales = codes + cols / 32 * piece_bytes(F, LANES);
  for (int i = 0; i < pieces.n; i++) {
    Codes w[8];
    unpack_codes<F>(codes + (pieces.first + i) * piece_bytes(F, LANES), w);
    for (int v = 0; v < 8; v++) store(panel.codes[i] + v * 64, minus(w[v], code_offset(row_of(F))));
    panel.scales[i] = read_scales<F>(scales, pieces.first + i);
  }
}

// A step is a piece of the chunk times a tile of rows; steps are numbered by tile, then by piece.
struct Steps {
  int n_pieces, n;
  int64_t row = 0;  // of the next step to load
  int piece = 0;
};

TAHR_INLINE void load_step(const AmxWorkspace& work, Steps& steps) {
  tiles::load<X>(work.x[steps.piece][steps.row].codes, sizeof(QuantBlock));
  tiles::load<W>(work.panel.codes[steps.piece], tiles::ROW_BYTES);
  if (++steps.piece == steps.n_pieces) steps.piece = 0, steps.row += AMX_TILE_ROWS;
}

template <int C>
TAHR_INLINE void multiply_step() {
  tiles::zero<C>();
  tiles::dot<C, X, W>();
}

// What tiles do while the vectors are at step `s`: they store step s + 1, multiply s + 2 and load s + 3, each of which was made
// ready a step before. Even steps have their products in the first register, odd ones in the second.
template <int Odd>
TAHR_INLINE void tiles_ahead(AmxWorkspace& work, Steps& steps, int s) {
  if (s + 1 >= 0 && s + 1 < steps.n) tiles::store<C0 + !Odd>(work.dots[!Odd], tiles::ROW_BYTES);
  if (s + 2 >= 0 && s + 2 < steps.n) multiply_step<C0 + Odd>();
  if (s + 3 < steps.n) load_step(work, steps);
}

TAHR_INLINE void tiles_ahead(AmxWorkspace& work, Steps& steps, int s) {
  s & 1 ? tiles_ahead<1>(work, steps, s) : tiles_ahead<0>(work, steps, s);
}

// The same operations in the same order as in the kernels for a few rows.
template <Format F>
TAHR_INLINE Floats add_scaled(Ints dots, const ScaleMin& s, const QuantBlock& x, Floats sums) {
  sums = fma(to_floats(dots), mul(s.scale, set1(x.scale)), sums);
  return has_min(row_of(F).scales) ? fnma(s.min, set1(x.scaled_sum), sums) : sums;
}

template <Format F>
TAHR_INLINE void combine(const AmxWorkspace& work, int64_t row, int i, const int32_t (&dots)[AMX_TILE_ROWS][LANES],
                         Floats (&sums)[AMX_TILE_ROWS]) {
  const ScaleMin s = work.panel.scales[i];
  const QuantBlock* x = work.x[i] + row;
#pragma GCC unroll 16
  for (int r = 0; r < AMX_TILE_ROWS; r++) sums[r] = add_scaled<F>(load(dots[r]), s, x[r], sums[r]);
}

// False: nothing is left.
TAHR_INLINE bool fetch(Ahead* ahead) {
  for (int i = 0; i < LINES_AHEAD; i++)
    if (!ahead->fetch()) return false;
  return true;
}

// Adds the chunk's columns to the sums of a tile of rows, whose first step is `first`.
template <Format F>
void add_chunk(AmxWorkspace& work, PieceRange pieces, int64_t row, int first, Steps& steps, float (*kept)[LANES], Ahead* ahead) {
  Floats sums[AMX_TILE_ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < AMX_TILE_ROWS; r++) sums[r] = pieces.first ? load(kept[row + r]) : set1(0.0f);
  for (int i = 0; i < pieces.n; i++) {
    if (ahead && !fetch(ahead)) ahead = nullptr;
    tiles_ahead(work, steps, first + i);
    combine<F>(work, row, i, work.dots[(first + i) % 2], sums);
  }
#pragma GCC unroll 16
  for (int r = 0; r < AMX_TILE_ROWS; r++) store(kept[row + r], sums[r]);
}

void copy_x(const RowBlock& block, PieceRange pieces, AmxWorkspace& work) {
  for (int r = 0; r < block.n_rows; r++) {
    const auto* x = reinterpret_cast<const QuantBlock*>(block.x[r]) + pieces.first;
    for (int i = 0; i < pieces.n; i++) work.x[i][r] = x[i];
  }
}

template <Format F>
void add_pieces(const RowBlock& block, Range panels, PieceRange pieces, AmxWorkspace& work) {
  const PackedMatrix& m = *block.matrix;
  copy_x(block, pieces, work);
  for (int64_t panel = panels.begin; panel < panels.end; panel++) {
    unpack_panel<F>(m.panel(block.index, panel), m.cols, pieces, work.panel);
    Steps steps{pieces.n, block.n_rows / AMX_TILE_ROWS * pieces.n};
    for (int s = -3; s < 0; s++) tiles_ahead(work, steps, s);
    for (int t = 0; t < block.n_rows / AMX_TILE_ROWS; t++)
      add_chunk<F>(work, pieces, t * AMX_TILE_ROWS, t * pieces.n, steps, work.sums[panel - panels.begin], block.ahead);
  }
}

void write(const RowBlock& block, Range panels, const AmxWorkspace& work) {
  for (int r = 0; r < block.n_rows; r++)
    for (int64_t panel = panels.begin; panel < panels.end; panel++) {
      const int64_t first = panel * LANES, left = block.matrix->rows - first;
      const int n = left < LANES ? int(left) : LANES;
      const Floats sums = load(work.sums[panel - panels.begin][r]);
      store_some(block.out[r] + first, block.bias ? add(sums, load_some(block.bias + first, n)) : sums, n);
    }
}

template <Format F>
void run_format(const RowBlock& block, AmxWorkspace& work) {
  if constexpr (amx_takes(F)) {
    const int64_t n_pieces = block.matrix->cols / 32;
    tiles::configure(shape());
    for (int64_t begin = block.panels.begin; begin < block.panels.end; begin += MAX_PANELS) {
      const Range panels = {begin, begin + MAX_PANELS < block.panels.end ? begin + MAX_PANELS : block.panels.end};
      for (int64_t p = 0; p < n_pieces; p += CHUNK)
        add_pieces<F>(block, panels, {p, int(n_pieces - p < CHUNK ? n_pieces - p : CHUNK)}, work);
      write(block, panels, work);
    }
    tiles::release();
  }
}

using RunFormat = void (*)(const RowBlock&, AmxWorkspace&);

template <size_t... I>
constexpr std::array<RunFormat, N_FORMATS> make_formats(std::index_sequence<I...>) {
  return {run_format<Format(I)>...};
}

}  // namespace

void run_amx_block(const RowBlock& block, std::byte* scratch) {
  static constexpr auto formats = make_formats(std::make_index_sequence<N_FORMATS>{});
  formats[size_t(block.matrix->format)](block, *reinterpret_cast<AmxWorkspace*>(scratch));
}

}  // namespace tahr::TAHR_ISA
