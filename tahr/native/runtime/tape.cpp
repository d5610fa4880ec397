#include "tape.h"

#include <chrono>

namespace tahr {

// Fetches what this thread reads first in the next op that reads much, one cache line at a time.
class Tape::Fetcher {
 public:
  Fetcher(const Tape& tape, const Worker& worker) : tape_(tape), worker_(worker) {}

  // After op `i`. What has been fetched for the same reader already is not fetched again.
  void look_beyond(size_t i) {
    const size_t before = reader_;
    while (reader_ < tape_.readers_.size() && tape_.readers_[reader_].op <= i) reader_++;
    if (reader_ == tape_.readers_.size()) left_ = {};
    else if (reader_ != before || i == 0) left_ = tape_.readers_[reader_].reads_first(worker_);
  }

  bool fetch() {
    if (left_.begin >= left_.end) return false;
    __builtin_prefetch(left_.begin, 0, 2);  // the second level: the first is for the ops in between
    left_.begin += LINE_BYTES;
    return true;
  }

 private:
  static constexpr int64_t LINE_BYTES = 64;
  const Tape& tape_;
  const Worker& worker_;
  size_t reader_ = 0;
  Stretch left_{};
};

void Tape::run(Pool& pool) const {
  if (ops_.empty()) return;
  pool.run([&](const Worker& worker) {
    Fetcher fetcher(*this, worker);
    for (size_t i = 0; i < ops_.size(); i++) {
      ops_[i](worker);
      if (i + 1 == ops_.size()) return;  // the pool itself meets after the last
      fetcher.look_beyond(i);
      pool.meet(worker, [] {}, [&] { return fetcher.fetch(); });
    }
  });
}

// The clock is read when all threads have finished an op and none has begun the next.
std::vector<int64_t> Tape::run_timed(Pool& pool) const {
  using Clock = std::chrono::steady_clock;
  std::vector<int64_t> nanoseconds(ops_.size());
  auto before = Clock::now();
  pool.run([&](const Worker& worker) {
    for (size_t i = 0; i < ops_.size(); i++) {
      ops_[i](worker);
      pool.meet(worker, [&] {
        const auto now = Clock::now();
        nanoseconds[i] = std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
        before = now;
      }, [] { return false; });
    }
  });
  return nanoseconds;
}

}  // namespace tahr
