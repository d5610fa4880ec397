// What one thread gets when it is called to do its share of an op.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tahr {

constexpr size_t WORKER_SCRATCH_BYTES = size_t{1} << 20;

struct Worker {
  int thread;                  // 0 .. n_threads - 1
  int n_threads;
  std::byte* scratch;          // WORKER_SCRATCH_BYTES, 64-byte aligned, this thread's alone; contents do not outlive the op
  std::atomic<int64_t>* next;  // shared by the threads of this op and zero when it begins: the next piece of work to claim
};

// Bytes that a thread is going to read first in an op; none: begin == end.
struct Stretch {
  const std::byte* begin;
  const std::byte* end;
};

struct Range {
  int64_t begin, end;
};

// The equal static share of `n` pieces for this thread.
inline Range share(int64_t n, const Worker& worker) {
  return {n * worker.thread / worker.n_threads, n * (worker.thread + 1) / worker.n_threads};
}

// Takes `count` pieces of work that no other thread has; past the end there is nothing left.
inline int64_t claim(const Worker& worker, int64_t count = 1) {
  return worker.next->fetch_add(count, std::memory_order_relaxed);
}

}  // namespace tahr
