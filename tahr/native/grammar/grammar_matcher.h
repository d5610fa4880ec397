// Where one text stands in its grammar.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "grammar_index.h"

namespace tahr {

class GrammarMatcher {
 public:
  // At the beginning of a grammar; one that does not compile has an error.
  GrammarMatcher(std::shared_ptr<const GrammarIndex> index, const std::string& grammar, const LlgLimits& limits);
  GrammarMatcher(const GrammarMatcher& other);  // the copy has a lexer of its own
  ~GrammarMatcher() { api().free_matcher(inner_); }
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;

  bool consume(uint32_t token);  // false: the grammar forbids the token, or cannot go on
  bool rollback(size_t n_tokens);
  bool reset();  // to the beginning; false if it cannot be trusted to be as new
  Tokens forced();
  bool fill(uint32_t* mask);
  bool is_error() const { return api().is_error(inner_); }
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
  const Llguidance& api() const { return index_->api(); }

  const std::shared_ptr<const GrammarIndex> index_;
  LlgMatcher* inner_;
  bool finished_;
  bool took_end_ = false;
  size_t n_consumed_ = 0;
  int64_t n_seen_ = 0;
};

}  // namespace tahr
