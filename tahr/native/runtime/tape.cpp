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

namespace {

double seconds_since(Pace::Clock::time_point before) {
  return std::chrono::duration<double>(Pace::Clock::now() - before).count();
}

constexpr auto never = [] { return false; };

}  // namespace

void Pace::tried(bool won) {
  interval_s = won ? LEAST_S : interval_s * 2 < MOST_S ? interval_s * 2 : MOST_S;
  alone = alone != won;
  next_trial = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(interval_s));
}

template <class Then>
void Tape::run_ops(const Worker& worker, size_t first, Then then) const {
  Fetcher fetcher(*this, worker);
  Worker mine = worker;
  mine.ahead = &fetcher;
  for (size_t i = first; i < ops_.size(); i++) {
    fetcher.look_beyond(i);
    ops_[i](mine);
    if (!then(i, [&] { return fetcher.fetch_next(); })) return;
  }
}

template <class Stops>
size_t Tape::run_together(Pool& pool, size_t first, Stops stops) const {
  size_t end = ops_.size();  // only the first thread changes it, while the others are at the barrier
  pool.run([&](const Worker& worker) {
    run_ops(worker, first, [&](size_t i, auto idle) {
      if (i + 1 == ops_.size()) return false;  // the pool itself meets after the last
      pool.meet(worker, [&] {
        if (stops()) end = i + 1;
      }, idle);
      return i + 1 < end;
    });
  });
  return end;
}

template <class Stops>
size_t Tape::run_alone(Pool& pool, size_t first, Stops stops) const {
  size_t i = first;
  pool.run_alone([&](auto worker_of) {
    for (; i < ops_.size() && !stops(); i++) {
      worker_of(0).next->store(0, std::memory_order_relaxed);
      for (int thread = 0; thread < pool.n_threads(); thread++) ops_[i](worker_of(thread));
    }
  });
  return i;
}

// Goes on from op `first`, which all threads took so long to come to, while one is not slower than they were.
void Tape::try_alone(Pool& pool, size_t first, double together_s) const {
  const auto began = Pace::Clock::now();
  const double n_left = double(ops_.size() - first), limit_s = together_s * n_left / double(first);
  const size_t end = run_alone(pool, first, [&] { return seconds_since(began) > limit_s; });
  pace_.alone_s = seconds_since(began) * double(ops_.size()) / n_left;
  pace_.tried(end == ops_.size());
  if (end < ops_.size()) run_together(pool, end, never);
}

void Tape::try_together(Pool& pool) const {
  const auto began = Pace::Clock::now();
  const auto is_slower = [&] { return seconds_since(began) > pace_.alone_s; };
  const size_t end = run_together(pool, 0, is_slower);
  pace_.tried(end == ops_.size() && !is_slower());
  if (end < ops_.size()) run_alone(pool, end, never);
}

void Tape::run(Pool& pool) const {
  if (ops_.empty()) return;
  const auto began = Pace::Clock::now();
  const bool tries = pool.n_threads() > 1 && began >= pace_.next_trial;
  if (pace_.alone && tries) return try_together(pool);
  if (pace_.alone) {
    run_alone(pool, 0, never);
    pace_.alone_s = seconds_since(began);
    return;
  }
  constexpr double LEAST_TAKEN_S = 0.02, TAKEN_SHARE = 0.125;  // of the threads' time, that others had their cores
  const int64_t taken_ns = pool.taken_ns();
  const auto is_crowded = [&] {
    const double taken_s = double(pool.taken_ns() - taken_ns) * 1e-9;
    return tries && taken_s > LEAST_TAKEN_S && taken_s > TAKEN_SHARE * pool.n_threads() * seconds_since(began);
  };
  const size_t end = run_together(pool, 0, is_crowded);
  if (end < ops_.size()) try_alone(pool, end, seconds_since(began));
}

// The clock is read when all threads have finished an op and none has begun the next.
std::vector<int64_t> Tape::run_timed(Pool& pool) const {
  using Clock = std::chrono::steady_clock;
  std::vector<int64_t> nanoseconds(ops_.size());
  auto before = Clock::now();
  pool.run([&](const Worker& worker) {
    run_ops(worker, 0, [&](size_t i, auto idle) {
      pool.meet(worker, [&] {
        const auto now = Clock::now();
        nanoseconds[i] = std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
        before = now;
      }, idle);
      return true;
    });
  });
  return nanoseconds;
}

}  // namespace tahr
