#include "attention.h"

#include <cmath>
#include <cstring>

#include "hadamard.h"
#include "kv_types.h"
#include "products.h"
#include "quantised_out.h"
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

// ---- a task: some queries of one sequence, of heads that share a key head, over a range of spans ----

struct AttentionTask {
  int seq, head_group;
  int first, n_tokens;          // queries, as rows of the step
  int begin_span, end_span;     // spans any of the queries can see, or one of them when spans are shared out
};

int spans(int n_tokens) { return (n_tokens + KV_SPAN - 1) / KV_SPAN; }

int n_head_groups(const AttentionOp& op) { return op.n_q_heads / op.group; }

int kv_head(const AttentionOp& op, const AttentionTask& task) {
  return task.head_group * op.group / (op.n_q_heads / op.kv.n_heads);
}

int first_seen(const AttentionOp& op, int position) {
  if (op.chunked) return position / op.window * op.window;
  return op.window && position >= op.window ? position - op.window + 1 : 0;
}

// The end of what a query of a sequence sees.
int end_seen(const AttentionOp& op, int seq, int position) {
  if (op.causal) return position + 1;
  const int length = op.lengths[seq];
  return op.window && position + op.window < length ? position + op.window : length;
}

// Spans are shared out in small steps, if any sequence has more than one.
bool shared_by_span(const AttentionOp& op) {
  if (op.counts[0] > SPLIT_TOKENS || !op.causal) return false;
  for (int seq = 0; seq < op.counts[2]; seq++)
    if (op.lengths[seq] > KV_SPAN) return true;
  return false;
}

// Finds the numbered tasks of a step. Numbers only grow while a thread works, so the search goes on where it was.
class TaskFinder {
 public:
  explicit TaskFinder(const AttentionOp& op) : op_(op), tokens_per_tile_(MAX_QUERY_TILE / op.group) {}

  bool find(int64_t number, AttentionTask& task) {
    for (; seq_ < op_.counts[2]; before_ += count(seq_++))
      if (number < before_ + count(seq_)) return describe(int(number - before_), task), true;
    return false;
  }

 private:
  int n_queries(int seq) const { return op_.starts[seq + 1] - op_.starts[seq]; }
  int n_tiles(int seq) const { return (n_queries(seq) + tokens_per_tile_ - 1) / tokens_per_tile_; }
  int n_parts(int seq) const { return shared_by_span(op_) ? spans(op_.lengths[seq]) : 1; }
  int64_t count(int seq) const { return int64_t{n_tiles(seq)} * n_head_groups(op_) * n_parts(seq); }

  void describe(int number, AttentionTask& task) const {
    const int part = number % n_parts(seq_), rest = number / n_parts(seq_);
    const int tile = n_tiles(seq_) - 1 - rest / n_head_groups(op_);  // the last tile sees most: begin with it
    const int from = tile * tokens_per_tile_, left = n_queries(seq_) - from;
    task.seq = seq_;
    task.head_group = rest % n_head_groups(op_);
    task.first = op_.starts[seq_] + from;
    task.n_tokens = left < tokens_per_tile_ ? left : tokens_per_tile_;
    const int last = op_.positions[task.first + task.n_tokens - 1];
    task.begin_span = first_seen(op_, op_.positions[task.first]) / KV_SPAN;
    task.end_span = spans(end_seen(op_, seq_, last));
    if (shared_by_span(op_)) {
      task.begin_span = part < task.begin_span ? part + 1 : part;
      task.end_span = part + 1 < task.end_span ? part + 1 : task.end_span;
    }
  }

  const AttentionOp& op_;
  const int tokens_per_tile_;
  int seq_ = 0;
  int64_t before_ = 0;  // tasks of the sequences before
};

// ---- the state of a running softmax ----

// Of one query row: `weighted` is the sum of exp(score - top) * value over what has been seen, `sum` that of the weights.
struct State {
  float* weighted;  // [dim]
  float sum, top;
};

void clear(State& state, int dim) {
  for (int i = 0; i < dim; i++) state.weighted[i] = 0;
  state.sum = 0;
  state.top = -INFINITY;
}

// Adds a later span to what came before it.
void merge(State& total, const State& span, int dim) {
  if (span.top == -INFINITY) return;  // a span this row does not see
  const float top = span.top > total.top ? span.top : total.top;
  const float old_share = std::exp(total.top - top), new_share = std::exp(span.top - top);
  for (int i = 0; i < dim; i++) total.weighted[i] = total.weighted[i] * old_share + span.weighted[i] * new_share;
  total.sum = total.sum * old_share + span.sum * new_share;
  total.top = top;
}

// What the weighted sum is multiplied by if a logit without a value takes part in the softmax.
float with_sink(const State& total, float sink) {
  const float top = sink > total.top ? sink : total.top;
  const float share = std::exp(total.top - top);
  return share / (total.sum * share + std::exp(sink - top));
}

