// A pool of threads that walk a job together: they spin for a moment between its parts and sleep when there is no job.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "lane.h"

namespace tahr {

// All threads meet here. The last one to arrive does `reset` before anyone leaves.
class Barrier {
 public:
  explicit Barrier(int n_threads) : n_threads_(n_threads) {}

  template <class Reset>
  void wait(Reset reset) {
    const uint32_t turn = turn_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads_) {
      reset();
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
    } else {
      spin_while(turn);
    }
  }

 private:
  void spin_while(uint32_t turn) const;

  const int n_threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> turn_{0};
};

class Pool {
 public:
  explicit Pool(int n_threads);  // the caller of `run` is one of them
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int n_threads() const { return n_threads_; }

  // Calls `job(lane)` on every thread and returns when all have returned. Callers on other threads wait their turn.
  void run(const std::function<void(const Lane&)>& job);

  // For jobs made of several ops: everyone has finished the op before, and the work counter is zero again.
  void meet() {
    meet([] {});
  }

  // The same; the last thread to arrive does `then` before anyone goes on.
  template <class Then>
  void meet(Then then) {
    barrier_.wait([&] {
      next_.store(0, std::memory_order_relaxed);
      then();
    });
  }

 private:
  void work(int thread);
  bool wait_for_job(uint64_t seen);
  Lane lane(int thread);

  const int n_threads_;
  Barrier barrier_;
  alignas(64) std::atomic<int64_t> next_{0};
  std::vector<std::byte*> scratch_;
  std::vector<std::thread> workers_;
  const std::function<void(const Lane&)>* job_ = nullptr;

  std::mutex turn_;   // one job at a time
  std::mutex sleep_;  // guards the sleep of idle workers
  std::condition_variable wake_;
  std::atomic<uint64_t> n_jobs_{0};
  std::atomic<int> n_sleeping_{0};
  std::atomic<bool> closing_{false};
};

}  // namespace tahr
