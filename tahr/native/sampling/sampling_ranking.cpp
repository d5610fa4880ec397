#include "sampling_ranking.h"

#include <algorithm>
#include <cmath>

namespace tahr::TAHR_ISA {

namespace {

// Adding 0 makes -0 a 0, as they are equal.
inline uint64_t key_of(float logit, int id) {
  const float sum = logit + 0.0f;
  uint32_t bits;
  memcpy(&bits, &sum, sizeof bits);
  const uint32_t falling = bits >> 31 ? bits : bits ^ 0x7fffffffu;
  return uint64_t{falling} << 32 | uint32_t(id);
}

inline float logit_of(uint64_t key) {
  const uint32_t falling = uint32_t(key >> 32), bits = falling >> 31 ? falling : falling ^ 0x7fffffffu;
  float logit;
  memcpy(&logit, &bits, sizeof logit);
  return logit;
}

}  // namespace

// ---- making the list ----

void Ranking::list(const Row& row, float floor) {
  top_ = row.top;
  reach_ = row.depth(floor);
  scale_ = reach_ > 0 ? float(N_BUCKETS / reach_) : 0.0f;
  if (ids_.size() < size_t(row.n) + 1) {
    ids_.resize(size_t(row.n) + 1);
    logits_.resize(size_t(row.n) + 1);
    weights_.resize(size_t(row.n) + 1);
    buckets_.resize(size_t(row.n) + 1);
  }
  find(row, floor);
  count();
}

void Ranking::find(const Row& row, float floor) {
  int32_t* const ids = ids_.data();
  float* const logits = logits_.data();
  int n = 0;
  for (size_t b = 0; b < row.block_max.size(); b++) {
    if (row.block_max[b] < floor) continue;
    const int end = std::min(row.n, int(b + 1) * BLOCK);
    for (int i = int(b) * BLOCK; i < end; i++) {
      ids[n] = i;  // written in any case and kept if it counts: guessing would cost more
      logits[n] = row.logits[i];
      n += row.logits[i] >= floor;
    }
  }
  n_ = n;
}

int Ranking::bucket_of(float logit) const {
  const float at = (top_ - logit) * scale_;
  return int(at < float(N_BUCKETS - 1) ? at : float(N_BUCKETS - 1));
}

void Ranking::count() {
  for (int i = 0; i < n_; i++) buckets_[size_t(i)] = uint16_t(bucket_of(logits_[size_t(i)]));
  std::fill(begins_, begins_ + N_BUCKETS + 1, 0);
  for (int i = 0; i < n_; i++) begins_[buckets_[size_t(i)]]++;
  int end = 0;
  for (int& begin : begins_) {
    const int n = begin;
    begin = end;
    end += n;
  }
  std::fill(ordered_at_, ordered_at_ + N_BUCKETS, -1);
  ordered_.clear();
}

void Ranking::set_temperature(double temperature, int first) {
  temperature_ = temperature;
  first_ = first > 0 ? key(first) : 0;
  base_ = first > 0 ? logit_of(first_) : top_;
  const WeightAt weight(base_, temperature);
  for (int i = 0; i < n_; i += LANES)  // past the end there is room for a few more, or there are few
    if (i + LANES <= n_)
      store(&weights_[size_t(i)], weight(load(&logits_[size_t(i)])));
    else
      store_part(&weights_[size_t(i)], weight(load_part(&logits_[size_t(i)], n_ - i)), n_ - i);
  for (int i = 0; first > 0 && i < n_; i++)
    if (key_of(logits_[size_t(i)], ids_[size_t(i)]) < first_) weights_[size_t(i)] = 0;
  std::fill(sums_, sums_ + N_BUCKETS + 1, 0.0);
  for (int i = 0; i < n_; i++) sums_[buckets_[size_t(i)]] += weights_[size_t(i)];
  double before = 0;
  for (double& sum : sums_) {
    const double weight_here = sum;
    sum = before;
    before += weight_here;
  }
}

// ---- looking at it ----

// The keys of a bucket in order.
const uint64_t* Ranking::look_into(int bucket) {
  if (ordered_at_[bucket] < 0) {
    ordered_at_[bucket] = int(ordered_.size());
    constexpr int CHUNK = 64;
    for (int begin = 0; begin < n_; begin += CHUNK) {
      const int end = std::min(begin + CHUNK, n_);
      int n_here = 0;
      for (int i = begin; i < end; i++) n_here += buckets_[size_t(i)] == bucket;
      for (int i = begin; n_here > 0; i++)
        if (buckets_[size_t(i)] == bucket) {
          ordered_.push_back(key_of(logits_[size_t(i)], ids_[size_t(i)]));
          n_here--;
        }
    }
    std::sort(ordered_.begin() + ordered_at_[bucket], ordered_.end());
  }
  return ordered_.data() + ordered_at_[bucket];
}

int Ranking::bucket_at(int rank) const {
  return int(std::upper_bound(begins_, begins_ + N_BUCKETS + 1, rank) - begins_) - 1;
}

uint64_t Ranking::key(int rank) {
  const int bucket = bucket_at(rank);
  return look_into(bucket)[rank - begins_[bucket]];
}

float Ranking::weigh(uint64_t key) const {
  if (key < first_) return 0;
  float lanes[LANES];
  store(lanes, WeightAt(base_, temperature_)(set1(logit_of(key))));
  return lanes[0];
}

double Ranking::depth(int rank) { return double(top_) - double(logit_of(key(rank))); }

double Ranking::weight(int rank) { return weigh(key(rank)); }

// The lowest logit that lies at most so deep.
float Ranking::least_logit(double depth) const {
  const float near = float(double(top_) - depth);
  return double(top_) - double(near) > depth ? std::nextafter(near, INFINITY) : near;
}

// Buckets before the one with the border lie within, those after it do not.
Ranking::Part Ranking::at_least_within(double depth) const {
  if (!(depth >= 0)) return {0, 0};
  if (depth >= reach_) return {n_, sums_[N_BUCKETS]};
  const int bucket = bucket_of(least_logit(depth));
  return {begins_[bucket], sums_[bucket]};
}

Ranking::Part Ranking::at_most_within(double depth) const {
  if (!(depth >= 0)) return {0, 0};
  if (depth >= reach_) return {n_, sums_[N_BUCKETS]};
  const int bucket = bucket_of(least_logit(depth));
  return {begins_[bucket + 1], sums_[bucket + 1]};
}

Ranking::Part Ranking::within(double depth) {
  Part part = at_least_within(depth);
  const int end = at_most_within(depth).n;
  if (part.n == end) return part;
  const float least = least_logit(depth);
  const uint64_t* keys = look_into(bucket_of(least));
  for (; part.n < end && logit_of(*keys) >= least; part.n++) part.weight += weigh(*keys++);
  return part;
}

double Ranking::before(int rank) {
  if (rank >= n_) return sums_[N_BUCKETS];
  const int bucket = bucket_at(rank);
  double sum = sums_[bucket];
  if (rank == begins_[bucket]) return sum;
  const uint64_t* keys = look_into(bucket);
  for (int i = begins_[bucket]; i < rank; i++) sum += weigh(*keys++);
  return sum;
}

int Ranking::reaching(double wanted) {
  const int bucket = int(std::lower_bound(sums_, sums_ + N_BUCKETS + 1, wanted) - sums_) - 1;
  if (bucket < 0) return 0;
  if (bucket == N_BUCKETS) return n_ + 1;
  const uint64_t* keys = look_into(bucket);
  double sum = sums_[bucket];
  int rank = begins_[bucket];
  for (; rank < begins_[bucket + 1] && sum < wanted; rank++) sum += weigh(*keys++);
  return rank;
}

int Ranking::passing(double wanted) {
  const int bucket = int(std::upper_bound(sums_, sums_ + N_BUCKETS + 1, wanted) - sums_) - 1;
  if (bucket == N_BUCKETS) return n_;
  const uint64_t* keys = look_into(bucket);
  double sum = sums_[bucket];
  int rank = begins_[bucket];
  for (; rank + 1 < begins_[bucket + 1] && (sum += weigh(*keys++)) <= wanted;) rank++;
  return rank;
}

double Ranking::moment(int begin, int end) {
  if (begin >= end) return 0;
  const int first = bucket_at(begin), last = bucket_at(end - 1);
  constexpr int N_SUMS = 8;  // side by side, so that no addition waits for the one before it
  double sums[N_SUMS] = {};
  for (int i = 0; i < n_; i += N_SUMS)
    for (int k = 0; k < N_SUMS && i + k < n_; k++) {
      const size_t at = size_t(i + k);
      const bool between = buckets_[at] > first && buckets_[at] < last;
      sums[k] += between ? weights_[at] * std::min(float(DEEPEST), top_ - logits_[at]) : 0.0f;
    }
  double sum = 0;
  for (double part : sums) sum += part;
  for (int bucket : {first, last}) {
    const uint64_t* const keys = look_into(bucket);
    const int from = std::max(begin, begins_[bucket]), to = std::min(end, begins_[bucket + 1]);
    for (int rank = from; rank < to; rank++) {
      const uint64_t key = keys[rank - begins_[bucket]];
      sum += weigh(key) * std::min(DEEPEST, double(top_) - double(logit_of(key)));
    }
    if (first == last) break;
  }
  return sum;
}

}  // namespace tahr::TAHR_ISA
