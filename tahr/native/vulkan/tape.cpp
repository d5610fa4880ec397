#include "tape.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "failure.h"

namespace tahr::vulkan {
namespace {

bool meet(const Ranges& some, const Ranges& others) {
  return std::any_of(some.begin(), some.end(), [&](const Range& a) {
    return std::any_of(others.begin(), others.end(), [&](const Range& b) { return a.meets(b); });
  });
}

void append_all(Ranges& to, const Ranges& from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace

size_t Tape::append(Op op) {
  ops_.push_back(std::move(op));
  return ops_.size() - 1;
}

void Tape::patch(size_t op, uint32_t push_at, Range written) {
  Op& changed = ops_.at(op);
  if (push_at + sizeof written.begin > changed.push_bytes) throw DeviceError("An op has no such constant.");
  std::memcpy(changed.push.data() + push_at, &written.begin, sizeof written.begin);
  changed.writes.push_back(written);
}

std::vector<size_t> Tape::runs() const {
  std::vector<size_t> begins;
  Ranges read, written;
  for (size_t i = 0; i < ops_.size(); ++i) {
    const Op& op = ops_[i];
    if (!i || meet(op.reads, written) || meet(op.writes, written) || meet(op.writes, read)) {
      begins.push_back(i);
      read.clear();
      written.clear();
    }
    append_all(read, op.reads);
    append_all(written, op.writes);
  }
  return begins;
}

std::shared_ptr<Recording> Tape::record(Order order, uint32_t seed, size_t n_segments, bool timed) const {
  auto recording = std::make_shared<Recording>(device);
  if (timed) recording->n_timed_ = ops_.size();
  std::vector<size_t> begins = runs();
  begins.push_back(ops_.size());
  std::mt19937 random(seed);
  const size_t n_runs = begins.size() - 1;
  const size_t per_segment = std::max<size_t>(1, (n_runs + n_segments - 1) / std::max<size_t>(1, n_segments));
  recording->begin_segment();
  for (size_t run = 0; run < n_runs; ++run) {
    if (run && run % per_segment == 0) {
      recording->end_segment(false);
      recording->begin_segment();
    } else if (run) {
      recording->full_barrier();
    }
    std::vector<size_t> ops;
    for (size_t i = begins[run]; i < begins[run + 1]; ++i) ops.push_back(i);
    if (order == Order::permuted) std::shuffle(ops.begin(), ops.end(), random);
    for (const size_t i : ops) {
      recording->dispatch(ops_[i], i);
      if (order == Order::barrier_after_each) recording->full_barrier();
    }
  }
  recording->end_segment(true);
  return recording;
}

}  // namespace tahr::vulkan
