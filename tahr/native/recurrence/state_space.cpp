#include "state_space.h"

#include <cmath>

#include "simd_tail.h"
#include "softplus.h"
#include "vecmath.h"

namespace tahr::TAHR_ISA {

namespace {

// LANES columns (the last `n` of a head) of all tokens of one sequence: this part of the state stays in the nearest cache.
void run_columns(const StateSpaceOp& op, int seq, int head, int col, int n) {
  const int64_t channels = op.channels(), group = head / (op.n_heads / op.n_groups);
  float* state = op.seqs.slot_of(seq) + op.matrices + int64_t{head} * op.state_dim * op.head_dim + col;
  if (op.seqs.is_new(seq))
    for (int i = 0; i < op.state_dim; i++) store_some(state + i * op.head_dim, set1(0.0f), n);
  for (int64_t row = op.seqs.begin(seq); row < op.seqs.end(seq); row++) {
    const float* x = op.mixed + row * channels + int64_t{head} * op.head_dim + col;
    const float *b = op.mixed + row * channels + op.width() + group * op.state_dim, *c = b + op.n_groups * op.state_dim;
    const float step = softplus(op.dt[row * op.n_heads + head] + op.dt_bias[head]);
    const Floats kept = set1(std::exp(op.decay[head] * step)), token = load_some(x, n), added = mul(token, set1(step));
    Floats answer = mul(token, set1(op.skip[head]));
    for (int i = 0; i < op.state_dim; i++) {
      const Floats now = fma(added, set1(b[i]), mul(load_some(state + i * op.head_dim, n), kept));
      store_some(state + i * op.head_dim, now, n);
      answer = fma(now, set1(c[i]), answer);
    }
    store_some(op.out + row * op.width() + int64_t{head} * op.head_dim + col, answer, n);
  }
}

void norm_part(float* x, const float* gain, int64_t n, float eps) {
  float total = 0;
  for (int64_t i = 0; i < n; i++) total += x[i] * x[i];
  const float inverse = 1.0f / std::sqrt(total / float(n) + eps);
  for (int64_t i = 0; i < n; i++) x[i] = x[i] * inverse * gain[i];
}

}  // namespace

void state_space(const StateSpaceOp& op, Worker worker) {
  const int64_t n = int64_t{op.seqs.n()} * op.n_heads;
  for (int64_t i = claim(worker); i < n; i = claim(worker))
    for (int col = 0; col < op.head_dim; col += LANES)
      run_columns(op, int(i / op.n_heads), int(i % op.n_heads), col, op.head_dim - col < LANES ? op.head_dim - col : LANES);
}

void gated_norm(const GatedNormOp& op, Worker worker) {
  const Range rows = share(*op.n_rows, worker);
  const int64_t part = op.width / op.n_groups;
  for (int64_t row = rows.begin; row < rows.end; row++) {
    float* x = op.x + row * op.width;
    const float* z = op.z + row * op.width;
    for (int64_t i = 0; i < op.width; i++) x[i] *= z[i] / (1.0f + std::exp(-z[i]));
    if (op.gain)
      for (int64_t at = 0; at < op.width; at += part) norm_part(x + at, op.gain + at, part, op.eps);
  }
}

}  // namespace tahr::TAHR_ISA
