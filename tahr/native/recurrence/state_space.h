// The selective state space of Mamba-2: per head a matrix that decays and takes in the token, read by a vector of the token.
//
// After the inputs of the convolution, a slot of the state holds a matrix [state_dim][head_dim] per head.
#pragma once

#include "sequences.h"
#include "worker.h"

namespace tahr {

struct StateSpaceOp {
  StateSequences seqs;
  int32_t n_heads, head_dim, n_groups, state_dim;
  int64_t matrices;      // where in a slot they begin
  const float* mixed;    // [n][n_heads * head_dim | n_groups * state_dim | n_groups * state_dim]: x, B and C of every token
  const float* dt;       // [n][n_heads]
  const float* decay;    // [n_heads], below zero
  const float* dt_bias;  // [n_heads]
  const float* skip;     // [n_heads]: how much of x goes on to the result
  float* out;            // [n][n_heads * head_dim]

  int64_t width() const { return int64_t{n_heads} * head_dim; }
  int64_t channels() const { return width() + 2 * int64_t{n_groups} * state_dim; }
};

// x = x * silu(z); with a gain, each of `n_groups` equal parts of a row is then RMS-normed.
struct GatedNormOp {
  const int32_t* n_rows;
  int64_t width;
  int32_t n_groups;
  const float* z;
  const float* gain;  // [width], or null
  float eps;
  float* x;
};

}  // namespace tahr
