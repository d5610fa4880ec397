// Where one text stands in its grammar, and what following it has cost.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "grammar_index.h"

namespace tahr {

// Computing time that a request may take for its grammar: in one step, for every token, and beyond that altogether. What
// cheap tokens leave is not saved for costly ones, because an ambiguous grammar becomes costlier with every token.
struct MatchingBudget {
  std::chrono::nanoseconds step, token, beyond;
  int64_t n_between;  // tokens of a grammar between two over-long steps, of which the first then is no cost
};

// The over-long steps of one grammar, whoever follows it. Clocks of a virtual machine go on while it stands still, so a
// single one does not count.
class LongSteps {
 public:
  // One more; whether it counts.
  bool add(const MatchingBudget& budget);
  void add_token() { n_tokens_.fetch_add(1, std::memory_order_relaxed); }
  int64_t count() const { return n_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> n_{0}, n_tokens_{0};  // n_tokens_: since the last one
};

// What a request has taken beyond what its tokens allow; its choices and the copies that drafts are checked with add to it.
class MatchingCost {
 public:
  explicit MatchingCost(std::shared_ptr<LongSteps> long_steps) : long_steps_(std::move(long_steps)) {}
  void add(std::chrono::nanoseconds spent, const MatchingBudget& budget);
  void add_token(const MatchingBudget& budget);
  bool is_over() const { return is_over_.load(std::memory_order_relaxed); }
  const std::shared_ptr<LongSteps>& long_steps() const { return long_steps_; }

 private:
  const std::shared_ptr<LongSteps> long_steps_;
  std::mutex lock_;
  std::chrono::nanoseconds beyond_{0};
  std::atomic<bool> is_over_{false};
};

class GrammarMatcher {
 public:
  // At the beginning of a grammar; one that does not compile has an error.
  GrammarMatcher(std::shared_ptr<const GrammarIndex> index, const std::string& grammar, const LlgLimits& limits,
                 const MatchingBudget& budget);
  // The copy has a lexer of its own, and is another request's or the same one's.
  GrammarMatcher(const GrammarMatcher& other, bool is_same_request);
  GrammarMatcher(const GrammarMatcher&) = delete;
  ~GrammarMatcher() { api().free_matcher(inner_); }
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;

  bool consume(uint32_t token);  // false: the grammar forbids the token, or cannot go on
  bool rollback(size_t n_tokens);
  bool reset();  // to the beginning; false if it cannot be trusted to be as new
  Tokens forced();
  bool fill(uint32_t* mask);
  bool is_error() const { return cost_->is_over() || api().is_error(inner_); }
  bool is_over_budget() const { return cost_->is_over(); }
  int64_t n_long_steps() const { return cost_->long_steps()->count(); }  // of its grammar
  std::string error();
  size_t mask_bytes() const { return index_->mask_bytes(); }

  bool finished() const { return finished_; }  // the text is complete and nothing can follow
  size_t n_consumed() const { return n_consumed_; }
  int64_t n_seen() const { return n_seen_; }   // tokens that it and those it was copied from have consumed

  // What a job keeps here. A busy matcher belongs to the job's threads.
  std::atomic<bool> busy{false};
  std::atomic<bool> awaits_token{false};
  bool needs_mask = true;

 private:
  template <class Work>
  auto measured(Work work);
  const Llguidance& api() const { return index_->api(); }

  const std::shared_ptr<const GrammarIndex> index_;
  const MatchingBudget budget_;
  const std::shared_ptr<MatchingCost> cost_;
  LlgMatcher* inner_;
  bool finished_;
  bool took_end_ = false;
  size_t n_consumed_ = 0;
  int64_t n_seen_ = 0;
};

}  // namespace tahr
