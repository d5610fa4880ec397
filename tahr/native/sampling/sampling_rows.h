// Passes over one whole row of logits.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <vector>

#include "vecmath.h"

namespace tahr::TAHR_ISA {

constexpr int BLOCK = 64;         // tokens whose maximum is known
constexpr int FOLDS = 64;         // a row is folded this many times; its sums run down the folds first
constexpr float LOWEST = -FLT_MAX;  // what a token must have to be pickable at all: -inf is a ban

constexpr double DEEPEST = 1e4;     // a weight that is as good as 0 times infinity would not be the 0 that is meant

// A row and what one look at it tells.
struct Row {
  const float* logits;
  int n;
  std::vector<float>& block_max;  // of each BLOCK tokens: blocks below a floor are not read again
  float top = -INFINITY;
  int best = 0;  // the first of the best
  bool numbers = true;

  Row(const float* logits, int n, std::vector<float>& block_max);
  int columns() const { return (n + FOLDS - 1) / FOLDS; }
  double depth(float logit) const { return double(top) - double(logit); }  // below the best
  float nth_block(int nth, std::vector<float>& scratch) const;
  float lowest() const;
};

// columns[c] = the sum of f over the tokens c, c + n_columns, c + 2 n_columns, ... in that order.
template <class F>
inline double folded_sum(const Row& row, std::vector<float>& columns, F f) {
  const int n_columns = row.columns();
  columns.assign(size_t(n_columns), 0.0f);
  float* const sums = columns.data();
  for (int begin = 0; begin < row.n; begin += n_columns) {
    const int width = begin + n_columns <= row.n ? n_columns : row.n - begin;
    const float* const x = row.logits + begin;
    int c = 0;
    for (; c + LANES <= width; c += LANES) store(sums + c, add(load(sums + c), f(load(x + c))));
    if (c < width) store_part(sums + c, add(load_part(sums + c, width - c), f(load_part(x + c, width - c))), width - c);
  }
  double total = 0;
  for (float sum : columns) total += sum;
  return total;
}

// The weight of a logit: 1 for the best.
struct WeightAt {
  Floats top, inverse;

  WeightAt(float top, double temperature)
      // Beyond 1e30 the quotient no longer fits a float, and all but the best weigh nothing long before.
      : top(set1(top)), inverse(set1(float(1 / temperature < 1e30 ? 1 / temperature : 1e30))) {}
  inline __attribute__((always_inline)) Floats operator()(Floats logit) const { return exp(mul(sub(logit, top), inverse)); }
};

double total_weight(const Row& row, double temperature, std::vector<float>& columns);
// The same with `base` in place of the best: tokens above it have a weight of 1 like itself.
double weight_below(const Row& row, float base, double temperature, std::vector<float>& columns);
double mean_depth_times_total(const Row& row, std::vector<float>& columns);
double sigma(const Row& row, std::vector<float>& columns);
int draw_from_all(const Row& row, double temperature, double uniform_number, std::vector<float>& columns);

}  // namespace tahr::TAHR_ISA
