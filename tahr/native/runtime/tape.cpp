#include "tape.h"

#include <chrono>

namespace tahr {

// What this thread reads in the ops that read much, in their order.
class Tape::Fetcher final : public Ahead {
 public:
  Fetcher(const Tape& tape, const Worker& worker) : tape_(tape), worker_(worker) {}

  // Op `i` begins, and reads its own. What has been fetched for later ones already is not fetched again.
  void look_beyond(size_t i) {
    while (first_ < tape_.readers_.size() && tape_.readers_[first_].op <= i) first_++, room_ = MOST_BYTES;
    if (reader_ < first_) reader_ = first_, stretch_ = 0, left_ = {};
  }

  // For threads that wait, however long: what the next reader reads, and no more.
  bool fetch_next() { return reader_ == first_ && fetch(); }

 private:
  bool find_more() override {
    for (; room_ > 0 && reader_ < tape_.readers_.size(); reader_++, stretch_ = 0)
      while (tape_.readers_[reader_].reads(worker_, stretch_++, left_))
        if (left_.begin < left_.end) return room_ -= left_.end - left_.begin, true;
    return left_ = {}, false;
  }

  static constexpr int64_t MOST_BYTES = 5 << 18;  // what fits the second-level cache beside what ops read meanwhile
  const Tape& tape_;
  const Worker& worker_;
  size_t first_ = 0, reader_ = 0;  // the first reader that has not begun, and whose stretches are being fetched
  int64_t stretch_ = 0, room_ = MOST_BYTES;
};

template <class Then>
void Tape::run_ops(const Worker& worker, Then then) const {
  Fetcher fetcher(*this, worker);
  Worker mine = worker;
  mine.ahead = &fetcher;
  for (size_t i = 0; i < ops_.size(); i++) {
    fetcher.look_beyond(i);
    ops_[i](mine);
    then(i, [&] { return fetcher.fetch_next(); });
  }
}

void Tape::run(Pool& pool) const {
  if (ops_.empty()) return;
  pool.run([&](const Worker& worker) {
    run_ops(worker, [&](size_t i, auto idle) {
      if (i + 1 < ops_.size()) pool.meet(worker, [] {}, idle);  // the pool itself meets after the last
    });
  });
}

// The clock is read when all threads have finished an op and none has begun the next.
std::vector<int64_t> Tape::run_timed(Pool& pool) const {
  using Clock = std::chrono::steady_clock;
  std::vector<int64_t> nanoseconds(ops_.size());
  auto before = Clock::now();
  pool.run([&](const Worker& worker) {
    run_ops(worker, [&](size_t i, auto idle) {
      pool.meet(worker, [&] {
        const auto now = Clock::now();
        nanoseconds[i] = std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
        before = now;
      }, idle);
    });
  });
  return nanoseconds;
}

}  // namespace tahr
