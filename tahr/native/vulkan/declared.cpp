// A test of what ops declare, on devices whose memory the host sees.
#include <algorithm>
#include <cstring>
#include <map>

#include "failure.h"
#include "tape.h"

namespace tahr::vulkan {
namespace {

constexpr int POISON = 0xFF;  // floats become NaN, and numbers negative

using Bytes = std::vector<std::byte>;
using Contents = std::map<Buffer*, Bytes>;

// All that ops can read; staging and canaries are no business of theirs.
Contents contents(const Device& device) {
  Contents found;
  for (Buffer* each : device.buffers)
    if (each->host && each->home != Home::host) found[each] = Bytes(each->host, each->host + each->n_bytes);
  return found;
}

void restore(const Contents& before) {
  for (const auto& [buffer, bytes] : before) std::memcpy(buffer->host, bytes.data(), bytes.size());
}

// Calls with the part of each range that lies in a buffer.
template <class F>
void for_parts(const Buffer& buffer, const Ranges& ranges, F&& call) {
  for (const Range& range : ranges) {
    const uint64_t begin = std::max(range.begin, buffer.address);
    const uint64_t end = std::min(range.end(), buffer.address + buffer.n_bytes);
    if (begin < end) call(begin - buffer.address, end - begin);
  }
}

// Everything becomes poison but what an op declares.
void poison(const Contents& before, const Op& op) {
  for (const auto& [buffer, bytes] : before) {
    std::memset(buffer->host, POISON, bytes.size());
    const auto keep = [&, to = buffer, from = &bytes](uint64_t at, uint64_t n) { std::memcpy(to->host + at, from->data() + at, n); };
    for_parts(*buffer, op.reads, keep);
    for_parts(*buffer, op.writes, keep);
  }
}

// Whether two contents of a buffer are alike outside of ranges.
bool alike_outside(const Buffer& buffer, Bytes before, Bytes after, const Ranges& ranges) {
  for_parts(buffer, ranges, [&](uint64_t at, uint64_t n) {
    std::memset(before.data() + at, 0, n);
    std::memset(after.data() + at, 0, n);
  });
  return before == after;
}

bool alike_inside(const Buffer& buffer, const Bytes& one, const Bytes& other, const Ranges& ranges) {
  bool alike = true;
  for_parts(buffer, ranges, [&](uint64_t at, uint64_t n) { alike &= !std::memcmp(one.data() + at, other.data() + at, n); });
  return alike;
}

}  // namespace

void Tape::run_declared() const {
  device->wait_all();
  for (size_t i = 0; i < ops_.size(); ++i) {
    Tape alone(device);
    alone.append(ops_[i]);
    const std::shared_ptr<Recording> recording = alone.record(Order::as_enqueued, 0, 1, false);
    const Contents before = contents(*device);
    const auto run = [&] {
      recording->run();
      recording->wait();
      return contents(*device);
    };
    poison(before, ops_[i]);
    const Contents poisoned = run();
    restore(before);
    const Contents after = run();
    for (const auto& [buffer, bytes] : before) {
      if (!alike_outside(*buffer, bytes, after.at(buffer), ops_[i].writes))
        throw DeviceError("Op " + std::to_string(i) + " writes what it does not declare as written.");
      if (!alike_inside(*buffer, poisoned.at(buffer), after.at(buffer), ops_[i].writes))
        throw DeviceError("The results of op " + std::to_string(i) + " depend on what it does not declare as read.");
    }
  }
}

}  // namespace tahr::vulkan
