// One tile of keys and values: scores, weights and weighted sums of the queries of a task.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "attention_task.h"
#include "kv_types.h"
#include "products.h"
#include "vecmath.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int ROWS = ATTENTION_ROWS;  // query rows per pass, at most

// Vectors that N rows meet together: their sums fill about half of the registers.
template <int N>
constexpr int VECTORS = 2 * N > ROWS ? ROWS_VECTORS : 4;

// Many rows meet a tile strip by strip, so that the strip stays in the nearest cache while they pass by.
constexpr int STRIP = VECTORS<ROWS> * LANES;
static_assert(KV_TILE % LANES == 0);

// Of one query row: `weighted` is the sum of exp(score - top) * value over what has been seen, `sum` that of the weights.
struct State {
  float* weighted;  // [dim]
  float sum, top;
};

// ---- a thread's workspace ----

struct AttentionWorkspace {
  int n_rows;          // query rows: tokens x grouped heads
  int dim;                // numbers of a key
  int value_dim, padded;  // numbers of a value; the same in whole vectors
  int begin, end;      // what is looked at of a tile, in whole vectors
  float* keys;         // [dim][KV_TILE]
  float* values;       // [KV_TILE][padded]
  float* q;            // [n_rows][dim], times the scale of the scores
  float* scores;       // [n_rows][KV_TILE], then weights
  float* sums;         // [n_rows][LANES]: of the weights of a span, to be added up when it ends
  float shrink[MAX_QUERY_TILE];  // what the older weights are worth now that a larger score was seen
  State span[MAX_QUERY_TILE], total[MAX_QUERY_TILE];
};

constexpr size_t WORKSPACE_FLOATS =
    size_t{MAX_HEAD_DIM} * (2 * KV_TILE + 3 * MAX_QUERY_TILE) + size_t{MAX_QUERY_TILE} * (KV_TILE + LANES);
static_assert(WORKSPACE_FLOATS * sizeof(float) <= WORKER_SCRATCH_BYTES);

AttentionWorkspace make_workspace(const AttentionOp& op, const AttentionTask& task, std::byte* scratch) {
  AttentionWorkspace w;
  w.dim = op.kv.head_dim;
  w.value_dim = op.kv.value_dim();
  w.padded = (w.value_dim + LANES - 1) / LANES * LANES;
  w.n_rows = task.n_tokens * op.group;
  float* next = reinterpret_cast<float*>(scratch);
  const auto take = [&next](int n) { return (next += n) - n; };
  w.keys = take(w.dim * KV_TILE);
  w.values = take(w.padded * KV_TILE);
  w.scores = take(w.n_rows * KV_TILE);
  w.sums = take(w.n_rows * LANES);
  w.q = take(w.n_rows * w.dim);
  for (int row = 0; row < w.n_rows; row++) {
    w.span[row].weighted = take(w.padded);
    w.total[row].weighted = take(w.padded);
  }
  return w;
}

// Which of all the heads of all tokens a row is.
int64_t head_of(const AttentionOp& op, const AttentionTask& task, int row) {
  return (task.first + row / op.group) * int64_t{op.n_q_heads} + task.head_group * op.group + row % op.group;
}

// ---- one tile of keys and values ----

// Calls `use(page, offset, n, at)` for the runs of tokens [begin, end) that lie in one page: `n` from token `at` on.
template <class Use>
TAHR_INLINE void for_runs(const AttentionOp& op, const AttentionTask& task, int begin, int end, Use use) {
  const KvLayer& kv = op.kv;
  const int32_t* pages = op.page_table + int64_t{task.seq} * op.n_pages_per_seq;
  for (int at = begin; at < end;) {
    const int offset = at % kv.page_size;
    const int n = end - at < kv.page_size - offset ? end - at : kv.page_size - offset;
    use(pages[at / kv.page_size], offset, n, at);
    at += n;
  }
}

// The values of tokens [begin, end) of a tile where they are the last numbers of its keys.
void copy_latents(int begin, int end, AttentionWorkspace& w) {
  const float* from = w.keys + (w.dim - w.value_dim) * KV_TILE;
  for (int t = begin; t < end; t++)
    for (int i = 0; i < w.value_dim; i++) w.values[t * w.padded + i] = from[i * KV_TILE + t];
}

