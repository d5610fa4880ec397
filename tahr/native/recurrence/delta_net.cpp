#include "delta_net.h"

#include <cmath>

#include "columns.h"
#include "softplus.h"
#include "vecmath.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int STRIP_TOKENS = 32;

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

// What a token brings along for one value head.
struct Token {
  float q[MAX_STATE_DIM], k[MAX_STATE_DIM];
  const float* v;
  float kept, beta;
};

static_assert(STRIP_TOKENS * sizeof(Token) <= WORKER_SCRATCH_BYTES);

// Some columns of a head's matrix: forget, see what the key recalls, learn the difference, answer the query.
template <int V>
TAHR_INLINE void learn(const Token& token, float* state, int k_dim, int v_dim, Columns<V> columns, int col, float* out) {
  const Floats kept = set1(token.kept), beta = set1(token.beta);
  Floats recalled[V], answer[V], row[V], delta[V];
  for (int v = 0; v < V; v++) recalled[v] = answer[v] = set1(0.0f);
  for (int i = 0; i < k_dim; i++) {
    columns.load_all(state + i * v_dim + col, row);
    for (int v = 0; v < V; v++) recalled[v] = fma(mul(row[v], kept), set1(token.k[i]), recalled[v]);
  }
  columns.load_all(token.v + col, delta);
  for (int v = 0; v < V; v++) delta[v] = mul(sub(delta[v], recalled[v]), beta);
  for (int i = 0; i < k_dim; i++) {
    columns.load_all(state + i * v_dim + col, row);
    for (int v = 0; v < V; v++) {
      row[v] = fma(delta[v], set1(token.k[i]), mul(row[v], kept));
      answer[v] = fma(row[v], set1(token.q[i]), answer[v]);
    }
    columns.store_all(state + i * v_dim + col, row);
  }
  columns.store_all(out + col, answer);
}

void gate(const DeltaNetOp& op, float* out, const float* z) {
  const Floats inverse = set1(1.0f / std::sqrt(sum_of_squares(out, op.v_dim) / float(op.v_dim) + op.eps));
  for (int i = 0; i < op.v_dim; i += LANES) {
    const int n = op.v_dim - i < LANES ? op.v_dim - i : LANES;
    const Floats gate = load_some(z + i, n), normed = mul(mul(load_some(out + i, n), inverse), load_some(op.gain + i, n));
    store_some(out + i, mul(normed, mul(gate, sigmoid(gate))), n);
  }
}

void prepare(const DeltaNetOp& op, int64_t row, int head, int k_head, Token& token) {
  const int64_t keys = int64_t{op.n_k_heads} * op.k_dim, at = row * op.n_v_heads + head;
  const float* mixed = op.mixed + row * op.channels();
  unit(mixed + k_head * op.k_dim, token.q, op.k_dim, 1.0f / std::sqrt(float(op.k_dim)));
  unit(mixed + keys + k_head * op.k_dim, token.k, op.k_dim, 1.0f);
  token.v = mixed + 2 * keys + head * op.v_dim;
  token.kept = std::exp(op.decay[head] * softplus(op.alpha[at] + op.dt_bias[head]));
  token.beta = 1.0f / (1.0f + std::exp(-op.beta[at]));
}

// Some tokens of one sequence, for one value head: each goes through all of them before the next columns are looked at,
// so that a strip of the matrix stays in the nearest cache meanwhile.
void run_tokens(const DeltaNetOp& op, int head, int64_t first, int n, const Token* tokens, float* state) {
  const int64_t values = int64_t{op.n_v_heads} * op.v_dim;
  float* out = op.out + first * values + int64_t{head} * op.v_dim;
  for_columns(op.v_dim, [&](auto columns, int col) {
    for (int t = 0; t < n; t++) learn(tokens[t], state, op.k_dim, op.v_dim, columns, col, out + t * values);
  });
  for (int t = 0; t < n; t++) gate(op, out + t * values, op.z + (first + t) * values + int64_t{head} * op.v_dim);
}

// All tokens of one sequence, for one value head.
void run_head(const DeltaNetOp& op, int seq, int head, Token* tokens) {
  const int k_head = op.tiled ? head % op.n_k_heads : head / (op.n_v_heads / op.n_k_heads);
  const int64_t size = int64_t{op.k_dim} * op.v_dim, end = op.seqs.end(seq);
  float* state = op.seqs.slot_of(seq) + op.matrices + head * size;
  if (op.seqs.is_new(seq))
    for (int64_t i = 0; i < size; i++) state[i] = 0;
  for (int64_t first = op.seqs.begin(seq); first < end; first += STRIP_TOKENS) {
    const int n = end - first < STRIP_TOKENS ? int(end - first) : STRIP_TOKENS;
    for (int t = 0; t < n; t++) prepare(op, first + t, head, k_head, tokens[t]);
    run_tokens(op, head, first, n, tokens, state);
  }
}

}  // namespace

void delta_rule(const DeltaNetOp& op, Worker worker) {
  const int64_t n = int64_t{op.seqs.n()} * op.n_v_heads;
  Token* tokens = reinterpret_cast<Token*>(worker.scratch);
  for (int64_t i = claim(worker); i < n; i = claim(worker))
    run_head(op, int(i / op.n_v_heads), int(i % op.n_v_heads), tokens);
}

}  // namespace tahr::TAHR_ISA
