// Memory of a device, and how bytes come to it and from it.
#include <algorithm>
#include <cstring>

#include "device.h"
#include "failure.h"

namespace tahr::vulkan {
namespace {

struct Copies {
  VkBuffer from;
  VkBuffer to;
  std::vector<VkBufferCopy> parts;
};

void record_copies(const Device& device, VkCommandBuffer commands, const void* what) {
  const Copies& copies = *static_cast<const Copies*>(what);
  device.vkCmdCopyBuffer(commands, copies.from, copies.to, uint32_t(copies.parts.size()), copies.parts.data());
}

struct Fill {
  VkBuffer to;
  uint64_t at;
  uint64_t n_bytes;
  uint32_t word;
};

void record_fill(const Device& device, VkCommandBuffer commands, const void* what) {
  const Fill& fill = *static_cast<const Fill*>(what);
  device.vkCmdFillBuffer(commands, fill.to, fill.at, fill.n_bytes, fill.word);
}

}  // namespace

Buffer::Buffer(std::shared_ptr<Device> of, uint64_t n, Home where)
    : device(std::move(of)), n_bytes((n + 15) / 16 * 16), home(where) {
  try {
    allocate();
  } catch (...) {
    destroy();
    throw;
  }
  const std::lock_guard<std::mutex> lock(device->buffers_mutex);
  device->buffers.insert(this);
}

void Buffer::allocate() {
  const std::string action = "take " + std::to_string((n_bytes + 999'999) / 1'000'000) + " MB";
  VkBufferCreateInfo info{TYPE_OF<VkBufferCreateInfo>};
  info.size = n_bytes;
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
               VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
  check(device->vkCreateBuffer(device->handle, &info, nullptr, &handle), action);
  VkMemoryRequirements needs;
  device->vkGetBufferMemoryRequirements(device->handle, handle, &needs);
  VkMemoryAllocateFlagsInfo flags{TYPE_OF<VkMemoryAllocateFlagsInfo>};
  flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
  const uint32_t type = device->memory_type(needs.memoryTypeBits, home);
  const VkMemoryAllocateInfo taken{TYPE_OF<VkMemoryAllocateInfo>, &flags, needs.size, type};
  check(device->vkAllocateMemory(device->handle, &taken, nullptr, &memory_), action);
  check(device->vkBindBufferMemory(device->handle, handle, memory_, 0), action);
  const VkBufferDeviceAddressInfo asked{TYPE_OF<VkBufferDeviceAddressInfo>, nullptr, handle};
  address = device->vkGetBufferDeviceAddress(device->handle, &asked);
  if (home == Home::device && !device->is_unified()) return;
  void* seen = nullptr;
  check(device->vkMapMemory(device->handle, memory_, 0, n_bytes, 0, &seen), "show memory to the host");
  host = static_cast<std::byte*>(seen);
}

Buffer::~Buffer() {
  {
    const std::lock_guard<std::mutex> lock(device->buffers_mutex);
    device->buffers.erase(this);
  }
  try {
    device->wait_all();
  } catch (const DeviceError&) {  // a device that is lost reads no memory
  }
  destroy();
}

void Buffer::destroy() noexcept {
  if (handle) device->vkDestroyBuffer(device->handle, handle, nullptr);
  if (memory_) device->vkFreeMemory(device->handle, memory_, nullptr);
}

void Buffer::check_part(uint64_t at, uint64_t n) const {
  if (at > n_bytes || n > n_bytes - at) throw DeviceError("A copy reaches beyond its memory.");
}

void Buffer::write(uint64_t at, const void* data, uint64_t n, Buffer& staging) {
  check_part(at, n);
  if (host) {
    device->wait_all();
    std::memcpy(host + at, data, n);
    return;
  }
  for (uint64_t done = 0; done < n; done += staging.n_bytes) {
    const uint64_t part = std::min(staging.n_bytes, n - done);
    std::memcpy(staging.host, static_cast<const std::byte*>(data) + done, part);
    copy(staging, {{0, at + done, part}});
  }
}

void Buffer::read(uint64_t at, void* data, uint64_t n, Buffer& staging) {
  check_part(at, n);
  if (host) {
    device->wait_all();
    std::memcpy(data, host + at, n);
    return;
  }
  for (uint64_t done = 0; done < n; done += staging.n_bytes) {
    const uint64_t part = std::min(staging.n_bytes, n - done);
    staging.copy(*this, {{at + done, 0, part}});
    std::memcpy(static_cast<std::byte*>(data) + done, staging.host, part);
  }
}

void Buffer::fill(uint64_t at, uint64_t n, uint32_t word) {
  check_part(at, n);
  const Fill what{handle, at, n, word};
  if (n) device->run_now(record_fill, &what);
}

void Buffer::copy(const Buffer& from, const std::vector<std::array<uint64_t, 3>>& parts) {
  Copies what{from.handle, handle, {}};
  for (const auto& [source, target, n] : parts) {
    from.check_part(source, n);
    check_part(target, n);
    if (n) what.parts.push_back({source, target, n});
  }
  if (!what.parts.empty()) device->run_now(record_copies, &what);
}

}  // namespace tahr::vulkan
