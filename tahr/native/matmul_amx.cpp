// Blocks of many rows by tile instructions.
//
// A tile product is exact int32 over the columns of one scale; it goes through memory to the vector registers, where it is
// scaled and added as the kernels for a few rows do it. That, not the multiplying, takes the time. So the columns are cut into
// chunks for which everything stays in the nearest cache: activations of up to 64 rows, codes of two panels.
#include "matmul_amx.h"

#include <array>
#include <utility>

#include "amx_tiles.h"
#include "matmul_tile.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int CHUNK = 8;   // pieces of 32 columns
constexpr int PAIR = 2;    // panels multiplied side by side: they share the activations
constexpr int64_t MAX_PANELS = 128;  // at a time: their sums lie in the scratch memory

enum Tiles { C0, C1, X, W0, W1 };

struct Panel {
  alignas(64) uint8_t codes[CHUNK][8 * 64];  // signed
  ScaleMin scales[CHUNK * 2];                // per group of columns
};

struct Workspace {
  Panel panels[PAIR];
  alignas(64) int32_t dots[2][PAIR][AMX_TILE_ROWS][LANES];
  alignas(64) QuantBlock x[CHUNK][AMX_MAX_ROWS];
  alignas(64) float sums[MAX_PANELS + 1][AMX_MAX_ROWS][LANES];
};
static_assert(sizeof(Workspace) <= LANE_SCRATCH_BYTES);

// Which pieces of the columns are at work.
struct Pieces {
  int64_t first;
  int n;
};

template <Format F>
tiles::Shape shape() {
  tiles::Shape shape;
  for (int c : {C0, C1}) shape.set(c, AMX_TILE_ROWS, tiles::ROW_BYTES);
  shape.set(X, AMX_TILE_ROWS, row_of(F).group);
  for (int w : {W0, W1}) shape.set(w, row_of(F).group / 4, tiles::ROW_BYTES);
  return shape;
}

template <Format F>
void unpack_panel(const std::byte* packed, int64_t cols, Pieces pieces, Panel& panel) {
  constexpr FormatRow row = row_of(F);
  constexpr int n_groups = 32 / row.group;
  const auto* codes = reinterpret_cast<const uint8_t*>(packed);
  const uint8_t* scales = codes + cols / 32 * piece_bytes(F, LANES);
  const __m512i offset = _mm512_set1_epi8(char(code_offset(row)));
  for (int i = 0; i < pieces.n; i++) {
    Codes w[8];
    unpack<F>(codes + (pieces.first + i) * piece_bytes(F, LANES), w);
    for (int v = 0; v < 8; v++) _mm512_store_si512(panel.codes[i] + v * 64, _mm512_sub_epi8(w[v].v, offset));
    for (int g = 0; g < n_groups; g++)
      panel.scales[i * n_groups + g] = read_scales<F>(scales, (pieces.first + i) * n_groups + g);
  }
}

// Products of group `g` of the chunk's columns, for eight rows from `row` on and both panels.
template <Format F>
TAHR_INLINE void multiply(Workspace& work, int row, int g) {
  constexpr int group = row_of(F).group, n_groups = 32 / group;
  const int piece = g / n_groups, at = g % n_groups * group;
  tiles::load<X>(work.x[piece][row].codes + at, sizeof(QuantBlock));
  tiles::load<W0>(work.panels[0].codes[piece] + at * LANES, tiles::ROW_BYTES);
  tiles::zero<C0>();
  tiles::dot<C0, X, W0>();
  tiles::load<W1>(work.panels[1].codes[piece] + at * LANES, tiles::ROW_BYTES);
  tiles::zero<C1>();
  tiles::dot<C1, X, W1>();
  tiles::store<C0>(work.dots[g % 2][0], tiles::ROW_BYTES);
  tiles::store<C1>(work.dots[g % 2][1], tiles::ROW_BYTES);
}

template <Format F>
TAHR_INLINE void combine(const Workspace& work, int row, int g, Floats (&sums)[AMX_TILE_ROWS][PAIR]) {
  constexpr int n_groups = 32 / row_of(F).group;
  const ScaleMin s[PAIR] = {work.panels[0].scales[g], work.panels[1].scales[g]};
  const QuantBlock* x = work.x[g / n_groups] + row;
#pragma GCC unroll 8
  for (int r = 0; r < AMX_TILE_ROWS; r++)
#pragma GCC unroll 2
    for (int p = 0; p < PAIR; p++) {
      const Ints dots{_mm512_load_si512(work.dots[g % 2][p][r])};
      sums[r][p] = add_scaled<F>(dots, s[p], x[r], g % n_groups, sums[r][p]);
    }
}

