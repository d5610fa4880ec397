// Which experts a token goes to, and the sum of what they return.
#pragma once

#include <cstdint>

#include "worker.h"

namespace tahr {

constexpr int MAX_EXPERTS = int(WORKER_SCRATCH_BYTES / (3 * sizeof(float)));

// Softmax or sigmoid of the scores, then the best `n_active` by falling score, equal scores to the lower index. `bias`
// counts for the choice alone. With `n_groups`, only the experts of the `n_best_groups` are to choose from; a group is worth
// the sum of its `group_top` best. Shares are multiplied by `scale` in the end. With a `jitter`, experts are chosen one after
// the other instead, and the share of each is a softmax over itself and those left that are nearly as good.
struct RouteOp {
  const int32_t* n_rows;
  const float* scores;  // [n][n_experts]
  int32_t n_experts;
  int32_t n_active;
  bool renormalise;
  bool sigmoid;
  const float* bias;  // [n_experts], or null
  int32_t n_groups;   // 0: none
  int32_t n_best_groups;
  int32_t group_top;
  float scale;
  float jitter;  // 0: none
  const float* factors;  // [n_experts] of the shares, or null
  int32_t* experts;  // [n][n_active]
  float* shares;     // [n][n_active]
};

// out[i] = sum over slots of shares[i][slot] * x[i * n_active + slot], in order of slots.
struct MixOp {
  const int32_t* n_rows;
  int64_t width;
  int32_t n_active;
  const float* shares;
  const float* x;  // [n * n_active][width]
  float* out;
};

}  // namespace tahr
