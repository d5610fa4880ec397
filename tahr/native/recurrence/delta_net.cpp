#include "delta_net.h"

#include <cmath>

#include "simd_tail.h"
#include "softplus.h"

namespace tahr::TAHR_ISA {

namespace {

float sum_of_squares(const float* x, int n) {
  float total = 0;
  for (int i = 0; i < n; i++) total += x[i] * x[i];
  return total;
}

// x over its length, times `scale`.
void unit(const float* x, float* out, int n, float scale) {
  const float factor = scale / std::sqrt(sum_of_squares(x, n) + 1e-6f);
  for (int i = 0; i < n; i++) out[i] = x[i] * factor;
}

struct Token {
  const float *q, *k, *v;
  float kept, beta;
};

// LANES columns of a head's matrix: forget, see what the key recalls, learn the difference, answer the query.
void learn(const Token& token, float* state, int k_dim, int v_dim, int col, int n, float* out) {
  const Floats kept = set1(token.kept);
  Floats recalled = set1(0.0f), answer = set1(0.0f);
  for (int i = 0; i < k_dim; i++) {
    const Floats row = mul(load_some(state + i * v_dim + col, n), kept);
    store_some(state + i * v_dim + col, row, n);
    recalled = fma(row, set1(token.k[i]), recalled);
  }
  const Floats delta = mul(sub(load_some(token.v + col, n), recalled), set1(token.beta));
  for (int i = 0; i < k_dim; i++) {
    const Floats row = fma(delta, set1(token.k[i]), load_some(state + i * v_dim + col, n));
    store_some(state + i * v_dim + col, row, n);
    answer = fma(row, set1(token.q[i]), answer);
  }
  store_some(out + col, answer, n);
}

void gate(const DeltaNetOp& op, float* out, const float* z) {
  const float inverse = 1.0f / std::sqrt(sum_of_squares(out, op.v_dim) / float(op.v_dim) + op.eps);
  for (int i = 0; i < op.v_dim; i++) out[i] = out[i] * inverse * op.gain[i] * (z[i] / (1.0f + std::exp(-z[i])));
}

// All tokens of one sequence, for one value head.
void run_head(const DeltaNetOp& op, int seq, int head) {
  const int k_head = op.tiled ? head % op.n_k_heads : head / (op.n_v_heads / op.n_k_heads);
  const int64_t channels = op.channels(), keys = int64_t{op.n_k_heads} * op.k_dim;
  const int64_t size = int64_t{op.k_dim} * op.v_dim, values = int64_t{op.n_v_heads} * op.v_dim;
  float* state = op.seqs.slot_of(seq) + op.matrices + head * size;
  if (op.seqs.is_new(seq))
    for (int64_t i = 0; i < size; i++) state[i] = 0;
  float q[MAX_STATE_DIM], k[MAX_STATE_DIM];
  for (int64_t row = op.seqs.begin(seq); row < op.seqs.end(seq); row++) {
    const float* mixed = op.mixed + row * channels;
    const int64_t at = row * op.n_v_heads + head;
    unit(mixed + k_head * op.k_dim, q, op.k_dim, 1.0f / std::sqrt(float(op.k_dim)));
    unit(mixed + keys + k_head * op.k_dim, k, op.k_dim, 1.0f);
    const Token token{q, k, mixed + 2 * keys + head * op.v_dim,
                      std::exp(op.decay[head] * softplus(op.alpha[at] + op.dt_bias[head])),
                      1.0f / (1.0f + std::exp(-op.beta[at]))};
    float* out = op.out + row * values + head * op.v_dim;
    for (int col = 0; col < op.v_dim; col += LANES)
      learn(token, state, op.k_dim, op.v_dim, col, op.v_dim - col < LANES ? op.v_dim - col : LANES, out);
    gate(op, out, op.z + row * values + head * op.v_dim);
  }
}

}  // namespace

void delta_rule(const DeltaNetOp& op, Worker worker) {
  const int64_t n = int64_t{op.seqs.n()} * op.n_v_heads;
  for (int64_t i = claim(worker); i < n; i = claim(worker)) run_head(op, int(i / op.n_v_heads), int(i % op.n_v_heads));
}

}  // namespace tahr::TAHR_ISA
