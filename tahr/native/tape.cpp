#include "tape.h"

#include <chrono>

namespace tahr {

void Tape::run(Pool& pool) const {
  if (ops_.empty()) return;
  pool.run([&](const Lane& lane) {
    for (size_t i = 0; i < ops_.size(); i++) {
      ops_[i](lane);
      if (i + 1 < ops_.size()) pool.meet(lane);  // the pool itself meets after the last
    }
  });
}

// The clock is read when all threads have finished an op and none has begun the next.
std::vector<int64_t> Tape::run_timed(Pool& pool) const {
  using Clock = std::chrono::steady_clock;
  std::vector<int64_t> nanoseconds(ops_.size());
  auto before = Clock::now();
  pool.run([&](const Lane& lane) {
    for (size_t i = 0; i < ops_.size(); i++) {
      ops_[i](lane);
      pool.meet(lane, [&] {
        const auto now = Clock::now();
        nanoseconds[i] = std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
        before = now;
      });
    }
  });
  return nanoseconds;
}

}  // namespace tahr
