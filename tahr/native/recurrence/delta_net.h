// The gated delta rule: a causal convolution over channels, then per value head a matrix that forgets and learns.
//
// A slot of the state holds the last `kernel - 1` inputs of every channel, oldest first, then a matrix [k_dim][v_dim] per
// value head. A sequence whose first token has position 0 starts from zeros.
#pragma once

#include <cstdint>

#include "worker.h"

namespace tahr {

constexpr int MAX_CONV_KERNEL = 8;
constexpr int MAX_STATE_DIM = 256;  // of a key or value head

struct DeltaNetOp {
  const int32_t* counts;     // n_tokens, n_rows, n_seqs
  const int32_t* positions;
  const int32_t* starts;     // of sequences, as rows of the step
  const int32_t* slots;      // of sequences
  int32_t n_k_heads, n_v_heads, k_dim, v_dim, kernel;
  bool tiled;                // value head h reads key head h % n_k_heads, else h / (n_v_heads / n_k_heads)
  const float* qkv;          // [n][2 * n_k_heads * k_dim + n_v_heads * v_dim]
  const float* z;            // [n][n_v_heads * v_dim]
  const float* beta;         // [n][n_v_heads], before its sigmoid
  const float* alpha;        // [n][n_v_heads]
  const float* conv;         // [kernel][channels]
  const float* decay;        // [n_v_heads]: the logarithm of what is kept is decay * softplus(alpha + dt_bias)
  const float* dt_bias;      // [n_v_heads]
  const float* gain;         // [v_dim], of the norm of each head of the result
  float eps;
  float* mixed;              // [n][channels]: what the convolution makes of qkv
  float* out;                // [n][n_v_heads * v_dim]
  float* state;              // [slots][state_width]
  int64_t state_width;

  int64_t channels() const { return 2 * int64_t{n_k_heads} * k_dim + int64_t{n_v_heads} * v_dim; }
};

}  // namespace tahr
