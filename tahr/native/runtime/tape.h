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
  // memory say what comes first: threads that wait for others fetch it meanwhile.
  template <class Op>
  void add(Op op, void (*run)(const Op&, Worker), Stretch (*reads_first)(const Op&, const Worker&) = nullptr) {
    if (reads_first) readers_.push_back({ops_.size(), [op, reads_first](const Worker& worker) { return reads_first(op, worker); }});
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
    std::function<Stretch(const Worker&)> reads_first;
  };
  class Fetcher;

  std::vector<std::function<void(const Worker&)>> ops_;
  std::vector<Reader> readers_;  // in the order of the ops
};

}  // namespace tahr
