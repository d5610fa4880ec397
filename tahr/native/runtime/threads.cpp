#include "threads.h"

#include <chrono>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "pause.h"

namespace tahr {

namespace {

// Spinning is cheap while every thread has a core of its own; past this many pauses (tens of microseconds) somebody is
// probably waiting for ours, so a thread in a barrier yields, so often before it sleeps.
constexpr int MAX_PAUSES = 1000, MAX_YIELDS = 1000;
constexpr std::chrono::microseconds TAKEN{200};  // for a yield: somebody else had the core
// An idle worker goes to sleep later: the next step of a sequence comes within this (tenths of a millisecond).
constexpr int MAX_IDLE_PAUSES = 6000;

}  // namespace

void Barrier::spin_until(Turn& turn, uint32_t wanted) {
  const auto arrived = [&] { return turn.load(std::memory_order_acquire) == wanted; };
  for (int i = 0; i < MAX_PAUSES; i++) {
    if (arrived()) return;
    pause();
  }
  for (int i = 0; i < MAX_YIELDS; i++) {
    if (arrived()) return;
    const auto before = std::chrono::steady_clock::now();
    std::this_thread::yield();
    const auto away = std::chrono::steady_clock::now() - before;
    if (away < TAKEN) continue;
    taken_ns_.fetch_add(std::chrono::nanoseconds(away).count(), std::memory_order_relaxed);
    break;
  }
  sleep_until(turn, wanted);
}

#if defined(__linux__)

void Barrier::sleep_until(Turn& turn, uint32_t wanted) {
  n_sleeping_.fetch_add(1);
  for (uint32_t seen; (seen = turn.load()) != wanted;) syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  n_sleeping_.fetch_sub(1);
}

void Barrier::wake(Turn& turn) { syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, n_threads_, nullptr, nullptr, 0); }

#else

void Barrier::sleep_until(Turn& turn, uint32_t wanted) {
  while (turn.load(std::memory_order_acquire) != wanted) std::this_thread::yield();
}

void Barrier::wake(Turn&) {}

#endif

Pool::Pool(int n_threads) : n_threads_(n_threads), barrier_(n_threads) {
  for (int i = 0; i < n_threads; i++)
    scratch_.push_back(static_cast<std::byte*>(::operator new(WORKER_SCRATCH_BYTES, std::align_val_t{64})));
  for (int i = 1; i < n_threads; i++) workers_.emplace_back([this, i] { work(i); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(sleep_);
    closing_.store(true);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
  for (auto* block : scratch_) ::operator delete(block, std::align_val_t{64});
}

Worker Pool::worker(int thread) { return {thread, n_threads_, scratch_[thread], &next_}; }

void Pool::run(const std::function<void(const Worker&)>& job) {
  std::lock_guard<std::mutex> lock(turn_);
  job_ = &job;
  n_jobs_.fetch_add(1);
  if (n_sleeping_.load() > 0) {
    // The lock orders us after a worker that has looked for a job, found none and is about to sleep.
    std::lock_guard<std::mutex> asleep(sleep_);
    wake_.notify_all();
  }
  job(worker(0));
  meet(worker(0));
}

void Pool::work(int thread) {
  for (uint64_t seen = 0; wait_for_job(seen); seen++) {
    (*job_)(worker(thread));
    meet(worker(thread));
  }
}

// True when there is a job after the `seen` done so far, false when the pool is closing.
bool Pool::wait_for_job(uint64_t seen) {
  for (int i = 0; i < MAX_IDLE_PAUSES; i++) {
    if (n_jobs_.load(std::memory_order_acquire) != seen) return true;
    pause();
  }
  std::unique_lock<std::mutex> lock(sleep_);
  n_sleeping_.fetch_add(1);
  wake_.wait(lock, [&] { return closing_.load() || n_jobs_.load() != seen; });
  n_sleeping_.fetch_sub(1);
  return n_jobs_.load() != seen;
}

}  // namespace tahr
