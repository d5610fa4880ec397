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

void route_row(const RouteOp& op, int64_t row, float* left, float* p) {
  const float* scores = op.scores + row * op.n_experts;
  int32_t* experts = op.experts + row * op.n_active;
  float* shares = op.shares + row * op.n_active;
  softmax(scores, p, op.n_experts);
  for (int i = 0; i < op.n_experts; i++) left[i] = scores[i];
  float total = 0;
  for (int i = 0; i < op.n_active; i++) {
    experts[i] = best(left, op.n_experts);
    left[experts[i]] = -INFINITY;
    total += shares[i] = p[experts[i]];
  }
  if (!op.renormalise) return;
  for (int i = 0; i < op.n_active; i++) shares[i] /= total;
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
