// An open device: its queue, its memory and the pipelines made for it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "api.h"
#include "loader.h"

namespace tahr::vulkan {

constexpr uint32_t PUSH_BYTES = 128;  // of constants: what every device has at least

class Buffer;
class Canaries;

// Where memory lies: on the device; on the device and written by the host, or as near to that as there is; on the host, read
// by it.
enum class Home { device, shared, host };

// Everything that belongs to one VkDevice. Buffers, pipelines and recordings keep it alive.
class Device : public std::enable_shared_from_this<Device> {
 public:
  static std::shared_ptr<Device> open(int index, const std::vector<std::byte>& cache);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Submits command buffers one after the other, and returns a number that `wait` takes. They begin after everything
  // submitted before as far as their own first barrier says.
  uint64_t submit(const std::vector<VkCommandBuffer>& commands);

  // Waits until a submission has ended: sleeps for `sleep_ns`, asks again and again for a moment, then sleeps.
  void wait(uint64_t ticket, uint64_t sleep_ns = 0);
  void wait_all() { wait(last_ticket()); }
  uint64_t last_ticket() const { return submitted_; }

  // Runs commands at once.
  void run_now(void (*record)(const Device&, VkCommandBuffer, const void*), const void* what);

  Canaries& canaries() { return *canaries_; }
  std::vector<std::byte> cache_data() const;
  void memory_bytes(uint64_t* free, uint64_t* total) const;
  uint32_t memory_type(uint32_t allowed, Home home) const;
  bool is_unified() const { return unified_; }

  const DeviceFacts facts;
  VkDevice handle = nullptr;
  VkPipelineLayout layout = nullptr;
  VkPipelineCache cache = nullptr;
  uint32_t queue_family = 0;
  float tick_ns = 0;  // of a timestamp
  mutable std::mutex buffers_mutex;
  std::set<Buffer*> buffers;  // all that live: what the test modes of tapes look at
#define TAHR_VK_MEMBER(name) PFN_##name name = nullptr;
  TAHR_VK_DEVICE_FUNCTIONS(TAHR_VK_MEMBER)

 private:
  Device(VkPhysicalDevice physical, const DeviceFacts& found) : facts(found), physical_(physical) {}
  void make(const std::vector<std::byte>& cache_bytes);
  VkQueue make_handle(const std::vector<const char*>& extensions);

  VkPhysicalDevice physical_;
  VkQueue queue_ = nullptr;
  VkSemaphore finished_ = nullptr;  // counts submissions that have ended
  VkCommandPool pool_ = nullptr;
  VkCommandBuffer commands_ = nullptr;  // of `run_now`
  std::mutex commands_mutex_;
  std::unique_ptr<Canaries> canaries_;
  std::mutex queue_mutex_;
  std::atomic<uint64_t> submitted_{0};
  VkPhysicalDeviceMemoryProperties memory_{};
  bool unified_ = false;  // the host sees all memory of the device
  bool has_budget_ = false;
};

// Words of host memory, one for each of many recordings, that their last commands write.
class Canaries {
 public:
  explicit Canaries(Device& device);
  ~Canaries();
  Canaries(const Canaries&) = delete;
  Canaries& operator=(const Canaries&) = delete;

  uint64_t next() { return count_++ % N * sizeof(uint32_t); }  // where a word lies; a recording that is N younger has it too
  uint32_t* word(uint64_t at) const { return reinterpret_cast<uint32_t*>(host_ + at); }

  VkBuffer handle = nullptr;

 private:
  static constexpr uint64_t N = 1 << 14;
  Device& device_;
  VkDeviceMemory memory_ = nullptr;
  std::byte* host_ = nullptr;
  std::atomic<uint64_t> count_{0};
};

// A piece of memory with an address on the device. Its end waits for everything submitted.
class Buffer {
 public:
  Buffer(std::shared_ptr<Device> device, uint64_t n_bytes, Home home);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // By way of `staging`, which the host sees, where it does not see this.
  void write(uint64_t at, const void* data, uint64_t n_bytes, Buffer& staging);
  void read(uint64_t at, void* data, uint64_t n_bytes, Buffer& staging);
  void fill(uint64_t at, uint64_t n_bytes, uint32_t word);
  void copy(const Buffer& from, const std::vector<std::array<uint64_t, 3>>& parts);  // (from, to, bytes)

  const std::shared_ptr<Device> device;
  const uint64_t n_bytes;
  const Home home;
  VkBuffer handle = nullptr;
  uint64_t address = 0;
  std::byte* host = nullptr;  // where the host sees it; null: it does not

 private:
  void check_part(uint64_t at, uint64_t n) const;
  void allocate();
  void destroy() noexcept;

  VkDeviceMemory memory_ = nullptr;
};

}  // namespace tahr::vulkan
