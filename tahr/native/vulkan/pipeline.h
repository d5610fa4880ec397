// Shaders made ready for a device, on threads of their own.
#pragma once

#include <future>
#include <memory>
#include <vector>

#include "device.h"

namespace tahr::vulkan {

class Pipeline {
 public:
  // Begins to compile; `constants` are the specialisation constants 0, 1, 2, ...
  Pipeline(std::shared_ptr<Device> device, std::vector<uint32_t> code, std::vector<uint32_t> constants);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Waits until it is compiled, and throws why it cannot be.
  VkPipeline get() const { return made_.get(); }

 private:
  const std::shared_ptr<Device> device_;
  const std::vector<uint32_t> code_;
  const std::vector<uint32_t> constants_;
  std::shared_future<VkPipeline> made_;  // the last member: its thread reads the others
};

}  // namespace tahr::vulkan
