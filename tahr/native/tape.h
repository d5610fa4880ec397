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
  // `op` is plain data that the tape keeps; `run(op, lane)` does one thread's share of it.
  template <class Op>
  void add(Op op, void (*run)(const Op&, Lane)) {
    ops_.emplace_back([op = std::move(op), run](const Lane& lane) { run(op, lane); });
  }

  void run(Pool& pool) const;
  std::vector<int64_t> run_timed(Pool& pool) const;  // the nanoseconds of each op, with the wait for its last thread
  void clear() { ops_.clear(); }
  size_t size() const { return ops_.size(); }

 private:
  std::vector<std::function<void(const Lane&)>> ops_;
};

}  // namespace tahr
