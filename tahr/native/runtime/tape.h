// A tape is a list of ops that every thread walks from start to end, with a barrier after each.
//
// Where other processes want the cores, a thread at a barrier may wait for a time slice of theirs, hundreds of times in a
// tape. One thread that does the shares of all has nobody to wait for, and gives the same bits.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "threads.h"

namespace tahr {

// Whether all threads walk a tape or one does, by what both took: the other way is tried again from time to time.
struct Pace {
  using Clock = std::chrono::steady_clock;
  bool alone = false;
  double alone_s = 0;  // that one thread took for the whole tape the last time
  double interval_s = LEAST_S;
  Clock::time_point next_trial{};

  static constexpr double LEAST_S = 0.25, MOST_S = 8;  // between trials

  // The other way was faster, or was not.
  void tried(bool won);
};

class Tape {
 public:
  // `op` is plain data that the tape keeps; `run(op, worker)` does one thread's share of it. Ops that read much from
  // memory say what it is: `reads(op, worker, i, found)` finds the i-th stretch, which may be empty, and is false past the
  // last. Threads that wait for others, or compute much and read little, fetch it meanwhile.
  template <class Op>
  void add(Op op, void (*run)(const Op&, Worker), bool (*reads)(const Op&, const Worker&, int64_t, Stretch&) = nullptr) {
    if (reads)
      readers_.push_back({ops_.size(), [op, reads](const Worker& worker, int64_t i, Stretch& found) {
                            return reads(op, worker, i, found);
                          }});
    ops_.emplace_back([op = std::move(op), run](const Worker& worker) { run(op, worker); });
  }

  void run(Pool& pool) const;
  std::vector<int64_t> run_timed(Pool& pool) const;  // the nanoseconds of each op, with the wait for its last thread
  void clear() {
    ops_.clear();
    readers_.clear();
    pace_ = {};
  }
  size_t size() const { return ops_.size(); }

 private:
  struct Reader {
    size_t op;
    std::function<bool(const Worker&, int64_t, Stretch&)> reads;
  };
  class Fetcher;

  // One thread's walk: after op i it calls then(i, what to do while it waits), and goes on if that is true.
  template <class Then>
  void run_ops(const Worker& worker, size_t first, Then then) const;

  // Both go on from op `first` until `stops()`, asked between ops by one thread, and return the op they have not done.
  template <class Stops>
  size_t run_together(Pool& pool, size_t first, Stops stops) const;
  template <class Stops>
  size_t run_alone(Pool& pool, size_t first, Stops stops) const;
  void try_alone(Pool& pool, size_t first, double together_s) const;
  void try_together(Pool& pool) const;

  std::vector<std::function<void(const Worker&)>> ops_;
  std::vector<Reader> readers_;  // in the order of the ops
  mutable Pace pace_;
};

}  // namespace tahr