// Writes the head-th of all the heads of all tokens.
void finish(const AttentionOp& op, const State& total, int64_t head) {
  const int dim = op.kv.value_dim();
  const int64_t at = head * dim;
  const float inverse = op.sinks ? with_sink(total, op.sinks[head % op.n_q_heads]) : 1.0f / total.sum;
  for (int i = 0; i < dim; i++) op.out[at + i] = total.weighted[i] * inverse;
  if (op.kv.value_type == KvType::q8_0) hadamard(op.out + at, dim);
  quantise_part(op.quantised_out, op.out, at, at + dim);
}

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
  w.begin = (begin - tile) / LANES * LANES;
  w.end = (end - tile + LANES - 1) / LANES * LANES;
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

// The scores of N rows for V vectors of tokens from `token` on.
template <int N, int V>
void score_block(const AttentionWorkspace& w, int row, int token) {
  Floats sums[N][V];
  for (auto& of_row : sums)
    for (auto& s : of_row) s = set1(0.0f);
  const float* q[N];
  for (int r = 0; r < N; r++) q[r] = w.q + (row + r) * w.dim;
  add_products(sums, q, w.keys + token, KV_TILE, w.dim);
  for (int r = 0; r < N; r++)
    for (int j = 0; j < V; j++) store(w.scores + (row + r) * KV_TILE + token + j * LANES, sums[r][j]);
}

