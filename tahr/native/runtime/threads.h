// A pool of threads that walk a job together: they spin for a moment between its parts and sleep when there is no job.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "worker.h"

namespace tahr {

// All threads meet here. Each says on a cache line of its own that it has come; the first thread reads them all, does
// `reset` and lets everyone go. With one counter for all, sixteen threads would take turns at its line, which takes twice as long.
// Threads that wait call `idle` again and again until it says false, spin, and at last sleep until they are woken: where
// other processes want the cores, a thread that yields gets its core back a time slice later, one that is woken at once.
class Barrier {
 public:
  explicit Barrier(int n_threads) : n_threads_(n_threads), arrived_(new Turn[size_t(n_threads)]) {}

  template <class Reset, class Idle>
  void wait(int thread, Reset reset, Idle idle) {
    Turn& mine = arrived_[size_t(thread)];
    const uint32_t turn = mine.load(std::memory_order_relaxed) + 1;
    if (thread > 0) {
      set(mine, turn);
      wait_for(leave_, turn, idle);
      return;
    }
    for (int i = 1; i < n_threads_; i++) wait_for(arrived_[size_t(i)], turn, idle);
    reset();
    mine.store(turn, std::memory_order_relaxed);
    set(leave_, turn);
  }

  // How long threads that yielded, all together, found that somebody else had their cores.
  int64_t taken_ns() const { return taken_ns_.load(std::memory_order_relaxed); }

 private:
  struct alignas(64) Turn : std::atomic<uint32_t> {
    Turn() : std::atomic<uint32_t>(0) {}
  };

  template <class Idle>
  void wait_for(Turn& turn, uint32_t wanted, Idle idle) {
    while (turn.load(std::memory_order_acquire) != wanted && idle()) {
    }
    spin_until(turn, wanted);
  }
  void spin_until(Turn& turn, uint32_t wanted);
  void sleep_until(Turn& turn, uint32_t wanted);
  void wake(Turn& turn);

  // A thread that is about to sleep counts itself before it looks at the turn again: either it sees the new one, or we it.
  void set(Turn& turn, uint32_t value) {
    turn.store(value);
    if (n_sleeping_.load() > 0) wake(turn);
  }

  const int n_threads_;
  std::unique_ptr<Turn[]> arrived_;
  Turn leave_;
  alignas(64) std::atomic<int> n_sleeping_{0};
  std::atomic<int64_t> taken_ns_{0};
};

class Pool {
 public:
  explicit Pool(int n_threads);  // the caller of `run` is one of them
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int n_threads() const { return n_threads_; }

  // Calls `job(worker)` on every thread and returns when all have returned. Callers on other threads wait their turn.
  void run(const std::function<void(const Worker&)>& job);

  // Calls `work(worker_of)` on this thread alone, which may take the place of each worker in turn.
  template <class Work>
  void run_alone(Work work) {
    std::lock_guard<std::mutex> lock(turn_);
    work([&](int thread) { return worker(thread); });
    next_.store(0, std::memory_order_relaxed);
  }

  int64_t taken_ns() const { return barrier_.taken_ns(); }

  // For jobs made of several ops: everyone has finished the op before, and the work counter is zero again. The first
  // thread does `then` when all have come, before anyone goes on; see Barrier for `idle`.
  template <class Then, class Idle>
  void meet(const Worker& worker, Then then, Idle idle) {
    const auto reset = [&] {
      next_.store(0, std::memory_order_relaxed);
      then();
    };
    barrier_.wait(worker.thread, reset, idle);
  }

  void meet(const Worker& worker) {
    meet(worker, [] {}, [] { return false; });
  }

 private:
  void work(int thread);
  bool wait_for_job(uint64_t seen);
  Worker worker(int thread);

  const int n_threads_;
  Barrier barrier_;
  alignas(64) std::atomic<int64_t> next_{0};
  std::vector<std::byte*> scratch_;
  std::vector<std::thread> workers_;
  const std::function<void(const Worker&)>* job_ = nullptr;

  std::mutex turn_;   // one job at a time
  std::mutex sleep_;  // guards the sleep of idle workers
  std::condition_variable wake_;
  std::atomic<uint64_t> n_jobs_{0};
  std::atomic<int> n_sleeping_{0};
  std::atomic<bool> closing_{false};
};

}  // namespace tahr
