// Attention as it is defined, one query at a time: all scores, their softmax in double precision, the weighted sum of values.
//
// It is slow, and shares nothing with the kernel of tiles but the form of the pages: a fault of that kernel goes away with it.
#pragma once

#include <cmath>
#include <vector>

#include "attention_task.h"
#include "hadamard.h"
#include "kv_types.h"
#include "quantised_out.h"

namespace tahr::TAHR_ISA {

namespace {

int sequence_of(const AttentionOp& op, int64_t token) {
  int seq = 0;
  while (op.starts[seq + 1] <= token) seq++;
  return seq;
}

// The key and the value of a head at one position of a sequence.
void read_token(const AttentionOp& op, int seq, int head, int position, float* key, float* value) {
  const KvLayer& kv = op.kv;
  const int64_t page = op.page_table[int64_t{seq} * op.n_pages_per_seq + position / kv.page_size];
  const int offset = position % kv.page_size;
  with_type(kv.key_type, [&](auto stored) { stored.read_keys(kv, kv.keys_at(page, head), offset, 1, key, 1); });
  if (kv.latent) {
    for (int i = 0; i < kv.latent; i++) value[i] = key[kv.head_dim - kv.latent + i];
    return;
  }
  with_type(kv.value_type, [&](auto stored) {
    stored.read_values(kv, kv.values_at(page, head), offset, 1, value, kv.head_dim);
  });
}

double score(const AttentionOp& op, const float* q, const float* key, int head, int distance) {
  double sum = 0;
  for (int i = 0; i < op.kv.head_dim; i++) sum += double(q[i]) * key[i];
  sum *= op.scale;
  if (op.softcap > 0) sum = op.softcap * std::tanh(sum / op.softcap);
  return op.slopes ? sum + double(op.slopes[head]) * distance : sum;
}

// Writes the head-th of all the heads of all tokens.
void attend_plainly(const AttentionOp& op, int64_t head) {
  const int64_t token = head / op.n_q_heads;
  const int q_head = int(head % op.n_q_heads), from = q_head / (op.n_q_heads / op.kv.n_heads);
  const int seq = sequence_of(op, token), position = op.positions[token], dim = op.kv.value_dim();
  const int begin = first_seen(op, position), end = end_seen(op, seq, position);
  float key[MAX_HEAD_DIM], value[MAX_HEAD_DIM];
  std::vector<double> weights, sums(size_t(dim), 0.0);
  double top = op.sinks ? op.sinks[q_head] : -INFINITY, total = 0;
  for (int t = begin; t < end; t++) {
    read_token(op, seq, from, t, key, value);
    weights.push_back(score(op, op.q + head * op.kv.head_dim, key, q_head, t - position));
    top = std::max(top, weights.back());
  }
  for (double& weight : weights) total += weight = std::exp(weight - top);
  if (op.sinks) total += std::exp(op.sinks[q_head] - top);
  for (int t = begin; t < end; t++) {
    read_token(op, seq, from, t, key, value);
    for (int i = 0; i < dim; i++) sums[size_t(i)] += weights[size_t(t - begin)] * value[i];
  }
  float* out = op.out + head * dim;
  for (int i = 0; i < dim; i++) out[i] = float(sums[size_t(i)] / total);
  if (op.kv.value_type == KvType::q8_0) hadamard(out, dim);
  quantise_part(op.quantised_out, op.out, head * dim, head * dim + dim);
}

}  // namespace

}  // namespace tahr::TAHR_ISA
