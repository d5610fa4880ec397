// What one thread gets when it is called to do its share of an op.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tahr {

constexpr size_t WORKER_SCRATCH_BYTES = size_t{1} << 20;

// Some bytes that a thread reads; none: begin == end.
struct Stretch {
  const std::byte* begin;
  const std::byte* end;
};

// What a thread reads in later ops. Ops that leave the memory idle have it fetched, a cache line at a time.
class Ahead {
 public:
  // False: nothing is left to fetch.
  bool fetch() {
    if (left_.begin >= left_.end && !find_more()) return false;
    __builtin_prefetch(left_.begin, 0, 2);  // the second level: the first is for the ops in between
    left_.begin += LINE_BYTES;
    return true;
  }

 protected:
  ~Ahead() = default;
  virtual bool find_more() = 0;  // puts something into `left_`
  Stretch left_{};

 private:
  static constexpr int64_t LINE_BYTES = 64;
};

struct Worker {
  int thread;                  // 0 .. n_threads - 1
  int n_threads;
  std::byte* scratch;          // WORKER_SCRATCH_BYTES, 64-byte aligned, this thread's alone; contents do not outlive the op
  std::atomic<int64_t>* next;  // shared by the threads of this op and zero when it begins: the next piece of work to claim
  Ahead* ahead = nullptr;      // this thread's alone, or null
};

struct Range {
  int64_t begin, end;
};

// The equal static share of `n` pieces for this thread.
inline Range share(int64_t n, const Worker& worker) {
  return {n * worker.thread / worker.n_threads, n * (worker.thread + 1) / worker.n_threads};
}

// Of the pieces `mine`, those among the `n` that come after `before` others; counted from the first of them.
inline Range within(Range mine, int64_t before, int64_t n) {
  const int64_t begin = mine.begin > before ? mine.begin - before : 0, end = mine.end < before + n ? mine.end - before : n;
  return {begin, end > begin ? end : begin};
}

// Takes `count` pieces of work that no other thread has; past the end there is nothing left.
inline int64_t claim(const Worker& worker, int64_t count = 1) {
  return worker.next->fetch_add(count, std::memory_order_relaxed);
}

}  // namespace tahr
