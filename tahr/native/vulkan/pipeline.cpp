#include "pipeline.h"

#include "failure.h"

namespace tahr::vulkan {
namespace {

VkPipeline compile(const Device& device, const std::vector<uint32_t>& code, const std::vector<uint32_t>& constants) {
  VkShaderModuleCreateInfo source{TYPE_OF<VkShaderModuleCreateInfo>};
  source.codeSize = 4 * code.size();
  source.pCode = code.data();
  VkShaderModule module = nullptr;
  check(device.vkCreateShaderModule(device.handle, &source, nullptr, &module), "read a shader");
  std::vector<VkSpecializationMapEntry> entries;
  for (uint32_t i = 0; i < constants.size(); ++i) entries.push_back({i, 4 * i, 4});
  const VkSpecializationInfo values{uint32_t(entries.size()), entries.data(), 4 * constants.size(), constants.data()};
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size{TYPE_OF<VkPipelineShaderStageRequiredSubgroupSizeCreateInfo>};
  size.requiredSubgroupSize = device.facts.subgroup_size;
  VkComputePipelineCreateInfo info{TYPE_OF<VkComputePipelineCreateInfo>};
  info.layout = device.layout;
  info.stage = {TYPE_OF<VkPipelineShaderStageCreateInfo>, &size, VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT,
                VK_SHADER_STAGE_COMPUTE_BIT, module, "main", &values};
  VkPipeline made = nullptr;
  const VkResult result = device.vkCreateComputePipelines(device.handle, device.cache, 1, &info, nullptr, &made);
  device.vkDestroyShaderModule(device.handle, module, nullptr);
  check(result, "compile a shader");
  return made;
}

}  // namespace

Pipeline::Pipeline(std::shared_ptr<Device> device, std::vector<uint32_t> code, std::vector<uint32_t> constants)
    : device_(std::move(device)), code_(std::move(code)), constants_(std::move(constants)) {
  made_ = std::async(std::launch::async, [this] { return compile(*device_, code_, constants_); });
}

Pipeline::~Pipeline() {
  try {
    device_->vkDestroyPipeline(device_->handle, made_.get(), nullptr);
  } catch (const std::exception&) {  // it was never made
  }
}

}  // namespace tahr::vulkan
