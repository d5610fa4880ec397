#include "attention.h"

#include <cmath>
#include <cstring>

#include "attention_tile.h"
#include "hadamard.h"
#include "plain_attention.h"
#include "quantised_out.h"

namespace tahr::TAHR_ISA {

namespace {

// ---- the state of a running softmax ----

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

// ---- spans ----

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
  if (op.plain) {
    const Range heads = share(int64_t{op.counts[0]} * op.n_q_heads, worker);
    for (int64_t i = heads.begin; i < heads.end; i++) attend_plainly(op, i);
    return;
  }
  TaskFinder finder(op, worker.n_threads);
  for (AttentionTask task; finder.find(claim(worker), task);)
    if (task.n_tokens) work(op, task, worker.scratch);
}

void merge_spans(const AttentionOp& op, Worker worker) {
  if (op.plain || !shared_by_span(op)) return;
  const Range heads = share(int64_t{op.counts[0]} * op.n_q_heads, worker);
  for (int64_t i = heads.begin; i < heads.end; i++) merge_head(op, i, worker.scratch);
}

}  // namespace tahr::TAHR_ISA
