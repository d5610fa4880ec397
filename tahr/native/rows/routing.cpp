#include "routing.h"

#include <cmath>

namespace tahr::TAHR_ISA {

namespace {

void softmax(const float* scores, float* p, int n) {
  float top = scores[0], sum = 0;
  for (int i = 1; i < n; i++) top = scores[i] > top ? scores[i] : top;
  for (int i = 0; i < n; i++) sum += p[i] = std::exp(scores[i] - top);
  for (int i = 0; i < n; i++) p[i] /= sum;
}

// The first of the largest.
int best(const float* scores, int n) {
  int at = 0;
  for (int i = 1; i < n; i++)
    if (scores[i] > scores[at]) at = i;
  return at;
}

// What the experts of a group are worth together.
float worth(const float* scores, int n, int n_top) {
  float first = -INFINITY, second = -INFINITY;
  for (int i = 0; i < n; i++) {
    if (scores[i] > first) second = first, first = scores[i];
    else if (scores[i] > second) second = scores[i];
  }
  return n_top > 1 && n > 1 ? first + second : first;
}

// Hides the experts of all but the best groups.
void keep_best_groups(const RouteOp& op, float* scores, float* worths) {
  const int size = op.n_experts / op.n_groups;
  for (int g = 0; g < op.n_groups; g++) worths[g] = worth(scores + g * size, size, op.group_top);
  for (int i = 0; i < op.n_best_groups; i++) worths[best(worths, op.n_groups)] = -INFINITY;
  for (int g = 0; g < op.n_groups; g++)
    if (worths[g] != -INFINITY)
      for (int i = 0; i < size; i++) scores[g * size + i] = -INFINITY;
}

void mix_sparsely(const RouteOp& op, const float* scores, float* left, int32_t* experts, float* shares) {
  for (int i = 0; i < op.n_experts; i++) left[i] = scores[i];
  for (int slot = 0; slot < op.n_active; slot++) {
    const int chosen = best(left, op.n_experts);
    const float top = left[chosen];
    float sum = 0;
    for (int i = 0; i < op.n_experts; i++) {
      const float size = std::fabs(scores[i]) > top ? std::fabs(scores[i]) : top;
      if ((top - scores[i]) / size <= 2 * op.jitter) sum += std::exp(left[i] - top);
    }
    experts[slot] = chosen;
    shares[slot] = 1.0f / sum;
    left[chosen] = -INFINITY;
  }
}

void route_row(const RouteOp& op, int64_t row, float* left, float* p) {
  const float* scores = op.scores + row * op.n_experts;
  int32_t* experts = op.experts + row * op.n_active;
  float* shares = op.shares + row * op.n_active;
  if (op.jitter > 0) return mix_sparsely(op, scores, left, experts, shares);
  if (op.sigmoid)
    for (int i = 0; i < op.n_experts; i++) p[i] = 1.0f / (1.0f + std::exp(-scores[i]));
  else softmax(scores, p, op.n_experts);
  const bool adds_up = op.n_groups && op.group_top > 1;  // sums of scores are ordered otherwise than those of shares
  for (int i = 0; i < op.n_experts; i++) left[i] = op.bias ? p[i] + op.bias[i] : adds_up ? p[i] : scores[i];
  if (op.n_groups) keep_best_groups(op, left, p + op.n_experts);
  float total = 0;
  for (int i = 0; i < op.n_active; i++) {
    experts[i] = best(left, op.n_experts);
    left[experts[i]] = -INFINITY;
    total += shares[i] = p[experts[i]];
  }
  if (op.renormalise)
    for (int i = 0; i < op.n_active; i++) shares[i] /= total;
  if (op.scale != 1.0f)
    for (int i = 0; i < op.n_active; i++) shares[i] *= op.scale;
  if (op.factors)
    for (int i = 0; i < op.n_active; i++) shares[i] *= op.factors[experts[i]];
}

}  // namespace

void route(const RouteOp& op, Worker worker) {
  const Range rows = share(*op.n_rows, worker);
  float* left = reinterpret_cast<float*>(worker.scratch);
  for (int64_t row = rows.begin; row < rows.end; row++) route_row(op, row, left, left + op.n_experts);
}

void mix(const MixOp& op, Worker worker) {
  const Range rows = share(*op.n_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    float* out = op.out + row * op.width;
    for (int64_t i = 0; i < op.width; i++) out[i] = 0;
    for (int slot = 0; slot < op.n_active; slot++) {
      const float weight = op.shares[row * op.n_active + slot];
      const float* x = op.x + (row * op.n_active + slot) * op.width;
      for (int64_t i = 0; i < op.width; i++) out[i] += weight * x[i];
    }
  }
}

}  // namespace tahr::TAHR_ISA
