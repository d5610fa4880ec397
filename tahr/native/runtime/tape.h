// A tape is a list of ops that every thread walks from start to end, with a barrier after each.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "threads.h"

namespace tahr {

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
  }
  size_t size() const { return ops_.size(); }

 private:
  struct Reader {
    size_t op;
    std::function<bool(const Worker&, int64_t, Stretch&)> reads;
  };
  class Fetcher;

  // One thread's walk: after op i it calls then(i, what to do while it waits).
  template <class Then>
  void run_ops(const Worker& worker, Then then) const;

  std::vector<std::function<void(const Worker&)>> ops_;
  std::vector<Reader> readers_;  // in the order of the ops
};

}  // namespace tahr