// Tokens [begin, end) of the tile at `tile`, and as many neighbours as make whole vectors of keys. Where pages are not
// made of such, zeros stand for the neighbours: what lies in the workspace could be numbers that are slow to multiply.
void load_tile(const AttentionOp& op, const AttentionTask& task, int tile, int begin, int end, AttentionWorkspace& w) {
  const KvLayer& kv = op.kv;
  const int head = kv_head(op, task);
  const bool whole = kv.page_size % LANES == 0;
  if (!whole) memset(w.keys, 0, size_t(w.dim) * KV_TILE * sizeof(float));
  const int first = whole ? tile + w.begin : begin, last = whole ? tile + w.end : end;
  with_type(kv.key_type, [&](auto stored) {
    for_runs(op, task, first, last, [&](int64_t page, int offset, int n, int at) {
      stored.read_keys(kv, kv.keys_at(page, head), offset, n, w.keys + at - tile, KV_TILE);
    });
  });
  if (kv.latent) return copy_latents(begin - tile, end - tile, w);
  with_type(kv.value_type, [&](auto stored) {
    for_runs(op, task, begin, end, [&](int64_t page, int offset, int n, int at) {
      stored.read_values(kv, kv.values_at(page, head), offset, n, w.values + (at - tile) * w.padded, w.padded);
    });
  });
}

// Asks for the pages of a tile before it is their turn: each lies elsewhere in memory.
void prefetch_tile(const AttentionOp& op, const AttentionTask& task, int begin, int end) {
  const int head = kv_head(op, task);
  const int64_t key_bytes = op.kv.key_part_bytes(), value_bytes = op.kv.latent ? 0 : op.kv.value_part_bytes();
  for_runs(op, task, begin, end, [&](int64_t page, int, int, int) {
    const std::byte *keys = op.kv.keys_at(page, head), *values = op.kv.values_at(page, head);
    for (int64_t i = 0; i < key_bytes; i += 64) prefetch(keys + i);
    for (int64_t i = 0; i < value_bytes; i += 64) prefetch(values + i);
  });
}

// Numbers of some tokens: those of the workspace, or as a page stores them.
template <class T>
struct Stored {
  const T* first;
  int stride;  // of keys, from number to number; of values, from token to token
};

// The scores of N rows for V vectors of tokens from `token` on.
template <int N, int V, class T>
void score_block(const AttentionWorkspace& w, Stored<T> keys, int row, int token) {
  Floats sums[N][V];
#pragma GCC unroll 8
  for (auto& of_row : sums)
#pragma GCC unroll 4
    for (auto& s : of_row) s = set1(0.0f);
  const float* q[N];
#pragma GCC unroll 8
  for (int r = 0; r < N; r++) q[r] = w.q + (row + r) * w.dim;
  add_products(sums, q, keys.first, keys.stride, w.dim);
#pragma GCC unroll 8
  for (int r = 0; r < N; r++)
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) store(w.scores + (row + r) * KV_TILE + token + j * LANES, sums[r][j]);
}

template <int N, int V = VECTORS<N>, class T>
void score_rows(const AttentionWorkspace& w, Stored<T> keys, int row, int token, int end) {
  for (; token + V * LANES <= end; token += V * LANES, keys.first += V * LANES) score_block<N, V>(w, keys, row, token);
  if constexpr (V > 1)
    if (token < end) score_rows<N, V - 1>(w, keys, row, token, end);
}

struct Tokens {
  int begin, end;
};

// What lies in `all` but not in `seen`.
TAHR_INLINE void fill_outside(float* scores, Tokens seen, Tokens all, float value) {
  for (int t = all.begin; t < seen.begin; t++) scores[t] = value;
  for (int t = seen.end; t < all.end; t++) scores[t] = value;
}

