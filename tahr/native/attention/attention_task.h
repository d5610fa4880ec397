// What a thread takes of a step's attention: some queries of one sequence, of heads that share a key head, over a range of spans.
#pragma once

#include <algorithm>
#include <numeric>

#include "attention.h"

namespace tahr::TAHR_ISA {

namespace {

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
//
// One sequence has few tasks. Those left over when all threads have as many are cut into pieces, a few queries each: every piece
// converts the keys and values that it reads anew, which repays where threads would wait.
class TaskFinder {
 public:
  TaskFinder(const AttentionOp& op, int n_threads) : op_(op), tokens_per_tile_(MAX_QUERY_TILE / op.group) {
    if (op.counts[2] != 1 || n_threads == 1) return;
    const int64_t all = count(0), left = all % n_threads;
    const int n_tokens = std::min(n_queries(0), tokens_per_tile_);
    const int n_most = std::min(n_tokens, n_tokens * op.group / LEAST_PIECE_ROWS);
    if (!left || all >= MANY_TASKS * n_threads) return;
    n_whole_ = all - left;
    n_pieces_ = std::max(1, std::min(n_threads / std::gcd(n_threads, int(left)), n_most));
  }

  bool find(int64_t number, AttentionTask& task) {
    const int64_t cut = number < n_whole_ ? 0 : number - n_whole_;
    const int64_t whole = number - cut + cut / n_pieces_;
    for (; seq_ < op_.counts[2]; before_ += count(seq_++))
      if (whole < before_ + count(seq_)) {
        describe(int(whole - before_), task);
        if (number >= n_whole_) take(int(cut % n_pieces_), task);
        return true;
      }
    return false;
  }

 private:
  static constexpr int LEAST_PIECE_ROWS = 4, MANY_TASKS = 4;

  int n_queries(int seq) const { return op_.starts[seq + 1] - op_.starts[seq]; }
  int n_tiles(int seq) const { return (n_queries(seq) + tokens_per_tile_ - 1) / tokens_per_tile_; }
  int n_parts(int seq) const { return shared_by_span(op_) ? spans(op_.lengths[seq]) : 1; }
  int64_t count(int seq) const { return int64_t{n_tiles(seq)} * n_head_groups(op_) * n_parts(seq); }

  // The queries of a piece; a short tile may have none for it.
  void take(int piece, AttentionTask& task) const {
    const int begin = task.n_tokens * piece / n_pieces_, end = task.n_tokens * (piece + 1) / n_pieces_;
    task.first += begin;
    task.n_tokens = end - begin;
  }

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
  int64_t n_whole_ = INT64_MAX;  // tasks that are not cut, first
  int n_pieces_ = 1;             // of each of the others
  int seq_ = 0;
  int64_t before_ = 0;  // tasks of the sequences before
};

}  // namespace

}  // namespace tahr::TAHR_ISA
