// Threads that let the grammars of a batch take tokens and then fill its masks. None of them needs the interpreter.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "grammar_matcher.h"

namespace tahr {

using MatcherPtr = std::shared_ptr<GrammarMatcher>;

struct GrammarToken {
  MatcherPtr matcher;
  uint32_t token;
  bool wants_forced;
  bool is_allowed = false;
  Tokens forced;  // what must come after it; its row needs no mask then
};

struct GrammarRow {
  MatcherPtr matcher;
  uint32_t* mask;
  bool failed = false;  // the grammar cannot go on
};

// Pieces of work that threads claim. A thread begins with its own: as jobs follow each other, they find what they need in
// the caches of the thread that had the same piece before.
class Claims {
 public:
  explicit Claims(size_t n) : claimed_(n) {}

  template <class Work>
  void each(size_t thread, size_t n_threads, Work work) {
    for (size_t i = thread; i < claimed_.size(); i += n_threads) claim(i, work);
    for (size_t i = claimed_.size(); i-- > 0;) claim(i, work);  // what others have not begun
  }

 private:
  template <class Work>
  void claim(size_t i, Work work) {
    if (!claimed_[i].load(std::memory_order_relaxed) && !claimed_[i].exchange(true, std::memory_order_relaxed)) work(i);
  }

  std::vector<std::atomic<bool>> claimed_;
};

struct GrammarThread {
  size_t thread, n_threads;
};

// Tokens to take, then rows to fill. A row whose matcher takes one of the tokens is filled as soon as it has it.
class GrammarJob {
 public:
  GrammarJob(std::vector<GrammarToken> tokens, std::vector<GrammarRow> rows);

  void take_tokens();  // with the others; all of them are taken when it returns
  void wait();         // the caller fills rows, too
  void work(GrammarThread of);

  size_t n_pieces() const { return tokens_.size() + rows_.size(); }
  const std::vector<GrammarToken>& tokens() const { return tokens_; }
  const std::vector<GrammarRow>& rows() const { return rows_; }  // once they are waited for

 private:
  void take_some(GrammarThread of);
  void fill_some(GrammarThread of);
  void take(GrammarToken& token);
  void fill(GrammarRow& row);

  std::vector<GrammarToken> tokens_;
  std::vector<GrammarRow> rows_;
  Claims claimed_tokens_, claimed_rows_;
  alignas(64) std::atomic<size_t> n_taken_{0};
  alignas(64) std::atomic<size_t> n_filled_{0};
  std::mutex lock_;
  std::condition_variable is_done_;
};

class GrammarThreads {
 public:
  explicit GrammarThreads(int n_threads);
  ~GrammarThreads();
  GrammarThreads(const GrammarThreads&) = delete;
  GrammarThreads& operator=(const GrammarThreads&) = delete;

  void begin(const std::shared_ptr<GrammarJob>& job);

 private:
  void work(GrammarThread of);

  std::vector<std::thread> threads_;
  std::mutex lock_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<GrammarJob>> jobs_;
  bool closing_ = false;
};

}  // namespace tahr