// Adds the chunk's columns to the sums of eight rows and two panels. Tiles are one group ahead of the vectors.
template <Format F>
void add_chunk(Workspace& work, Pieces pieces, int row, float (*const (&kept)[PAIR])[LANES]) {
  constexpr int n_groups = 32 / row_of(F).group;
  Floats sums[AMX_TILE_ROWS][PAIR];
#pragma GCC unroll 8
  for (int r = 0; r < AMX_TILE_ROWS; r++)
    for (int p = 0; p < PAIR; p++) sums[r][p] = pieces.first ? load(kept[p][row + r]) : set1(0.0f);
  multiply<F>(work, row, 0);
  for (int g = 0; g < pieces.n * n_groups; g++) {
    if (g + 1 < pieces.n * n_groups) multiply<F>(work, row, g + 1);
    combine<F>(work, row, g, sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < AMX_TILE_ROWS; r++)
    for (int p = 0; p < PAIR; p++) store(kept[p][row + r], sums[r][p]);
}

void copy_x(const AmxBlock& block, Pieces pieces, Workspace& work) {
  for (int r = 0; r < block.n_rows; r++) {
    const auto* x = reinterpret_cast<const QuantBlock*>(block.x[r]) + pieces.first;
    for (int i = 0; i < pieces.n; i++) work.x[i][r] = x[i];
  }
}

// An odd panel at the end is multiplied with itself as neighbour; the neighbour's sums go nowhere.
template <Format F>
void add_pieces(const AmxBlock& block, Range panels, Pieces pieces, Workspace& work) {
  const PackedMatrix& m = *block.matrix;
  copy_x(block, pieces, work);
  for (int64_t panel = panels.begin; panel < panels.end; panel += PAIR) {
    const int64_t at = panel - panels.begin, next = panel + 1 < panels.end ? panel + 1 : panel;
    unpack_panel<F>(m.panel(block.index, panel), m.cols, pieces, work.panels[0]);
    unpack_panel<F>(m.panel(block.index, next), m.cols, pieces, work.panels[1]);
    for (int row = 0; row < block.n_rows; row += AMX_TILE_ROWS)
      add_chunk<F>(work, pieces, row, {work.sums[at], work.sums[at + 1]});
  }
}

void write(const AmxBlock& block, Range panels, const Workspace& work) {
  for (int r = 0; r < block.n_rows; r++)
    for (int64_t panel = panels.begin; panel < panels.end; panel++) {
      const int64_t first = panel * LANES, left = block.matrix->rows - first;
      Tile tile;
      tile.out[0] = block.out[r] + first;
      tile.bias = block.bias ? block.bias + first : nullptr;
      tile.n = left < LANES ? int(left) : LANES;
      Floats sums[1] = {load(work.sums[panel - panels.begin][r])};
      finish<1>(tile, sums);
    }
}

template <Format F>
void run_format(const AmxBlock& block, Workspace& work) {
  if constexpr (!is_dense(F)) {
    const int64_t n_pieces = block.matrix->cols / 32;
    tiles::configure(shape<F>());
    for (int64_t begin = block.panels.begin; begin < block.panels.end; begin += MAX_PANELS) {
      const Range panels = {begin, begin + MAX_PANELS < block.panels.end ? begin + MAX_PANELS : block.panels.end};
      for (int64_t p = 0; p < n_pieces; p += CHUNK)
        add_pieces<F>(block, panels, {p, int(n_pieces - p < CHUNK ? n_pieces - p : CHUNK)}, work);
      write(block, panels, work);
    }
    tiles::release();
  }
}

using RunFormat = void (*)(const AmxBlock&, Workspace&);

template <size_t... I>
constexpr std::array<RunFormat, N_FORMATS> make_formats(std::index_sequence<I...>) {
  return {run_format<Format(I)>...};
}

}  // namespace

void run_amx_block(const AmxBlock& block, std::byte* scratch) {
  static constexpr auto formats = make_formats(std::make_index_sequence<N_FORMATS>{});
  formats[size_t(block.matrix->format)](block, *reinterpret_cast<Workspace*>(scratch));
}

}  // namespace tahr::TAHR_ISA
