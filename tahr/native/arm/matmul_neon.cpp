// A few rows read a panel at the speed of memory: codes are unpacked in registers, and each register meets all of them. More
// rows pass by codes that were unpacked once per 32 columns, with their sums in the nearest cache.
//
// Per 32 (or 16) columns:  sum = fma(-min, row scale * row sum, sum), then sum = fma(dot * weight scale, row scale, sum),
// with dot * weight scale rounded once.
#include "row_block.h"

#include <array>
#include <utility>

#include "neon_few_rows.h"
#include "neon_tile.h"
#include "simd_tail.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int64_t MAX_PANELS = 128;        // at a time: their sums lie in the scratch memory
constexpr int64_t CHUNK = 8;               // pieces that are unpacked together, and meet all rows in the nearest cache
constexpr int TILE_UNITS = 4 / UNIT_ROWS;  // whose sums are in registers together
constexpr int64_t MAX_UNITS = MAX_BLOCK_ROWS / UNIT_ROWS;
constexpr int64_t MAX_ROW_UNITS = CHUNK * MAX_UNITS;  // 24 KiB: the nearest cache holds them beside the codes

struct NeonWorkspace {
  alignas(64) UnitFloats sums[MAX_PANELS][MAX_UNITS];
  alignas(64) uint8_t codes[CHUNK][8 * PLANE];
  alignas(64) GroupScales scales[CHUNK * 2];
  alignas(64) RowTile<1> units[MAX_ROW_UNITS];  // tile after tile: its pieces, each a RowTile of as many units
};
static_assert(sizeof(NeonWorkspace) <= WORKER_SCRATCH_BYTES);

// Some pieces of a panel, unpacked for all rows to pass by.
template <Format F>
struct UnpackedPieces {
  static constexpr int N_GROUPS = Unpacked<F>::N_GROUPS;
  const uint8_t* codes;  // of the first piece: codes of eight bits stay where they are
  int64_t step;          // bytes from piece to piece
  const GroupScales* scales;
  int64_t n;
};

template <Format F, int Group, int Units>
TAHR_INLINE void add_tile_group(const uint8_t* w, const GroupScales& s, const RowTile<Units>& x, const Columns (&columns)[Units],
                                UnitFloats (&sums)[Units]) {
  constexpr int count = row_of(F).group / 4;
  UnitDots dots[Units];
#pragma GCC unroll 4
  for (auto& d : dots) d = start_dots();
  dot_units<Group * count, count>(dots, w, columns);
#pragma GCC unroll 4
  for (int u = 0; u < Units; u++)
#pragma GCC unroll 4
    for (int i = 0; i < UNIT_VECTORS; i++) {
      const float32x4_t base = load_again(reinterpret_cast<const float*>(&s.minus_base.v[i]));
      if constexpr (has_min(row_of(F).scales)) sums[u].v[i] = fma_factor<1 + Group>(sums[u].v[i], s.minus_min.v[i], x.factors[u]);
      sums[u].v[i] = fma_factor<0>(sums[u].v[i], scaled<F>(dots[u].v[i], s.scale.v[i], base), x.factors[u]);
    }
}

// All the pieces times a tile of units, which lie side by side for every piece.
template <Format F, int Units>
void add_tile(const UnpackedPieces<F>& pieces, const RowTile<1>* units, UnitFloats* kept) {
  const auto* x = reinterpret_cast<const RowTile<Units>*>(units);
  constexpr int n_groups = pieces.N_GROUPS;
  constexpr bool min = has_min(row_of(F).scales);
  if constexpr (UNIT_ROWS == 1 && Units == 4 && !SUBTRACT_FIRST<F> && !(n_groups == 2 && min)) {
    add_four_rows<n_groups, min>(pieces.codes, pieces.step, pieces.scales, n_groups * sizeof(GroupScales), x, pieces.n, kept);
  } else {
    UnitFloats sums[Units];
#pragma GCC unroll 4
    for (int u = 0; u < Units; u++) sums[u] = kept[u];
    for (int64_t p = 0; p < pieces.n; p++, x++) {
      const uint8_t* w = pieces.codes + p * pieces.step;
      const GroupScales* scales = pieces.scales + p * n_groups;
      Columns columns[Units];
#pragma GCC unroll 4
      for (int u = 0; u < Units; u++) columns[u] = columns_of(x->codes[u]);
      add_tile_group<F, 0>(w, scales[0], *x, columns, sums);
      if constexpr (n_groups == 2) add_tile_group<F, 1>(w, scales[1], *x, columns, sums);
    }
#pragma GCC unroll 4
    for (int u = 0; u < Units; u++) kept[u] = sums[u];
  }
}