// Turns the scores `all` of a row into weights; tokens that are not seen get none.
TAHR_INLINE void weigh(AttentionWorkspace& w, int row, Tokens seen, Tokens all) {
  float* scores = w.scores + row * KV_TILE;
  State& state = w.span[row];
  fill_outside(scores, seen, all, -INFINITY);
  Floats tops = set1(state.top);
  for (int t = all.begin; t < all.end; t += LANES) tops = max(tops, load(scores + t));
  const float top = max_lane(tops);
  const Floats base = set1(top == -INFINITY ? 0.0f : top);  // -inf less itself would be NaN, for later tiles too
  for (int t = all.begin; t < all.end; t += LANES) store(scores + t, exp(sub(load(scores + t), base)));
  fill_outside(scores, seen, all, 0);
  w.shrink[row] = top == state.top ? 1.0f : std::exp(state.top - top);
  Floats sums = mul(load(w.sums + row * LANES), set1(w.shrink[row]));
  for (int t = all.begin; t < all.end; t += LANES) sums = add(sums, load(scores + t));
  store(w.sums + row * LANES, sums);
  state.top = top;
}

// Caps the scores of a head, then adds slope * (key position - query position), given where the query stands in the tile.
TAHR_INLINE void bend(const AttentionOp& op, float* scores, int head, int query, Tokens all) {
  if (op.softcap > 0) {
    const Floats cap = set1(op.softcap);
    for (int t = all.begin; t < all.end; t += LANES) store(scores + t, mul(cap, tanh(div(load(scores + t), cap))));
  }
  if (op.slopes)
    for (int t = all.begin; t < all.end; t++) scores[t] += op.slopes[head] * float(t - query);
}

TAHR_INLINE void weigh_rows(const AttentionOp& op, const AttentionTask& task, int tile, AttentionWorkspace& w, Tokens all) {
  for (int row = 0, token = task.first; row < w.n_rows; token++) {
    const int position = op.positions[token];
    const int low = first_seen(op, position) - tile, high = end_seen(op, task.seq, position) - tile;
    const Tokens some = {low > all.begin ? low : all.begin, high < all.end ? high : all.end};
    const Tokens seen = some.begin < some.end ? some : Tokens{all.end, all.end};
    for (int head = task.head_group * op.group, end = head + op.group; head < end; head++, row++) {
      bend(op, w.scores + row * KV_TILE, head, position - tile, all);
      weigh(w, row, seen, all);
    }
  }
}

