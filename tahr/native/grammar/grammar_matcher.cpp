#include "grammar_matcher.h"

#include <time.h>

#include <algorithm>
#include <new>

namespace tahr {

namespace {

using std::chrono::nanoseconds;

// Of this thread: what others do meanwhile is not the grammar's cost.
nanoseconds computed() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
}

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

bool LongSteps::add(const MatchingBudget& budget) {
  const int64_t n_tokens = n_tokens_.exchange(0, std::memory_order_relaxed);
  return n_.fetch_add(1, std::memory_order_relaxed) > 0 && n_tokens < budget.n_between;
}

void MatchingCost::add(nanoseconds spent, const MatchingBudget& budget) {
  const bool is_long = spent > budget.step;
  if (is_long && !long_steps_->add(budget)) return;
  std::lock_guard<std::mutex> lock(lock_);
  beyond_ += spent;
  if (is_long || beyond_ > budget.beyond) is_over_.store(true, std::memory_order_relaxed);
}

void MatchingCost::add_token(const MatchingBudget& budget) {
  std::lock_guard<std::mutex> lock(lock_);
  beyond_ = std::max(nanoseconds(0), beyond_ - budget.token);
  long_steps_->add_token();
}

// What it computes is the request's cost; nothing once that is too much.
template <class Work>
auto GrammarMatcher::measured(Work work) {
  using Result = decltype(work());
  if (cost_->is_over()) return Result{};
  const nanoseconds began = computed();
  Result result = work();
  cost_->add(computed() - began, budget_);
  return cost_->is_over() ? Result{} : result;
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const GrammarIndex> index, const std::string& grammar, const LlgLimits& limits,
                               const MatchingBudget& budget)
    : index_(std::move(index)),
      budget_(budget),
      cost_(std::make_shared<MatchingCost>(std::make_shared<LongSteps>())),
      inner_(compiled(*index_, grammar, limits)),
      finished_(api().is_stopped(inner_)) {}

GrammarMatcher::GrammarMatcher(const GrammarMatcher& other, bool is_same_request)
    : index_(other.index_),
      budget_(other.budget_),
      cost_(is_same_request ? other.cost_ : std::make_shared<MatchingCost>(other.cost_->long_steps())),
      inner_(made(other.api().clone_matcher(other.inner_))),
      finished_(other.finished_),
      took_end_(other.took_end_),
      n_consumed_(other.n_consumed_),
      n_seen_(other.n_seen_) {}

bool GrammarMatcher::consume(uint32_t token) {
  took_end_ |= index_->is_end(token);
  cost_->add_token(budget_);
  const bool is_allowed = measured([&] { return api().consume_token(inner_, token) == 0; });
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
  return measured([&] {
    Tokens found(32);
    for (;;) {
      const int32_t n = api().compute_ff_tokens(inner_, found.data(), found.size());
      if (n < int32_t(found.size())) {
        found.resize(n > 0 ? size_t(n) : 0);
        return found;
      }
      found.resize(found.size() * 8);  // there may be more than fit
    }
  });
}

bool GrammarMatcher::fill(uint32_t* mask) {
  return measured([&] { return api().compute_mask_into(inner_, mask, mask_bytes()) == 0; });
}

std::string GrammarMatcher::error() {
  if (cost_->is_over()) return "following it takes too much time";
  const char* text = api().get_error(inner_);
  return text ? text : "";
}

}  // namespace tahr
