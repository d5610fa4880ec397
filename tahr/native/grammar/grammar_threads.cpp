#include "grammar_threads.h"

#include "pause.h"

namespace tahr {

namespace {

constexpr int MAX_PAUSES = 1000;  // then somebody else may need the core
constexpr GrammarThread CALLER{SIZE_MAX, 1};  // has no pieces of its own

template <class Ready>
void spin_until(Ready ready) {
  for (int i = 0; !ready(); i++) {
    if (i < MAX_PAUSES)
      pause();
    else
      std::this_thread::yield();
  }
}

}  // namespace

GrammarJob::GrammarJob(std::vector<GrammarToken> tokens, std::vector<GrammarRow> rows)
    : tokens_(std::move(tokens)), rows_(std::move(rows)), claimed_tokens_(tokens_.size()), claimed_rows_(rows_.size()) {
  for (GrammarRow& row : rows_) {
    row.matcher->busy.store(true, std::memory_order_relaxed);
    row.matcher->needs_mask = true;
  }
  for (GrammarToken& token : tokens_) token.matcher->awaits_token.store(true, std::memory_order_relaxed);
}

void GrammarJob::take_tokens() {
  take_some(CALLER);
  spin_until([&] { return n_taken_.load(std::memory_order_acquire) == tokens_.size(); });
  for (GrammarToken& token : tokens_)
    if (!token.matcher->needs_mask) token.matcher->busy.store(false, std::memory_order_relaxed);
}

void GrammarJob::wait() {
  fill_some(CALLER);
  std::unique_lock<std::mutex> lock(lock_);
  is_done_.wait(lock, [&] { return n_filled_.load(std::memory_order_acquire) == rows_.size(); });
}

void GrammarJob::work(GrammarThread of) {
  take_some(of);
  fill_some(of);
}

void GrammarJob::take_some(GrammarThread of) {
  claimed_tokens_.each(of.thread, of.n_threads, [&](size_t i) {
    take(tokens_[i]);
    n_taken_.fetch_add(1, std::memory_order_release);
  });
}

void GrammarJob::fill_some(GrammarThread of) {
  claimed_rows_.each(of.thread, of.n_threads, [&](size_t i) {
    fill(rows_[i]);
    if (n_filled_.fetch_add(1, std::memory_order_acq_rel) + 1 < rows_.size()) return;
    std::lock_guard<std::mutex> lock(lock_);
    is_done_.notify_all();
  });
}

void GrammarJob::take(GrammarToken& token) {
  GrammarMatcher& matcher = *token.matcher;
  token.is_allowed = matcher.consume(token.token);
  if (token.is_allowed && token.wants_forced && !matcher.finished()) token.forced = matcher.forced();
  matcher.needs_mask = token.is_allowed && token.forced.empty();
  matcher.awaits_token.store(false, std::memory_order_release);
}

void GrammarJob::fill(GrammarRow& row) {
  GrammarMatcher& matcher = *row.matcher;
  spin_until([&] { return !matcher.awaits_token.load(std::memory_order_acquire); });
  if (!matcher.needs_mask) return;
  row.failed = !matcher.fill(row.mask);
  matcher.busy.store(false, std::memory_order_release);
}

GrammarThreads::GrammarThreads(int n_threads) {
  const size_t n = size_t(n_threads);
  for (size_t i = 0; i < n; i++) threads_.emplace_back([this, i, n] { work({i, n}); });
}

GrammarThreads::~GrammarThreads() {
  {
    std::lock_guard<std::mutex> lock(lock_);
    closing_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void GrammarThreads::begin(const std::shared_ptr<GrammarJob>& job) {
  {
    std::lock_guard<std::mutex> lock(lock_);
    jobs_.push_back(job);
  }
  if (job->n_pieces() == 1)
    wake_.notify_one();
  else
    wake_.notify_all();
}

void GrammarThreads::work(GrammarThread of) {
  std::unique_lock<std::mutex> lock(lock_);
  for (;;) {
    wake_.wait(lock, [&] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::shared_ptr<GrammarJob> job = jobs_.front();
    lock.unlock();
    job->work(of);
    lock.lock();
    if (!jobs_.empty() && jobs_.front() == job) jobs_.pop_front();  // nothing of it is left to begin
  }
}

}  // namespace tahr
