// A causal convolution of every channel by itself, then SiLU. A slot of the state begins with the last `kernel - 1` inputs of
// every channel, oldest first.
#pragma once

#include "sequences.h"
#include "worker.h"

namespace tahr {

constexpr int MAX_CONV_KERNEL = 8;

struct CausalConvOp {
  StateSequences seqs;
  int64_t channels;
  int32_t kernel;
  const float* x;     // [n][channels]
  const float* conv;  // [kernel][channels]
  const float* bias;  // [channels], or null
  float* out;         // [n][channels]
};

}  // namespace tahr