template <int N, int V = VECTORS<N>>
void score_rows(const AttentionWorkspace& w, int row, int token, int end) {
  for (; token + V * LANES <= end; token += V * LANES) score_block<N, V>(w, row, token);
  if constexpr (V > 1)
    if (token < end) score_rows<N, V - 1>(w, row, token, end);
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
TAHR_INLINE void weigh(const AttentionOp& op, AttentionWorkspace& w, int row, Tokens seen, Tokens all) {
  float* scores = w.scores + row * KV_TILE;
  State& state = w.span[row];
  if (op.softcap > 0) {
    const Floats cap = set1(op.softcap);
    for (int t = all.begin; t < all.end; t += LANES) store(scores + t, mul(cap, tanh(div(load(scores + t), cap))));
  }
  fill_outside(scores, seen, all, -INFINITY);
  Floats tops = set1(state.top);
  for (int t = all.begin; t < all.end; t += LANES) tops = max(tops, load(scores + t));
  const float top = max_lane(tops);
  for (int t = all.begin; t < all.end; t += LANES) store(scores + t, exp(sub(load(scores + t), set1(top))));
  fill_outside(scores, seen, all, 0);
  w.shrink[row] = top == state.top ? 1.0f : std::exp(state.top - top);
  Floats sums = mul(load(w.sums + row * LANES), set1(w.shrink[row]));
  for (int t = all.begin; t < all.end; t += LANES) sums = add(sums, load(scores + t));
  store(w.sums + row * LANES, sums);
  state.top = top;
}

// Adds slope * (key position - query position), given where the query stands in the tile.
void add_slope(float* scores, float slope, int query, Tokens all) {
  for (int t = all.begin; t < all.end; t++) scores[t] += slope * float(t - query);
}

TAHR_INLINE void weigh_rows(const AttentionOp& op, const AttentionTask& task, int tile, AttentionWorkspace& w, Tokens all) {
  const int n_heads = op.group;
  for (int row = 0, token = task.first; row < w.n_rows; token++) {
    const int position = op.positions[token];
    const int low = first_seen(op, position) - tile, high = end_seen(op, task.seq, position) - tile;
    const Tokens some = {low > all.begin ? low : all.begin, high < all.end ? high : all.end};
    const Tokens seen = some.begin < some.end ? some : Tokens{all.end, all.end};
    if (op.slopes)
      for (int head = 0; head < n_heads; head++)
        add_slope(w.scores + (row + head) * KV_TILE, op.slopes[task.head_group * n_heads + head], position - tile, all);
    for (const int next = row + n_heads; row < next; row++) weigh(op, w, row, seen, all);
  }
}

// weighted = weighted * shrink + weights @ values, for N rows and V vectors of columns.
template <int N, int V>
void gather_block(AttentionWorkspace& w, int row, int col, int begin, int end) {
  Floats sums[N][V];
  for (int r = 0; r < N; r++)
    for (int v = 0; v < V; v++)
      sums[r][v] = mul(load(w.span[row + r].weighted + col + v * LANES), set1(w.shrink[row + r]));
  const float* weights[N];
  for (int r = 0; r < N; r++) weights[r] = w.scores + (row + r) * KV_TILE + begin;
  add_products(sums, weights, w.values + begin * w.padded + col, w.padded, end - begin);
  for (int r = 0; r < N; r++)
    for (int v = 0; v < V; v++) store(w.span[row + r].weighted + col + v * LANES, sums[r][v]);
}

template <int N, int V = VECTORS<N>>
void gather_rows(AttentionWorkspace& w, int row, int col, int end_col, int begin, int end) {
  for (; col + V * LANES <= end_col; col += V * LANES) gather_block<N, V>(w, row, col, begin, end);
  if constexpr (V > 1)
    if (col < end_col) gather_rows<N, V - 1>(w, row, col, end_col, begin, end);
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

struct Score {
  const AttentionWorkspace& w;
  int begin, end;
  template <int N>
  void run(int row) const { score_rows<N>(w, row, begin, end); }
};

struct Gather {
  AttentionWorkspace& w;
  int col, end_col;  // of the values
  int begin, end;    // tokens
  template <int N>
  void run(int row) const { gather_rows<N>(w, row, col, end_col, begin, end); }
};

void attend_tile(const AttentionOp& op, const AttentionTask& task, int tile, AttentionWorkspace& w) {
  const int last = end_seen(op, task.seq, op.positions[task.first + task.n_tokens - 1]);
  const int seen = first_seen(op, op.positions[task.first]);
  const int begin = seen > tile ? seen : tile, end = last < tile + KV_TILE ? last : tile + KV_TILE;
  load_tile(op, task, tile, begin, end, w);

  for_strips(w, w.begin, w.end, [&](int from, int to) { for_rows(Score{w, from, to}, w.n_rows); });
  // Most tiles are whole, and then the loops have a known length.
  if (w.end - w.begin == KV_TILE) weigh_rows(op, task, tile, w, {0, KV_TILE});
  else weigh_rows(op, task, tile, w, {w.begin, w.end});
  for_strips(w, 0, w.padded, [&](int col, int end_col) {
    for_rows(Gather{w, col, end_col, begin - tile, end - tile}, w.n_rows);
  });
}

void attend_span(const AttentionOp& op, const AttentionTask& task, int span, AttentionWorkspace& w) {
  for (int row = 0; row < w.n_rows; row++) {
    clear(w.span[row], w.padded);
    store(w.sums + row * LANES, set1(0.0f));
  }
  const int last = end_seen(op, task.seq, op.positions[task.first + task.n_tokens - 1]);
  const int seen = first_seen(op, op.positions[task.first]) / KV_TILE * KV_TILE;
  const int begin = seen > span * KV_SPAN ? seen : span * KV_SPAN;
  const int end = last < (span + 1) * KV_SPAN ? last : (span + 1) * KV_SPAN;
  for (int tile = begin; tile < end; tile += KV_TILE) {
    const int next = tile + KV_TILE, after = next + KV_TILE < end ? next + KV_TILE : end;
    if (w.n_rows <= ROWS) prefetch_tile(op, task, next, after);
    attend_tile(op, task, tile, w);
  }
  for (int row = 0; row < w.n_rows; row++) w.span[row].sum = sum(load(w.sums + row * LANES));
}

// ---- spans worked on by different threads ----

float* partial(const AttentionOp& op, int64_t head, int64_t span) {
  return op.partials + (head * op.n_spans + span) * (op.kv.value_dim() + 2);
}

void keep_partials(const AttentionOp& op, const AttentionTask& task, int span, const AttentionWorkspace& w) {
  for (int row = 0; row < w.n_rows; row++) {
    float* out = partial(op, head_of(op, task, row), span);
    memcpy(out, w.span[row].weighted, size_t(w.value_dim) * sizeof(float));
    out[w.value_dim] = w.span[row].sum;
    out[w.value_dim + 1] = w.span[row].top;
  }
}

void work(const AttentionOp& op, const AttentionTask& task, std::byte* scratch) {
  AttentionWorkspace w = make_workspace(op, task, scratch);
  for (int row = 0; row < w.n_rows; row++) {
    const float* q = op.q + head_of(op, task, row) * w.dim;
    for (int i = 0; i < w.dim; i++) w.q[row * w.dim + i] = q[i] * op.scale;
    clear(w.total[row], w.padded);
  }
  for (int span = task.begin_span; span < task.end_span; span++) {
    attend_span(op, task, span, w);
    if (shared_by_span(op)) return keep_partials(op, task, span, w);
    for (int row = 0; row < w.n_rows; row++) merge(w.total[row], w.span[row], w.value_dim);
  }
  if (shared_by_span(op)) return;
  for (int row = 0; row < w.n_rows; row++) finish(op, w.total[row], head_of(op, task, row));
}

// The head-th of all the heads of all tokens.
void merge_head(const AttentionOp& op, int64_t head, std::byte* scratch) {
  const int position = op.positions[head / op.n_q_heads], dim = op.kv.value_dim();
  State total{reinterpret_cast<float*>(scratch), 0, 0};
  clear(total, dim);
  for (int span = first_seen(op, position) / KV_SPAN; span < spans(position + 1); span++) {
    float* part = partial(op, head, span);
    merge(total, {part, part[dim], part[dim + 1]}, dim);
  }
  finish(op, total, head);
}

}  // namespace

void attention(const AttentionOp& op, Worker worker) {
  TaskFinder finder(op);
  for (AttentionTask task; finder.find(claim(worker), task);) work(op, task, worker.scratch);
}

void merge_spans(const AttentionOp& op, Worker worker) {
  if (!shared_by_span(op)) return;
  const Range heads = share(int64_t{op.counts[0]} * op.n_q_heads, worker);
  for (int64_t i = heads.begin; i < heads.end; i++) merge_head(op, i, worker.scratch);
}

}  // namespace tahr::TAHR_ISA