// Rows [first, first + n_units * UNIT_ROWS) of the block as a tile; past the last row a unit repeats it.
template <Format F>
void make_tile(const RowBlock& block, int first, int n_units, int64_t begin, int64_t end, RowTile<1>* units) {
  for (int r = 0; r < n_units * UNIT_ROWS; r++) {
    const auto* x = reinterpret_cast<const QuantBlock*>(block.x[first + r < block.n_rows ? first + r : block.n_rows - 1]);
    for (int64_t p = begin; p < end; p++) {
      float sums[2];
      group_sums<F>(x[p], sums);
      auto* codes = reinterpret_cast<UnitCodes*>(units + (p - begin) * n_units);
      auto* factors = reinterpret_cast<UnitFactors*>(codes + n_units);
      put_row(codes[r / UNIT_ROWS], factors[r / UNIT_ROWS], r % UNIT_ROWS, x[p], {x[p].scale, sums[0], sums[1]});
    }
  }
}

template <Format F>
TAHR_INLINE void write_row(const RowBlock& block, int row, int64_t panel, Floats sum) {
  const int64_t first = panel * LANES, left = block.matrix->rows - first;
  const int n = left < LANES ? int(left) : LANES;
  if constexpr (code_shift(row_of(F)) > 0) sum = mul(sum, set1(1.0f / float(1 << code_shift(row_of(F)))));
  store_some(block.out[row] + first, block.bias ? add(sum, load_some(block.bias + first, n)) : sum, n);
}

// Pieces [begin, end) of the columns.
struct Chunk {
  int64_t begin, end;
  int64_t n() const { return end - begin; }
};

// Calls `use(chunk)` for chunks of at most `size` pieces.
template <class Use>
TAHR_INLINE void for_chunks(Chunk all, int64_t size, Use use) {
  for (int64_t p = all.begin; p < all.end; p += size) use(Chunk{p, p + size < all.end ? p + size : all.end});
}

// Calls `use(first unit, number of units)` for the tiles of units.
template <class Use>
TAHR_INLINE void for_tiles(int n_units, Use use) {
  for (int u = 0; u < n_units; u += TILE_UNITS) use(u, n_units - u < TILE_UNITS ? n_units - u : TILE_UNITS);
}

template <Format F>
UnpackedPieces<F> unpack_pieces(const PanelView<F>& panel, Chunk chunk, int64_t to_next, NeonWorkspace& work) {
  constexpr int n_groups = Unpacked<F>::N_GROUPS;
  constexpr bool stay = row_of(F).bits == 8;
  for_pieces(panel, chunk.begin, chunk.end, [&](int64_t p, const uint8_t* codes, const auto& groups) __attribute__((always_inline)) {
    for (int64_t i = 0; i < panel.SIZE; i += 64) prefetch(codes + to_next + i);
    if constexpr (!stay) unpack_to<F>(codes, work.codes[p - chunk.begin]);
    for (int g = 0; g < n_groups; g++) {
      GroupScales& out = work.scales[(p - chunk.begin) * n_groups + g];
      out.scale = spread(groups[g].scale);
      out.minus_base = spread(minus_base(groups[g].scale));
      if constexpr (has_min(row_of(F).scales)) out.minus_min = spread(mul(groups[g].min, set1(-1.0f)));
    }
  });
  const uint8_t* codes = stay ? panel.codes + chunk.begin * panel.SIZE : work.codes[0];
  return {codes, stay ? panel.SIZE : int64_t{sizeof work.codes[0]}, work.scales, chunk.n()};
}

// Pieces whose columns of all rows lie in the workspace at once.
int64_t rows_chunk(int n_units) {
  const int64_t fitting = MAX_ROW_UNITS / n_units / CHUNK * CHUNK;
  return fitting < CHUNK ? CHUNK : fitting;
}

// Adds the columns of a chunk to the sums of a panel. The next panel's columns and sums are asked for meanwhile.
template <Format F>
void add_chunk(const PanelView<F>& panel, Chunk columns, int64_t panel_bytes, int n_units, NeonWorkspace& work, UnitFloats* sums) {
  using AddTile = void (*)(const UnpackedPieces<F>&, const RowTile<1>*, UnitFloats*);
  constexpr AddTile of_units[] = {nullptr, add_tile<F, 1>, add_tile<F, 2>, add_tile<F, TILE_UNITS == 4 ? 3 : 2>,
                                  add_tile<F, TILE_UNITS>};
  const int64_t to_next = columns.n() <= CHUNK ? panel_bytes : CHUNK * panel.SIZE;
  for_chunks(columns, CHUNK, [&](Chunk chunk) {
    for (int u = 0; u < n_units; u += 2) prefetch(sums + MAX_UNITS + u);
    const UnpackedPieces<F> pieces = unpack_pieces(panel, chunk, to_next, work);
    for_tiles(n_units, [&](int u, int n) {
      of_units[n](pieces, work.units + u * columns.n() + (chunk.begin - columns.begin) * n, sums + u);
    });
  });
}

