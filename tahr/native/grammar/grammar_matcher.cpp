#include "grammar_matcher.h"

#include <new>

namespace tahr {

namespace {

LlgMatcher* made(LlgMatcher* matcher) {
  if (!matcher) throw std::bad_alloc();
  return matcher;
}

LlgMatcher* compiled(const GrammarIndex& index, const std::string& grammar, const LlgLimits& limits) {
  LlgMatcherInit init{};
  index.api().set_defaults(&init, index.tokenizer());
  init.log_buffer_level = init.log_stderr_level = 0;
  init.limits = limits;
  return made(index.api().new_matcher(&init, "llguidance", grammar.c_str()));
}

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const GrammarIndex> index, const std::string& grammar, const LlgLimits& limits)
    : index_(std::move(index)), inner_(compiled(*index_, grammar, limits)), finished_(api().is_stopped(inner_)) {}

GrammarMatcher::GrammarMatcher(const GrammarMatcher& other)
    : index_(other.index_),
      inner_(made(other.api().clone_matcher(other.inner_))),
      finished_(other.finished_),
      took_end_(other.took_end_),
      n_consumed_(other.n_consumed_),
      n_seen_(other.n_seen_) {}

bool GrammarMatcher::consume(uint32_t token) {
  took_end_ |= index_->is_end(token);
  const bool is_allowed = api().consume_token(inner_, token) == 0;
  n_consumed_ += is_allowed;
  n_seen_ += is_allowed;
  finished_ = api().is_stopped(inner_);
  return is_allowed;
}

bool GrammarMatcher::rollback(size_t n_tokens) {
  const bool is_done = api().rollback(inner_, n_tokens) == 0;
  if (is_done) n_consumed_ -= n_tokens;
  finished_ = api().is_stopped(inner_);
  return is_done;
}

bool GrammarMatcher::reset() {
  if (took_end_ || is_error() || api().reset(inner_) != 0) return false;
  n_consumed_ = 0;
  finished_ = api().is_stopped(inner_);
  return true;
}

Tokens GrammarMatcher::forced() {
  Tokens found(32);
  for (;;) {
    const int32_t n = api().compute_ff_tokens(inner_, found.data(), found.size());
    if (n < int32_t(found.size())) {
      found.resize(n > 0 ? size_t(n) : 0);
      return found;
    }
    found.resize(found.size() * 8);  // there may be more than fit
  }
}

bool GrammarMatcher::fill(uint32_t* mask) { return api().compute_mask_into(inner_, mask, mask_bytes()) == 0; }

std::string GrammarMatcher::error() {
  const char* text = api().get_error(inner_);
  return text ? text : "";
}

}  // namespace tahr
