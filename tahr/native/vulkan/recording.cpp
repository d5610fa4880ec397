// Command buffers, recorded once and submitted again.
#include <chrono>

#include "failure.h"
#include "tape.h"

namespace tahr::vulkan {
namespace {

constexpr uint32_t ALIVE = 0x7A48B3D1;
constexpr double AWAKE_NS = 300'000;  // before a run is expected to end

uint64_t now_ns() {
  return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

void barrier(const Device& device, VkCommandBuffer commands, VkPipelineStageFlags from, VkAccessFlags written,
             VkPipelineStageFlags to, VkAccessFlags used) {
  const VkMemoryBarrier memory{TYPE_OF<VkMemoryBarrier>, nullptr, written, used};
  device.vkCmdPipelineBarrier(commands, from, to, 0, 1, &memory, 0, nullptr, 0, nullptr);
}

}  // namespace

Recording::Recording(std::shared_ptr<Device> of) : device_(std::move(of)), canary_(device_->canaries().next()) {
  VkCommandPoolCreateInfo info{TYPE_OF<VkCommandPoolCreateInfo>};
  info.queueFamilyIndex = device_->queue_family;
  check(device_->vkCreateCommandPool(device_->handle, &info, nullptr, &pool_), "make a command pool");
}

Recording::~Recording() {
  try {
    device_->wait(ticket_);
  } catch (const DeviceError&) {  // a device that is lost runs no commands
  }
  if (queries_) device_->vkDestroyQueryPool(device_->handle, queries_, nullptr);
  device_->vkDestroyCommandPool(device_->handle, pool_, nullptr);
}

VkCommandBuffer Recording::begin_segment() {
  const VkCommandBufferAllocateInfo one{TYPE_OF<VkCommandBufferAllocateInfo>, nullptr, pool_, VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
  VkCommandBuffer commands = nullptr;
  check(device_->vkAllocateCommandBuffers(device_->handle, &one, &commands), "make a command buffer");
  const VkCommandBufferBeginInfo begin{TYPE_OF<VkCommandBufferBeginInfo>};
  check(device_->vkBeginCommandBuffer(commands, &begin), "begin a command buffer");
  // What was submitted before may still run, and the host has written: order alone makes nothing visible.
  barrier(*device_, commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT,
          VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_HOST_WRITE_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
          VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT);
  segments_.push_back(commands);
  if (n_timed_ && !queries_) {
    VkQueryPoolCreateInfo info{TYPE_OF<VkQueryPoolCreateInfo>};
    info.queryType = VK_QUERY_TYPE_TIMESTAMP;
    info.queryCount = uint32_t(2 * n_timed_);
    check(device_->vkCreateQueryPool(device_->handle, &info, nullptr, &queries_), "make timestamps");
    device_->vkCmdResetQueryPool(commands, queries_, 0, info.queryCount);
  }
  return commands;
}

void Recording::full_barrier() {
  barrier(*device_, segments_.back(), VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
          VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
}

void Recording::dispatch(const Op& op, size_t at) {
  VkCommandBuffer commands = segments_.back();
  const VkPipeline pipeline = op.pipeline->get();
  pipelines_.push_back(op.pipeline);
  device_->vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  device_->vkCmdPushConstants(commands, device_->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, op.push_bytes, op.push.data());
  const auto stamp = [&](size_t i) {
    if (queries_) device_->vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_, uint32_t(2 * at + i));
  };
  stamp(0);
  device_->vkCmdDispatch(commands, op.groups[0], op.groups[1], op.groups[2]);
  stamp(1);
}

void Recording::end_segment(bool is_last) {
  VkCommandBuffer commands = segments_.back();
  if (is_last) {
    barrier(*device_, commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
            VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT);
    device_->vkCmdFillBuffer(commands, device_->canaries().handle, canary_, sizeof ALIVE, ALIVE);
    barrier(*device_, commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
            VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
  }
  check(device_->vkEndCommandBuffer(commands), "end a command buffer");
}

void Recording::run() {
  wait();
  *device_->canaries().word(canary_) = 0;
  submitted_ns_ = now_ns();
  ticket_ = device_->submit(segments_);
}

void Recording::wait() {
  if (!ticket_) return;
  const uint64_t ticket = ticket_;
  device_->wait(ticket, waited_ns_ > 4 * AWAKE_NS ? uint64_t(waited_ns_ - AWAKE_NS) : 0);
  ticket_ = 0;
  waited_ns_ = double(now_ns() - submitted_ns_);
  if (*static_cast<volatile uint32_t*>(device_->canaries().word(canary_)) != ALIVE)
    throw DeviceLost("The Vulkan device ended a step early and said nothing: its driver stops work that takes too long.");
}

std::vector<double> Recording::op_times() {
  wait();
  std::vector<uint64_t> stamps(2 * n_timed_);
  if (!queries_) return {};
  check(device_->vkGetQueryPoolResults(device_->handle, queries_, 0, uint32_t(stamps.size()), 8 * stamps.size(), stamps.data(), 8,
                                       VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
        "read timestamps");
  std::vector<double> times;
  for (size_t i = 0; i < n_timed_; ++i) times.push_back(double(stamps[2 * i + 1] - stamps[2 * i]) * device_->tick_ns);
  return times;
}

}  // namespace tahr::vulkan
