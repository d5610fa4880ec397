#include <array>
#include <utility>

#include "matmul_ops.h"
#include "matmul_rows.h"
#include "row_block.h"
#if !defined(TAHR_NEON)
#include "matmul_dense_rows.h"
#endif

namespace tahr::TAHR_ISA {

namespace {

// ---- tiles by format and number of rows ----

using TileFn = void (*)(const Tile&);

// For block formats whose codes have another layout than the tiles here read.
constexpr bool own_kernels(Format format) { return SIGNED_CODES && !is_dense(format) && !is_spelt(format); }

constexpr int FEW_ROWS = DENSE_ROWS > 4 ? 2 : DENSE_ROWS;  // the sums of all their chains fit the registers

constexpr int max_rows(Format format) { return is_dense(format) ? DENSE_ROWS : TILE_ROWS; }

template <Format F, int Rows>
constexpr TileFn tile_fn() {
  if constexpr (Rows > max_rows(F) || own_kernels(F)) return nullptr;
  else if constexpr (is_dense(F)) return Rows > FEW_ROWS ? dense_pairs<F, Rows> : dense_tile<F, Rows>;
  else return quantised_tile<F, Rows>;
}

struct TileRow {
  TileFn of[4];  // for 1, 2, 4 and 8 rows
};

template <size_t... I>
constexpr std::array<TileRow, N_FORMATS> make_tiles(std::index_sequence<I...>) {
  return {TileRow{{tile_fn<Format(I), 1>(), tile_fn<Format(I), 2>(), tile_fn<Format(I), 4>(), tile_fn<Format(I), 8>()}}...};
}

constexpr auto TILES = make_tiles(std::make_index_sequence<N_FORMATS>{});

using ManyFn = void (*)(const ManyRows&);

template <Format F, int Panels>
constexpr ManyFn many_fn() {
  if constexpr (is_dense(F) || own_kernels(F)) return nullptr;
  else return many_rows<F, Panels>;
}

struct ManyRow {
  ManyFn one, several;  // one panel, and MANY_PANELS of them
};

template <size_t... I>
constexpr std::array<ManyRow, N_FORMATS> make_many(std::index_sequence<I...>) {
  return {ManyRow{many_fn<Format(I), 1>(), many_fn<Format(I), MANY_PANELS>()}...};
}

constexpr auto MANY = make_many(std::make_index_sequence<N_FORMATS>{});

#if !defined(TAHR_NEON)

using DenseFn = void (*)(const RowBlock&, std::byte* scratch);

template <Format F>
constexpr DenseFn dense_fn() {
  if constexpr (is_dense(F)) return dense_block<F>;
  else return nullptr;
}

template <size_t... I>
constexpr std::array<DenseFn, N_FORMATS> make_dense(std::index_sequence<I...>) {
  return {dense_fn<Format(I)>()...};
}

constexpr auto DENSE = make_dense(std::make_index_sequence<N_FORMATS>{});

#endif

// ---- which rows meet which matrix ----

// Rows first .. last of a job: row i reads x row source[i] / pairs_per_row and writes out row source[i] (i itself for both
// when `source` is null).
struct Segment {
  const LinearJob* job;
  int64_t matrix;  // of the stack
  const std::byte* x;
  const int32_t* source;
  int pairs_per_row;
  int64_t first, last;
};

// Of the segment's matrix, or null.
const float* bias_of(const Segment& s) { return s.job->bias ? s.job->bias + s.matrix * s.job->matrix->rows : nullptr; }

int64_t x_row_bytes(const PackedMatrix& m) { return is_dense(m.format) ? m.cols * 4 : quantised_row_bytes(m.cols); }

const std::byte* x_row(const Segment& s, int64_t row) {
  return s.x + (s.source ? s.source[row] / s.pairs_per_row : row) * x_row_bytes(*s.job->matrix);
}

float* out_row(const Segment& s, int64_t row) { return s.job->out + (s.source ? s.source[row] : row) * s.job->matrix->rows; }

// A tile of `n` rows from `row` on, at the matrix's first panel.
Tile tile_of(const Segment& s, int64_t row, int n) {
  Tile tile;
  tile.cols = s.job->matrix->cols;
  for (int r = 0; r < n; r++) {
    tile.x[r] = x_row(s, row + r);
    tile.out[r] = out_row(s, row + r);
  }
  return tile;
}

void run_panels(const Segment& s, Tile tile, int n, TileFn run, Range panels) {
  const PackedMatrix& m = *s.job->matrix;
  for (int r = 0; r < n; r++) tile.out[r] += panels.begin * LANES;
  for (int64_t panel = panels.begin; panel < panels.end; panel++) {
    const int64_t first = panel * LANES, left = m.rows - first;
    tile.panel = m.panel(s.matrix, panel);
    tile.bias = bias_of(s) ? bias_of(s) + first : nullptr;
    tile.n = left < LANES ? int(left) : LANES;
    run(tile);
    for (int r = 0; r < n; r++) tile.out[r] += LANES;
  }
}

RowBlock row_block(const Segment& s, int64_t first, int n_rows, Range panels, Ahead* ahead) {
  RowBlock block{s.job->matrix, s.matrix, panels, bias_of(s), n_rows, {}, {}, ahead};
  for (int r = 0; r < n_rows; r++) {
    block.x[r] = x_row(s, first + r);
    block.out[r] = out_row(s, first + r);
  }
  return block;
}

// Rows that kernels for whole tiles of them take, if there are enough; returns the first that is left.
int64_t run_whole_tiles(const Segment& s, Range rows, Range panels, const Worker& worker) {
  const int64_t n_rows = rows.end - rows.begin;
  const bool dense = is_dense(s.job->matrix->format);
#if defined(TAHR_NEON)
  const bool own = own_kernels(s.job->matrix->format);
  const int64_t taken = dense ? neon_dense_rows(*s.job->matrix, n_rows) : own ? n_rows : 0;
  if (taken) (dense ? run_neon_dense : run_neon_block)(row_block(s, rows.begin, int(taken), panels, worker.ahead), worker.scratch);
#else
  int64_t taken = dense && n_rows >= MIN_DENSE_ROWS ? n_rows / DENSE_TILE * DENSE_TILE : 0;
  if (taken) DENSE[size_t(s.job->matrix->format)](row_block(s, rows.begin, int(taken), panels, worker.ahead), worker.scratch);
#endif
#if defined(TAHR_ISA_amx)
  if (dense || n_rows < AMX_MIN_ROWS || !amx_takes(s.job->matrix->format)) return rows.begin + taken;
  taken = n_rows / AMX_TILE_ROWS * AMX_TILE_ROWS;
  run_amx_block(row_block(s, rows.begin, int(taken), panels, worker.ahead), worker.scratch);
#endif
  return rows.begin + taken;
}

// All of some panels times many rows; past the last row its neighbours in a tile repeat it, and nobody reads their sums.
void run_many(const Segment& s, Range rows, Range panels, std::byte* scratch) {
  const PackedMatrix& m = *s.job->matrix;
  ManyRows job;
  job.panel_bytes = m.panel_bytes;
  job.cols = m.cols;
  job.n_rows = int(rows.end - rows.begin);
  job.scratch = scratch;
  for (int r = 0; r < job.n_rows + MANY_TILE; r++)
    job.x[r] = reinterpret_cast<const QuantBlock*>(x_row(s, rows.begin + (r < job.n_rows ? r : job.n_rows - 1)));
  for (int64_t panel = panels.begin; panel < panels.end;) {
    const bool several = panel + MANY_PANELS <= panels.end && m.are_together(panel, MANY_PANELS);
    const int64_t first = panel * LANES;
    job.panels = m.panel(s.matrix, panel);
    job.bias = bias_of(s) ? bias_of(s) + first : nullptr;
    job.n = m.rows - first;
    for (int r = 0; r < job.n_rows; r++) job.out[r] = out_row(s, rows.begin + r) + first;
    (several ? MANY[size_t(m.format)].several : MANY[size_t(m.format)].one)(job);
    panel += several ? MANY_PANELS : 1;
  }
}

// All of some panels times all of some rows. A tile of rows stays in the nearest cache while the panels pass by it.
void run_block(const Segment& s, Range rows, Range panels, const Worker& worker) {
  const Format format = s.job->matrix->format;
  rows.begin = run_whole_tiles(s, rows, panels, worker);
  if (!is_dense(format) && rows.end - rows.begin >= MIN_MANY_ROWS) return run_many(s, rows, panels, worker.scratch);
  for (int64_t row = rows.begin; row < rows.end;) {
    int rung = 0;
    while (2 << rung <= max_rows(format) && row + (2 << rung) <= rows.end) rung++;
    const int n = 1 << rung;
    run_panels(s, tile_of(s, row, n), n, TILES[size_t(format)].of[rung], panels);
    row += n;
  }
}

// ---- sharing the work ----

constexpr int64_t BLOCK_BYTES = 1 << 17;  // of weights: stays in the second-level cache while rows pass by
#if defined(TAHR_ISA_amx) || defined(TAHR_NEON)
constexpr int64_t TILED_BLOCK_BYTES = 1 << 20;  // panels pass by once, but all share the rows that were made ready for tiles
#else
constexpr int64_t TILED_BLOCK_BYTES = BLOCK_BYTES;
#endif
constexpr int64_t BLOCK_ROWS = MAX_BLOCK_ROWS;
constexpr int64_t BLOCKS_PER_THREAD = 4;  // at least, where there are panels enough: threads finish together

// The blocks that a segment is cut into.
struct Grid {
  int64_t panels, rows, n_row_blocks, n_blocks;
};

// At most `most` panels to a block, a few less if all threads then get as many blocks.
int64_t even_panels(int64_t n_panels, int64_t most, int n_threads) {
  for (int64_t panels = most; 2 * panels > most; panels--)
    if ((n_panels + panels - 1) / panels % n_threads == 0) return panels;
  return most < 1 ? 1 : most;
}

// Panels that kernels for many rows take together, 0 if there are too few rows for them.
int64_t panels_together([[maybe_unused]] Format format, int64_t n_rows) {
#if !defined(TAHR_NEON)
  if (is_dense(format)) return n_rows >= MIN_DENSE_ROWS ? DENSE_PANELS : 0;
#endif
  return n_rows >= MIN_MANY_ROWS ? MANY_PANELS : 0;
}

// How many panels pass by all the rows of a block.
int64_t panels_fitting(const PackedMatrix& m, int64_t n_rows) {
#if !defined(TAHR_NEON)
  if (is_dense(m.format) && n_rows >= MIN_DENSE_ROWS) return DENSE_BLOCK_PANELS;
#endif
  return (n_rows < BLOCK_ROWS ? BLOCK_BYTES : TILED_BLOCK_BYTES) / m.panel_bytes;
}

Grid grid_of(const Segment& s, int n_threads) {
  const PackedMatrix& m = *s.job->matrix;
  const int64_t n_rows = s.last - s.first, n_row_blocks = (n_rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  const int64_t together = panels_together(m.format, n_rows);
  const int64_t fitting = panels_fitting(m, n_rows);
  const int64_t fair = m.n_panels * n_row_blocks / (n_threads * BLOCKS_PER_THREAD);
  const int64_t fewer = fitting < fair ? fitting : fair, whole = together ? fewer / together * together : 0;
  const int64_t panels = whole ? whole : even_panels(m.n_panels, fewer, n_threads);
  return {panels, BLOCK_ROWS, n_row_blocks, (m.n_panels + panels - 1) / panels * n_row_blocks};
}

Range cut(int64_t index, int64_t size, int64_t first, int64_t last) {
  const int64_t begin = first + index * size, end = begin + size;
  return {begin, end < last ? end : last};
}

// Deals `n` pieces out so that threads taking turns each read one stretch of memory: the i-th taken is this one.
int64_t dealt(int64_t i, int64_t n, int n_threads) {
  const int64_t each = n / n_threads;
  return i < each * n_threads ? i % n_threads * each + i / n_threads : i;
}

// Walks the segments `at(0)` .. `at(n - 1)`: the first block is a thread's own, so that they need not all ask for one at once
// and may fetch it beforehand, then whoever is free takes the next.
template <class SegmentAt>
void run_segments(int64_t n, SegmentAt at, Worker worker) {
  const auto next = [&] { return worker.n_threads + claim(worker); };
  int64_t before = 0, mine = worker.thread;
  for (int64_t i = 0; i < n; i++) {
    const Segment s = at(i);
    if (s.first == s.last) continue;
    const Grid grid = grid_of(s, worker.n_threads);
    for (; mine < before + grid.n_blocks; mine = next()) {
      const int64_t block = mine - before, n_cuts = grid.n_blocks / grid.n_row_blocks;
      const Range rows = cut(block % grid.n_row_blocks, grid.rows, s.first, s.last);
      const int64_t panels = dealt(block / grid.n_row_blocks, n_cuts, worker.n_threads);
      run_block(s, rows, cut(panels, grid.panels, 0, s.job->matrix->n_panels), worker);
    }
    before += grid.n_blocks;
  }
}

template <class Op>
const std::byte* x_of(const Op& op, const LinearJob& job) {
  return is_dense(job.matrix->format) ? reinterpret_cast<const std::byte*>(op.x) : op.quantised;
}

}  // namespace

void linear(const LinearOp& op, Worker worker) {
  const auto at = [&](int64_t i) {
    const LinearJob& job = op.jobs[i];
    return Segment{&job, 0, x_of(op, job), nullptr, 1, 0, *op.n_rows};
  };
  run_segments(op.n_jobs, at, worker);
}

// Some of the first block's weights, unless there are so many rows that reading is not what takes the time.
bool linear_reads(const LinearOp& op, const Worker& worker, int64_t i, Stretch& found) {
  constexpr int64_t most = 1 << 16;
  const LinearJob& job = op.jobs[0];
  if (i > 0 || *op.n_rows >= MIN_MANY_ROWS) return false;
  const Grid grid = grid_of({&job, 0, nullptr, nullptr, 1, 0, *op.n_rows}, worker.n_threads);
  if (worker.thread >= grid.n_blocks) return false;
  const Range panels = cut(dealt(worker.thread, grid.n_blocks, worker.n_threads), grid.panels, 0, job.matrix->n_panels);
  const int64_t n_bytes = (panels.end - panels.begin) * job.matrix->panel_bytes;
  const std::byte* begin = job.matrix->panel(0, panels.begin);
  found = {begin, begin + (n_bytes < most ? n_bytes : most)};
  return true;
}

void experts(const ExpertsOp& op, Worker worker) {
  const auto at = [&](int64_t i) {
    const LinearJob& job = op.jobs[i % op.n_jobs];
    const int64_t expert = i / op.n_jobs;
    return Segment{&job, expert, x_of(op, job), op.order, op.pairs_per_row, op.starts[expert], op.starts[expert + 1]};
  };
  run_segments(int64_t{op.n_experts} * op.n_jobs, at, worker);
}

// A counting sort: counts, then running starts, then places.
void group(const GroupOp& op, Worker worker) {
  if (worker.thread != 0) return;
  const int32_t n_pairs = *op.n_rows * op.n_active;
  for (int e = 0; e <= op.n_experts; e++) op.starts[e] = 0;
  for (int32_t p = 0; p < n_pairs; p++) op.starts[op.experts[p] + 1]++;
  for (int e = 0; e < op.n_experts; e++) op.starts[e + 1] += op.starts[e];
  for (int32_t p = 0; p < n_pairs; p++) op.order[op.starts[op.experts[p]]++] = p;
  // Each start has moved to the next one: move them back.
  for (int e = op.n_experts; e > 0; e--) op.starts[e] = op.starts[e - 1];
  op.starts[0] = 0;
}

extern const MatmulKernels matmul_kernels;
const MatmulKernels matmul_kernels = {
    {LANES, SIGNED_OFFSET, OCTETS, SIGNED_CODES}, quantise, linear, linear_reads, group, experts, embed, roof, roof_work};

}  // namespace tahr::TAHR_ISA
