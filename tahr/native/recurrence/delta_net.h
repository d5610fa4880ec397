// The gated delta rule, after a causal convolution over channels: per value head a matrix that forgets and learns.
//
// After the inputs of the convolution, a slot of the state holds a matrix [k_dim][v_dim] per value head.
#pragma once

#include "sequences.h"
#include "worker.h"

namespace tahr {

constexpr int MAX_STATE_DIM = 256;  // of a key or value head

struct DeltaNetOp {
  StateSequences seqs;
  int32_t n_k_heads, n_v_heads, k_dim, v_dim;
  bool tiled;            // value head h reads key head h % n_k_heads, else h / (n_v_heads / n_k_heads)
  int64_t matrices;      // where in a slot they begin
  const float* mixed;    // [n][channels]: queries, keys and values, as the convolution made them
  const float* z;        // [n][n_v_heads * v_dim]
  const float* beta;     // [n][n_v_heads], before its sigmoid
  const float* alpha;    // [n][n_v_heads]
  const float* decay;    // [n_v_heads]: the logarithm of what is kept is decay * softplus(alpha + dt_bias)
  const float* dt_bias;  // [n_v_heads]
  const float* gain;     // [v_dim], of the norm of each head of the result
  float eps;
  float* out;            // [n][n_v_heads * v_dim]

  int64_t channels() const { return 2 * int64_t{n_k_heads} * k_dim + int64_t{n_v_heads} * v_dim; }
};

}  // namespace tahr
