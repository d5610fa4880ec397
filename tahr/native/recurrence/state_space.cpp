#include "state_space.h"

#include <cmath>

#include "columns.h"
#include "softplus.h"
#include "vecmath.h"

namespace tahr::TAHR_ISA {

namespace {

// Some columns of a head, for all tokens of one sequence: this part of the state stays in the nearest cache.
template <int V>
TAHR_INLINE void run_columns(const StateSpaceOp& op, int seq, int head, Columns<V> columns, int col) {
  const int64_t channels = op.channels(), group = head / (op.n_heads / op.n_groups), at = int64_t{head} * op.head_dim + col;
  float* state = op.seqs.slot_of(seq) + op.matrices + int64_t{head} * op.state_dim * op.head_dim + col;
  Floats added[V], answer[V], row[V];
  if (op.seqs.is_new(seq)) {
    for (auto& zeros : row) zeros = set1(0.0f);
    for (int i = 0; i < op.state_dim; i++) columns.store_all(state + i * op.head_dim, row);
  }
  for (int64_t token = op.seqs.begin(seq); token < op.seqs.end(seq); token++) {
    const float* b = op.mixed + token * channels + op.width() + group * op.state_dim;
    const float* c = b + op.n_groups * op.state_dim;
    const float step = softplus(op.dt[token * op.n_heads + head] + op.dt_bias[head]);
    const Floats kept = set1(std::exp(op.decay[head] * step));
    columns.load_all(op.mixed + token * channels + at, added);
    for (int v = 0; v < V; v++) {
      answer[v] = mul(added[v], set1(op.skip[head]));
      added[v] = mul(added[v], set1(step));
    }
    for (int i = 0; i < op.state_dim; i++) {
      columns.load_all(state + i * op.head_dim, row);
      for (int v = 0; v < V; v++) {
        row[v] = fma(added[v], set1(b[i]), mul(row[v], kept));
        answer[v] = fma(row[v], set1(c[i]), answer[v]);
      }
      columns.store_all(state + i * op.head_dim, row);
    }
    columns.store_all(op.out + token * op.width() + at, answer);
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
    for_columns(op.head_dim, [&](auto columns, int col) {
      run_columns(op, int(i / op.n_heads), int(i % op.n_heads), columns, col);
    });
}

void gated_norm(const GatedNormOp& op, Worker worker) {
  const Range rows = share(*op.n_rows, worker);
  const int64_t part = op.width / op.n_groups;
  for (int64_t row = rows.begin; row < rows.end; row++) {
    float* x = op.x + row * op.width;
    const float* z = op.z + row * op.width;
    for (int64_t i = 0; i < op.width; i += LANES) {
      const int n = op.width - i < LANES ? int(op.width - i) : LANES;
      const Floats gate = load_some(z + i, n);
      store_some(x + i, mul(load_some(x + i, n), mul(gate, sigmoid(gate))), n);
    }
    if (op.gain)
      for (int64_t at = 0; at < op.width; at += part) norm_part(x + at, op.gain + at, part, op.eps);
  }
}

}  // namespace tahr::TAHR_ISA
