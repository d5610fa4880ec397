#include "sampling_rows.h"

#include <algorithm>

namespace tahr::TAHR_ISA {

Row::Row(const float* logits, int n, std::vector<float>& block_max) : logits(logits), n(n), block_max(block_max) {
  block_max.resize(size_t((n + BLOCK - 1) / BLOCK));
  const Floats lowest = set1(LOWEST), zero = set1(0.0f);
  Floats odd = zero;  // becomes NaN with the first NaN or +inf; -inf is a number here
  for (size_t b = 0; b < block_max.size(); b++) {
    const float* const x = logits + b * BLOCK;
    const int width = std::min(BLOCK, n - int(b) * BLOCK);
    Floats most = set1(-INFINITY);
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
      const Floats v = load(x + i);
      most = max(most, v);
      odd = fma(max(lowest, v), zero, odd);  // in this order NaN stays NaN
    }
    float best = max_lane(most);
    for (; i < width; i++) {
      best = std::max(best, x[i]);
      numbers = numbers && x[i] < INFINITY;
    }
    block_max[b] = best;
  }
  numbers = numbers && sum(odd) == 0;
  if (!numbers) return;
  const auto block = std::max_element(block_max.begin(), block_max.end());
  top = *block;
  best = int(block - block_max.begin()) * BLOCK;
  while (logits[best] != top) best++;
}

// A logit that at least `nth` tokens reach, and not many more: each of so many blocks has one. -inf with fewer blocks.
float Row::nth_block(int nth, std::vector<float>& scratch) const {
  if (block_max.size() <= size_t(nth)) return -INFINITY;
  scratch = block_max;
  std::nth_element(scratch.begin(), scratch.begin() + (nth - 1), scratch.end(), std::greater<float>());
  return scratch[size_t(nth - 1)];
}

float Row::lowest() const {
  float least = top;
  for (int i = 0; i < n; i++) least = logits[i] >= LOWEST && logits[i] < least ? logits[i] : least;
  return least;
}

double total_weight(const Row& row, double temperature, std::vector<float>& columns) {
  return folded_sum(row, columns, WeightAt(row.top, temperature));
}

double weight_below(const Row& row, float base, double temperature, std::vector<float>& columns) {
  const WeightAt weight(base, temperature);
  return folded_sum(row, columns, [&](Floats x) { return weight(min(set1(base), x)); });
}

double mean_depth_times_total(const Row& row, std::vector<float>& columns) {
  const WeightAt weight(row.top, 1.0);
  const Floats top = set1(row.top), deepest = set1(float(DEEPEST));
  return folded_sum(row, columns, [&](Floats x) { return mul(weight(x), min(deepest, sub(top, x))); });
}

// The standard deviation of the logits, banned tokens left out.
double sigma(const Row& row, std::vector<float>& columns) {
  const int n_columns = row.columns();
  const float top = row.top;
  const auto sum_of = [&](auto f) {
    columns.assign(size_t(n_columns), 0.0f);
    float* __restrict const sums = columns.data();
    for (int begin = 0; begin < row.n; begin += n_columns) {
      const int width = std::min(n_columns, row.n - begin);
      const float* __restrict const x = row.logits + begin;
      for (int c = 0; c < width; c++) sums[c] += x[c] < LOWEST ? 0.0f : f(x[c] - top);
    }
    double total = 0;
    for (float sum : columns) total += sum;
    return total;
  };
  int n_banned = 0;
  for (int i = 0; i < row.n; i++) n_banned += row.logits[i] < LOWEST;
  const double count = row.n - n_banned;
  const float mean = float(sum_of([](float depth) { return depth; }) / count);
  return std::sqrt(sum_of([mean](float depth) { return (depth - mean) * (depth - mean); }) / count);
}

// A token by its weight among all: first its column, then its fold.
int draw_from_all(const Row& row, double temperature, double uniform_number, std::vector<float>& columns) {
  const double target = uniform_number * total_weight(row, temperature, columns);
  const int n_columns = row.columns();
  double before = 0;
  int column = 0;
  while (column + 1 < n_columns && before + columns[size_t(column)] <= target) before += columns[size_t(column++)];
  const WeightAt weight(row.top, temperature);
  int token = row.best;
  for (int i = column; i < row.n; i += n_columns) {
    if (row.logits[i] < LOWEST) continue;
    float lanes[LANES];
    store(lanes, weight(set1(row.logits[i])));
    before += lanes[0];
    token = i;
    if (before > target) break;
  }
  return token;
}

}  // namespace tahr::TAHR_ISA