template <Format F>
void some_panels(const RowBlock& block, Range panels, NeonWorkspace& work) {
  const PackedMatrix& m = *block.matrix;
  const int n_units = (block.n_rows + UNIT_ROWS - 1) / UNIT_ROWS;
  memset(work.sums, 0, size_t(panels.end - panels.begin) * sizeof work.sums[0]);
  for_chunks({0, m.cols / 32}, rows_chunk(n_units), [&](Chunk columns) {
    for_tiles(n_units, [&](int u, int n) {
      make_tile<F>(block, u * UNIT_ROWS, n, columns.begin, columns.end, work.units + u * columns.n());
    });
    for (int64_t panel = panels.begin; panel < panels.end; panel++)
      add_chunk(PanelView<F>(m.panel(block.index, panel), m.cols), columns, m.panel_bytes, n_units, work,
                work.sums[panel - panels.begin]);
  });
  for (int r = 0; r < block.n_rows; r++)
    for (int64_t panel = panels.begin; panel < panels.end; panel++)
      write_row<F>(block, r, panel, row_of_unit(work.sums[panel - panels.begin][r / UNIT_ROWS], r % UNIT_ROWS));
}

// Rows that meet a panel in registers together. Of more, the seven that are fastest come first, then the others.
constexpr int MOST_TOGETHER = UNIT_ROWS > 1 ? 1 : 8, FASTEST = 7, FEW_ROWS = UNIT_ROWS > 1 ? 1 : 2 * FASTEST;

template <Format F, int Rows>
void add_few(const RowBlock& block, int64_t panel, int first) {
  const QuantBlock* x[Rows];
  Floats sums[Rows];
  for (int r = 0; r < Rows; r++) x[r] = reinterpret_cast<const QuantBlock*>(block.x[first + r]);
  const std::byte* at = block.matrix->panel(block.index, panel);
  if constexpr (Rows >= HALVES_FROM<F>) halves_of_rows<F>(at, block.matrix->cols, x, sums);
  else few_rows<F>(at, block.matrix->cols, x, sums);
  for (int r = 0; r < Rows; r++) write_row<F>(block, first + r, panel, sums[r]);
}

using AddFew = void (*)(const RowBlock&, int64_t, int);

template <Format F, size_t... I>
constexpr std::array<AddFew, sizeof...(I)> make_few(std::index_sequence<I...>) {
  return {add_few<F, int(I) + 1>...};
}

template <Format F>
void few_panels(const RowBlock& block) {
  static constexpr auto few = make_few<F>(std::make_index_sequence<MOST_TOGETHER>{});
  const int n = block.n_rows <= MOST_TOGETHER ? block.n_rows : FASTEST;
  for (int64_t panel = block.panels.begin; panel < block.panels.end; panel++) {
    few[n - 1](block, panel, 0);
    if (n < block.n_rows) few[block.n_rows - n - 1](block, panel, n);
  }
}

template <Format F>
void run_format(const RowBlock& block, NeonWorkspace& work) {
  if constexpr (!is_dense(F) && !is_spelt(F)) {  // codewords meet the tiles that all instruction sets share
    if (block.n_rows <= FEW_ROWS) return few_panels<F>(block);
    for (int64_t begin = block.panels.begin; begin < block.panels.end; begin += MAX_PANELS)
      some_panels<F>(block, {begin, begin + MAX_PANELS < block.panels.end ? begin + MAX_PANELS : block.panels.end}, work);
  }
}

using RunFormat = void (*)(const RowBlock&, NeonWorkspace&);

template <size_t... I>
constexpr std::array<RunFormat, N_FORMATS> make_formats(std::index_sequence<I...>) {
  return {run_format<Format(I)>...};
}

}  // namespace

void run_neon_block(const RowBlock& block, std::byte* scratch) {
  static constexpr auto formats = make_formats(std::make_index_sequence<N_FORMATS>{});
  formats[size_t(block.matrix->format)](block, *reinterpret_cast<NeonWorkspace*>(scratch));
}

}  // namespace tahr::TAHR_ISA