// weighted = weighted * shrink + weights @ values, for N rows and V vectors of columns.
template <int N, int V, class T>
void gather_block(AttentionWorkspace& w, Stored<T> values, int row, int col, int begin, int end) {
  Floats sums[N][V];
#pragma GCC unroll 8
  for (int r = 0; r < N; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++)
      sums[r][v] = mul(load(w.span[row + r].weighted + col + v * LANES), set1(w.shrink[row + r]));
  const float* weights[N];
#pragma GCC unroll 8
  for (int r = 0; r < N; r++) weights[r] = w.scores + (row + r) * KV_TILE + begin;
  add_products(sums, weights, values.first + col, values.stride, end - begin);
#pragma GCC unroll 8
  for (int r = 0; r < N; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store(w.span[row + r].weighted + col + v * LANES, sums[r][v]);
}

template <int N, int V = VECTORS<N>, class T>
void gather_rows(AttentionWorkspace& w, Stored<T> values, int row, int col, int end_col, int begin, int end) {
  for (; col + V * LANES <= end_col; col += V * LANES) gather_block<N, V>(w, values, row, col, begin, end);
  if constexpr (V > 1)
    if (col < end_col) gather_rows<N, V - 1>(w, values, row, col, end_col, begin, end);
}

// Calls `f.run<N>(row)` for all rows, N = ROWS at a time and then those left over. A row's sums are formed in the same
// order whatever N is.
template <class Rows, int N = ROWS>
void for_rows(const Rows& f, int n_rows, int row = 0) {
  for (; row + N <= n_rows; row += N) f.template run<N>(row);
  if constexpr (N > 1) for_rows<Rows, N - 1>(f, n_rows, row);
}

// Calls `use(from, to)` for the strips of [begin, end), or once where the rows are few.
template <class Use>
TAHR_INLINE void for_strips(const AttentionWorkspace& w, int begin, int end, Use use) {
  const int size = w.n_rows < ROWS ? end - begin : STRIP;
  for (int from = begin; from < end; from += size) use(from, from + size < end ? from + size : end);
}

template <class T>
struct Score {
  const AttentionWorkspace& w;
  Stored<T> keys;  // from token `begin` on
  int begin, end;
  template <int N>
  void run(int row) const { score_rows<N>(w, keys, row, begin, end); }
};

template <class T>
struct Gather {
  AttentionWorkspace& w;
  Stored<T> values;  // from token `begin` on
  int col, end_col;  // of the values
  int begin, end;    // tokens
  template <int N>
  void run(int row) const { gather_rows<N>(w, values, row, col, end_col, begin, end); }
};

void weigh_tile(const AttentionOp& op, const AttentionTask& task, int tile, AttentionWorkspace& w) {
  // Most tiles are whole, and then the loops have a known length.
  if (w.end - w.begin == KV_TILE) weigh_rows(op, task, tile, w, {0, KV_TILE});
  else weigh_rows(op, task, tile, w, {w.begin, w.end});
}

// Few rows: what is stored becomes f32 on the way to its products. Going through the workspace would take as long again.
bool reads_pages(const AttentionOp& op, const AttentionWorkspace& w) {
  const KvLayer& kv = op.kv;
  const bool plain = kv.key_type == kv.value_type && kv.key_type != KvType::q8_0 && !kv.latent;
  return plain && w.n_rows <= ROWS && kv.page_size % LANES == 0 && w.value_dim % LANES == 0;
}

template <class T>
void attend_pages(const AttentionOp& op, const AttentionTask& task, int tile, Tokens seen, AttentionWorkspace& w) {
  const KvLayer& kv = op.kv;
  const int head = kv_head(op, task);
  for_runs(op, task, tile + w.begin, tile + w.end, [&](int64_t page, int offset, int n, int at) {
    const Stored<T> keys{reinterpret_cast<const T*>(kv.keys_at(page, head)) + offset, kv.page_size};
    for_rows(Score<T>{w, keys, at - tile, at - tile + n}, w.n_rows);
  });
  weigh_tile(op, task, tile, w);
  for_runs(op, task, seen.begin, seen.end, [&](int64_t page, int offset, int n, int at) {
    const Stored<T> values{reinterpret_cast<const T*>(kv.values_at(page, head)) + int64_t{offset} * w.value_dim, w.value_dim};
    for_rows(Gather<T>{w, values, 0, w.value_dim, at - tile, at - tile + n}, w.n_rows);
    for (int row = 0; row < w.n_rows; row++) w.shrink[row] = 1.0f;  // older weights shrink once
  });
}

void attend_tile(const AttentionOp& op, const AttentionTask& task, int tile, AttentionWorkspace& w) {
  const int last = end_seen(op, task.seq, op.positions[task.first + task.n_tokens - 1]);
  const int seen = first_seen(op, op.positions[task.first]);
  const int begin = seen > tile ? seen : tile, end = last < tile + KV_TILE ? last : tile + KV_TILE;
  w.begin = (begin - tile) / LANES * LANES;
  w.end = (end - tile + LANES - 1) / LANES * LANES;
  if (reads_pages(op, w))
    return with_plain(op.kv.key_type, [&](auto* type) {
      attend_pages<std::remove_pointer_t<decltype(type)>>(op, task, tile, {begin, end}, w);
    });
  load_tile(op, task, tile, begin, end, w);
  for_strips(w, w.begin, w.end, [&](int from, int to) {
    for_rows(Score<float>{w, {w.keys + from, KV_TILE}, from, to}, w.n_rows);
  });
  weigh_tile(op, task, tile, w);
  for_strips(w, 0, w.padded, [&](int col, int end_col) {
    for_rows(Gather<float>{w, {w.values + (begin - tile) * w.padded, w.padded}, col, end_col, begin - tile, end - tile}, w.n_rows);
  });
}

}  // namespace

}  // namespace tahr::TAHR_ISA
