#include "device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "failure.h"

namespace tahr::vulkan {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto POLL = std::chrono::microseconds(2000);

uint32_t compute_family(VkPhysicalDevice device) {
  uint32_t n = 0;
  loader().vkGetPhysicalDeviceQueueFamilyProperties(device, &n, nullptr);
  std::vector<VkQueueFamilyProperties> families(n);
  loader().vkGetPhysicalDeviceQueueFamilyProperties(device, &n, families.data());
  for (uint32_t i = 0; i < n; ++i)
    if (families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) return i;
  throw DeviceError("The Vulkan device has no queue that computes.");
}

}  // namespace

std::shared_ptr<Device> Device::open(int index, const std::vector<std::byte>& cache) {
  const Loader& found = loader();
  if (index < 0 || size_t(index) >= found.devices.size())
    throw DeviceError("There is no Vulkan device " + std::to_string(index) + ".");
  VkPhysicalDevice physical = found.devices[size_t(index)];
  const DeviceFacts facts = facts_of(found, physical);
  if (facts.missing[0]) throw DeviceError("The Vulkan device " + std::string(facts.name) + " lacks " + facts.missing + ".");
  std::shared_ptr<Device> device(new Device(physical, facts));
  device->make(cache);
  return device;
}

VkQueue Device::make_handle(const std::vector<const char*>& extensions) {
  const float priority = 1;
  VkDeviceQueueCreateInfo queue{TYPE_OF<VkDeviceQueueCreateInfo>};
  queue.queueFamilyIndex = queue_family;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrices{TYPE_OF<VkPhysicalDeviceCooperativeMatrixFeaturesKHR>};
  matrices.cooperativeMatrix = 1;
  VkPhysicalDeviceVulkan13Features f13{TYPE_OF<VkPhysicalDeviceVulkan13Features>, facts.matrix[0] ? &matrices : nullptr};
  f13.shaderIntegerDotProduct = f13.subgroupSizeControl = f13.computeFullSubgroups = f13.maintenance4 = 1;
  VkPhysicalDeviceVulkan12Features f12{TYPE_OF<VkPhysicalDeviceVulkan12Features>, &f13};
  f12.bufferDeviceAddress = f12.timelineSemaphore = 1;
  f12.shaderFloat16 = f12.vulkanMemoryModel = facts.matrix[0] != 0;
  VkPhysicalDeviceVulkan11Features f11{TYPE_OF<VkPhysicalDeviceVulkan11Features>, &f12};
  f11.storageBuffer16BitAccess = 1;
  VkPhysicalDeviceFeatures2 features{TYPE_OF<VkPhysicalDeviceFeatures2>, &f11};
  features.features.shaderInt64 = features.features.shaderInt16 = 1;
  VkDeviceCreateInfo info{TYPE_OF<VkDeviceCreateInfo>, &features};
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = uint32_t(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
  check(loader().vkCreateDevice(physical_, &info, nullptr, &handle), "open itself");
#define TAHR_VK_LOAD(name) name = reinterpret_cast<PFN_##name>(loader().vkGetDeviceProcAddr(handle, #name));
  TAHR_VK_DEVICE_FUNCTIONS(TAHR_VK_LOAD)
  VkQueue found = nullptr;
  vkGetDeviceQueue(handle, queue_family, 0, &found);
  return found;
}

void Device::make(const std::vector<std::byte>& cache_bytes) {
  VkPhysicalDeviceProperties2 properties{TYPE_OF<VkPhysicalDeviceProperties2>};
  loader().vkGetPhysicalDeviceProperties2(physical_, &properties);
  tick_ns = properties.properties.limits.timestampPeriod;
  VkPhysicalDeviceMemoryProperties2 memory{TYPE_OF<VkPhysicalDeviceMemoryProperties2>};
  loader().vkGetPhysicalDeviceMemoryProperties2(physical_, &memory);
  memory_ = memory.memoryProperties;
  unified_ = facts.type == VK_PHYSICAL_DEVICE_TYPE_CPU || facts.type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
  queue_family = compute_family(physical_);
  std::vector<const char*> extensions;
  has_budget_ = has_extension(loader(), physical_, "VK_EXT_memory_budget");
  if (has_budget_) extensions.push_back("VK_EXT_memory_budget");
  if (has_extension(loader(), physical_, "VK_KHR_portability_subset")) extensions.push_back("VK_KHR_portability_subset");
  if (facts.matrix[0]) extensions.push_back(MATRIX_EXTENSION);
  queue_ = make_handle(extensions);

  const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, PUSH_BYTES};
  VkPipelineLayoutCreateInfo plain{TYPE_OF<VkPipelineLayoutCreateInfo>};
  plain.pushConstantRangeCount = 1;
  plain.pPushConstantRanges = &range;
  check(vkCreatePipelineLayout(handle, &plain, nullptr, &layout), "make a pipeline layout");
  VkPipelineCacheCreateInfo kept{TYPE_OF<VkPipelineCacheCreateInfo>};
  kept.initialDataSize = cache_bytes.size();
  kept.pInitialData = cache_bytes.data();
  check(vkCreatePipelineCache(handle, &kept, nullptr, &cache), "make a pipeline cache");
  VkSemaphoreTypeCreateInfo counting{TYPE_OF<VkSemaphoreTypeCreateInfo>};
  counting.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
  const VkSemaphoreCreateInfo semaphore{TYPE_OF<VkSemaphoreCreateInfo>, &counting, 0};
  check(vkCreateSemaphore(handle, &semaphore, nullptr, &finished_), "make a semaphore");
  VkCommandPoolCreateInfo pool{TYPE_OF<VkCommandPoolCreateInfo>};
  pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  pool.queueFamilyIndex = queue_family;
  check(vkCreateCommandPool(handle, &pool, nullptr, &pool_), "make a command pool");
  VkCommandBufferAllocateInfo one{TYPE_OF<VkCommandBufferAllocateInfo>, nullptr, pool_, VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
  check(vkAllocateCommandBuffers(handle, &one, &commands_), "make a command buffer");
  canaries_ = std::make_unique<Canaries>(*this);
}

Canaries::Canaries(Device& device) : device_(device) {
  VkBufferCreateInfo info{TYPE_OF<VkBufferCreateInfo>};
  info.size = N * sizeof(uint32_t);
  info.usage = VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  check(device.vkCreateBuffer(device.handle, &info, nullptr, &handle), "make a buffer");
  VkMemoryRequirements needs;
  device.vkGetBufferMemoryRequirements(device.handle, handle, &needs);
  const uint32_t type = device.memory_type(needs.memoryTypeBits, Home::host);
  const VkMemoryAllocateInfo taken{TYPE_OF<VkMemoryAllocateInfo>, nullptr, needs.size, type};
  check(device.vkAllocateMemory(device.handle, &taken, nullptr, &memory_), "take memory of the host");
  check(device.vkBindBufferMemory(device.handle, handle, memory_, 0), "take memory of the host");
  void* seen = nullptr;
  check(device.vkMapMemory(device.handle, memory_, 0, info.size, 0, &seen), "show memory to the host");
  host_ = static_cast<std::byte*>(seen);
}

Canaries::~Canaries() {
  device_.vkDestroyBuffer(device_.handle, handle, nullptr);
  device_.vkFreeMemory(device_.handle, memory_, nullptr);
}

Device::~Device() {
  if (!handle) return;
  vkDeviceWaitIdle(handle);
  canaries_.reset();
  if (pool_) vkDestroyCommandPool(handle, pool_, nullptr);
  if (finished_) vkDestroySemaphore(handle, finished_, nullptr);
  if (cache) vkDestroyPipelineCache(handle, cache, nullptr);
  if (layout) vkDestroyPipelineLayout(handle, layout, nullptr);
  vkDestroyDevice(handle, nullptr);
}

uint64_t Device::submit(const std::vector<VkCommandBuffer>& commands) {
  const std::lock_guard<std::mutex> lock(queue_mutex_);
  std::vector<uint64_t> counts(commands.size());
  std::vector<VkTimelineSemaphoreSubmitInfo> counted(commands.size());
  std::vector<VkSubmitInfo> infos(commands.size());
  for (size_t i = 0; i < commands.size(); ++i) {
    counts[i] = submitted_ + 1 + i;
    counted[i] = {TYPE_OF<VkTimelineSemaphoreSubmitInfo>};
    counted[i].signalSemaphoreValueCount = 1;
    counted[i].pSignalSemaphoreValues = &counts[i];
    infos[i] = {TYPE_OF<VkSubmitInfo>, &counted[i]};
    infos[i].commandBufferCount = 1;
    infos[i].pCommandBuffers = &commands[i];
    infos[i].signalSemaphoreCount = 1;
    infos[i].pSignalSemaphores = &finished_;
  }
  check(vkQueueSubmit(queue_, uint32_t(infos.size()), infos.data(), nullptr), "submit a step");
  return submitted_ += commands.size();
}

void Device::wait(uint64_t ticket, uint64_t sleep_ns) {
  if (!ticket) return;
  VkSemaphoreWaitInfo info{TYPE_OF<VkSemaphoreWaitInfo>};
  info.semaphoreCount = 1;
  info.pSemaphores = &finished_;
  info.pValues = &ticket;
  uint64_t ended = 0;
  check(vkGetSemaphoreCounterValue(handle, finished_, &ended), "say how far it is");
  if (ended >= ticket) return;
  if (sleep_ns) {
    const VkResult found = vkWaitSemaphores(handle, &info, sleep_ns);
    if (found != VK_TIMEOUT) return check(found, "end a step");
  }
  if (facts.type != VK_PHYSICAL_DEVICE_TYPE_CPU)
    for (const auto until = Clock::now() + POLL; Clock::now() < until;) {
      check(vkGetSemaphoreCounterValue(handle, finished_, &ended), "say how far it is");
      if (ended >= ticket) return;
    }
  check(vkWaitSemaphores(handle, &info, UINT64_MAX), "end a step");
}

void Device::run_now(void (*record)(const Device&, VkCommandBuffer, const void*), const void* what) {
  const std::lock_guard<std::mutex> lock(commands_mutex_);
  VkCommandBuffer commands = commands_;
  const VkCommandBufferBeginInfo begin{TYPE_OF<VkCommandBufferBeginInfo>};
  check(vkBeginCommandBuffer(commands, &begin), "begin a command buffer");
  const VkMemoryBarrier everything{TYPE_OF<VkMemoryBarrier>, nullptr, VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_HOST_WRITE_BIT,
                                   VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT};
  const VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT;
  vkCmdPipelineBarrier(commands, all, all, 0, 1, &everything, 0, nullptr, 0, nullptr);
  record(*this, commands, what);
  const VkMemoryBarrier to_host{TYPE_OF<VkMemoryBarrier>, nullptr, VK_ACCESS_MEMORY_WRITE_BIT,
                                VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_HOST_READ_BIT};
  vkCmdPipelineBarrier(commands, all, all, 0, 1, &to_host, 0, nullptr, 0, nullptr);
  check(vkEndCommandBuffer(commands), "end a command buffer");
  wait(submit({commands}));
}

std::vector<std::byte> Device::cache_data() const {
  size_t n = 0;
  check(vkGetPipelineCacheData(handle, cache, &n, nullptr), "say what its pipeline cache holds");
  std::vector<std::byte> bytes(n);
  check(vkGetPipelineCacheData(handle, cache, &n, bytes.data()), "say what its pipeline cache holds");
  bytes.resize(n);
  return bytes;
}

void Device::memory_bytes(uint64_t* free, uint64_t* total) const {
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{TYPE_OF<VkPhysicalDeviceMemoryBudgetPropertiesEXT>};
  VkPhysicalDeviceMemoryProperties2 memory{TYPE_OF<VkPhysicalDeviceMemoryProperties2>, has_budget_ ? &budget : nullptr};
  loader().vkGetPhysicalDeviceMemoryProperties2(physical_, &memory);
  const uint32_t heap = memory_.memoryTypes[memory_type(~0u, Home::device)].heapIndex;
  *total = memory_.memoryHeaps[heap].size;
  uint64_t used = has_budget_ ? budget.heapUsage[heap] : 0;
  if (!has_budget_) {
    const std::lock_guard<std::mutex> lock(buffers_mutex);
    for (const Buffer* each : buffers) used += each->n_bytes;
  }
  const uint64_t most = has_budget_ ? budget.heapBudget[heap] : *total;
  *free = most > used ? most - used : 0;
}

uint32_t Device::memory_type(uint32_t allowed, Home home) const {
  constexpr uint32_t own = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  constexpr uint32_t seen = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  constexpr uint32_t cached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  // The most wanted first.
  const std::vector<uint32_t> wanted = home == Home::host     ? std::vector<uint32_t>{seen | cached, seen}
                                       : home == Home::shared ? std::vector<uint32_t>{own | seen, seen}
                                       : unified_             ? std::vector<uint32_t>{own | seen, own}
                                                              : std::vector<uint32_t>{own};
  for (const uint32_t flags : wanted)
    for (uint32_t i = 0; i < memory_.memoryTypeCount; ++i)
      if (allowed >> i & 1 && (memory_.memoryTypes[i].propertyFlags & flags) == flags) return i;
  throw DeviceError("The Vulkan device has no memory of the kind that is needed.");
}

}  // namespace tahr::vulkan
