// Ops in order, each with what it reads and writes; and the command buffers made of them.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "device.h"
#include "pipeline.h"

namespace tahr::vulkan {

// Bytes of the device: where they begin, and how many.
struct Range {
  uint64_t begin;
  uint64_t n_bytes;

  uint64_t end() const { return begin + n_bytes; }
  bool meets(const Range& other) const { return begin < other.end() && other.begin < end(); }
};

using Ranges = std::vector<Range>;

struct Op {
  std::shared_ptr<const Pipeline> pipeline;
  std::array<std::byte, PUSH_BYTES> push;
  uint32_t push_bytes;
  std::array<uint32_t, 3> groups;
  Ranges reads;
  Ranges writes;
};

// How a tape becomes commands. All but the first are for tests: device addresses hide missing barriers from every tool.
enum class Order { as_enqueued, barrier_after_each, permuted };

class Recording;

class Tape {
 public:
  explicit Tape(std::shared_ptr<Device> of) : device(std::move(of)) {}

  // Appends an op and returns its number.
  size_t append(Op op);

  // Changes an address among the constants of an op, which writes what lies there from now on.
  void patch(size_t op, uint32_t push_at, Range written);

  void clear() { ops_.clear(); }
  size_t size() const { return ops_.size(); }

  // The first op of each run that needs no barrier inside. No op of a run reads or writes what another of it writes.
  std::vector<size_t> runs() const;

  std::shared_ptr<Recording> record(Order order, uint32_t seed, size_t n_segments, bool timed) const;

  // Runs op by op, and throws if one changes a byte that it does not declare as written, or if its results depend on one
  // that it does not declare at all. The host must see all memory. A test of declarations, very slow.
  void run_declared() const;

  const std::shared_ptr<Device> device;

 private:
  std::vector<Op> ops_;
};

// Commands that may be submitted again and again, never while they are pending.
class Recording {
 public:
  explicit Recording(std::shared_ptr<Device> of);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void run();

  // Waits for the last run. Throws if the device ended it early without saying so.
  void wait();

  // Device nanoseconds of each op in the last run, if it was recorded `timed`.
  std::vector<double> op_times();

  double last_wait_ns() const { return waited_ns_; }  // how long the last run took from its submission to the end of `wait`

 private:
  friend class Tape;
  VkCommandBuffer begin_segment();
  void end_segment(bool is_last);
  void full_barrier();
  void dispatch(const Op& op, size_t at);

  const std::shared_ptr<Device> device_;
  std::vector<std::shared_ptr<const Pipeline>> pipelines_;  // kept as long as commands name them
  std::vector<VkCommandBuffer> segments_;
  VkCommandPool pool_ = nullptr;
  VkQueryPool queries_ = nullptr;
  size_t n_timed_ = 0;
  const uint64_t canary_;  // where a word is that the last command writes: a device may end work early and report success
  uint64_t ticket_ = 0;
  uint64_t submitted_ns_ = 0;
  double waited_ns_ = 0;
};

}  // namespace tahr::vulkan
