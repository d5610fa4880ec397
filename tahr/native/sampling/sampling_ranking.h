// The best tokens of a row, in order.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling_rows.h"

namespace tahr::TAHR_ISA {

// The tokens from the best down to a floor, counted and weighed in buckets by depth. A bucket is put in order when a border
// falls into it, so that a choice among a hundred thousand tokens sorts a few hundred. Ranks count from 0, ties go to the
// lower id.
class Ranking {
 public:
  void list(const Row& row, float floor);  // at least LOWEST and at most the top
  // What weights and sums are about from now on. Ranks before `first` weigh nothing, and that rank weighs 1: beside the best of
  // all, which may be out of play, what is left could weigh too little to be told apart.
  void set_temperature(double temperature, int first = 0);

  int size() const { return n_; }
  double reach() const { return reach_; }  // tokens deeper than this are not listed
  float base() const { return base_; }     // the logit that weighs 1
  double base_depth() const { return double(top_) - double(base_); }
  int32_t token(int rank) { return int32_t(key(rank)); }
  double depth(int rank);
  double weight(int rank);

  struct Part {
    int n;
    double weight;
  };
  Part within(double depth);  // the tokens that lie at most so deep
  Part at_least_within(double depth) const;  // the same but for some in the bucket where the border is: quick
  Part at_most_within(double depth) const;
  double before(int rank);   // weight of the tokens before that rank
  int reaching(double sum);  // the first rank that such a sum stands before; size() + 1 if none does
  int passing(double sum);   // the first rank whose token takes the sum above that; size() if none does
  double moment(int begin, int end);  // the sum of weight times depth

 private:
  static constexpr int N_BUCKETS = 1024;

  int bucket_of(float logit) const;
  int bucket_at(int rank) const;
  float least_logit(double depth) const;
  void find(const Row& row, float floor);
  void count();
  const uint64_t* look_into(int bucket);
  uint64_t key(int rank);
  float weigh(uint64_t key) const;

  int n_ = 0;
  float top_ = 0, scale_ = 0, base_ = 0;
  uint64_t first_ = 0;  // the key of the first token with a weight
  double reach_ = 0, temperature_ = 1;
  // As they come. Room that only grows: the first n_ entries count.
  std::vector<int32_t> ids_;
  std::vector<float> logits_, weights_;
  std::vector<uint16_t> buckets_;
  int begins_[N_BUCKETS + 1];   // the first rank in each bucket
  double sums_[N_BUCKETS + 1];  // weight before each bucket
  int ordered_at_[N_BUCKETS];   // where in ordered_ a bucket begins; -1: it is not in order yet
  std::vector<uint64_t> ordered_;  // falling logit, then rising id
};

}  // namespace tahr::TAHR_ISA
