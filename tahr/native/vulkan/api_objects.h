// A part of the Vulkan API, for processors of 64 bits: cut from the Khronos Vulkan headers 1.3.239 to what Tahr uses.
// Copyright 2015-2023 The Khronos Group Inc. SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include "api_device.h"

struct VkMemoryAllocateFlagsInfo {
  VkStructureType sType;
  const void* pNext;
  VkMemoryAllocateFlags flags;
  uint32_t deviceMask;
};

struct VkPipelineShaderStageRequiredSubgroupSizeCreateInfo {
  VkStructureType sType;
  void* pNext;
  uint32_t requiredSubgroupSize;
};

struct VkApplicationInfo {
  VkStructureType sType;
  const void* pNext;
  const char* pApplicationName;
  uint32_t applicationVersion;
  const char* pEngineName;
  uint32_t engineVersion, apiVersion;
};

struct VkTimelineSemaphoreSubmitInfo {
  VkStructureType sType;
  const void* pNext;
  uint32_t waitSemaphoreValueCount;
  const uint64_t* pWaitSemaphoreValues;
  uint32_t signalSemaphoreValueCount;
  const uint64_t* pSignalSemaphoreValues;
};

struct VkSemaphoreTypeCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkSemaphoreType semaphoreType;
  uint64_t initialValue;
};

struct VkExtensionProperties {
  char extensionName[256];
  uint32_t specVersion;
};

struct VkInstanceCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkInstanceCreateFlags flags;
  const VkApplicationInfo* pApplicationInfo;
  uint32_t enabledLayerCount;
  const char* const* ppEnabledLayerNames;
  uint32_t enabledExtensionCount;
  const char* const* ppEnabledExtensionNames;
};

struct VkExtent3D {
  uint32_t width, height, depth;
};

struct VkQueueFamilyProperties {
  VkQueueFlags queueFlags;
  uint32_t queueCount, timestampValidBits;
  VkExtent3D minImageTransferGranularity;
};

struct VkDeviceQueueCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkDeviceQueueCreateFlags flags;
  uint32_t queueFamilyIndex, queueCount;
  const float* pQueuePriorities;
};

struct VkDeviceCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkDeviceCreateFlags flags;
  uint32_t queueCreateInfoCount;
  const VkDeviceQueueCreateInfo* pQueueCreateInfos;
  uint32_t enabledLayerCount;
  const char* const* ppEnabledLayerNames;
  uint32_t enabledExtensionCount;
  const char* const* ppEnabledExtensionNames;
  const VkPhysicalDeviceFeatures* pEnabledFeatures;
};

struct VkBufferCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkBufferCreateFlags flags;
  VkDeviceSize size;
  VkBufferUsageFlags usage;
  VkSharingMode sharingMode;
  uint32_t queueFamilyIndexCount;
  const uint32_t* pQueueFamilyIndices;
};

struct VkMemoryRequirements {
  VkDeviceSize size, alignment;
  uint32_t memoryTypeBits;
};

struct VkMemoryAllocateInfo {
  VkStructureType sType;
  const void* pNext;
  VkDeviceSize allocationSize;
  uint32_t memoryTypeIndex;
};

struct VkBufferDeviceAddressInfo {
  VkStructureType sType;
  const void* pNext;
  VkBuffer buffer;
};

struct VkShaderModuleCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkShaderModuleCreateFlags flags;
  size_t codeSize;
  const uint32_t* pCode;
};

struct VkPushConstantRange {
  VkShaderStageFlags stageFlags;
  uint32_t offset, size;
};

struct VkPipelineLayoutCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkPipelineLayoutCreateFlags flags;
  uint32_t setLayoutCount;
  const VkDescriptorSetLayout* pSetLayouts;
  uint32_t pushConstantRangeCount;
  const VkPushConstantRange* pPushConstantRanges;
};

struct VkSpecializationMapEntry {
  uint32_t constantID, offset;
  size_t size;
};

struct VkSpecializationInfo {
  uint32_t mapEntryCount;
  const VkSpecializationMapEntry* pMapEntries;
  size_t dataSize;
  const void* pData;
};

struct VkPipelineShaderStageCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkPipelineShaderStageCreateFlags flags;
  VkShaderStageFlagBits stage;
  VkShaderModule module;
  const char* pName;
  const VkSpecializationInfo* pSpecializationInfo;
};

struct VkComputePipelineCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkPipelineCreateFlags flags;
  VkPipelineShaderStageCreateInfo stage;
  VkPipelineLayout layout;
  VkPipeline basePipelineHandle;
  int32_t basePipelineIndex;
};

struct VkPipelineCacheCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkPipelineCacheCreateFlags flags;
  size_t initialDataSize;
  const void* pInitialData;
};

struct VkCommandPoolCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkCommandPoolCreateFlags flags;
  uint32_t queueFamilyIndex;
};

struct VkCommandBufferAllocateInfo {
  VkStructureType sType;
  const void* pNext;
  VkCommandPool commandPool;
  VkCommandBufferLevel level;
  uint32_t commandBufferCount;
};

struct VkCommandBufferInheritanceInfo {
  VkStructureType sType;
  const void* pNext;
  VkRenderPass renderPass;
  uint32_t subpass;
  VkFramebuffer framebuffer;
  VkBool32 occlusionQueryEnable;
  VkQueryControlFlags queryFlags;
  VkQueryPipelineStatisticFlags pipelineStatistics;
};

struct VkCommandBufferBeginInfo {
  VkStructureType sType;
  const void* pNext;
  VkCommandBufferUsageFlags flags;
  const VkCommandBufferInheritanceInfo* pInheritanceInfo;
};

struct VkMemoryBarrier {
  VkStructureType sType;
  const void* pNext;
  VkAccessFlags srcAccessMask, dstAccessMask;
};

struct VkBufferMemoryBarrier {
  VkStructureType sType;
  const void* pNext;
  VkAccessFlags srcAccessMask, dstAccessMask;
  uint32_t srcQueueFamilyIndex, dstQueueFamilyIndex;
  VkBuffer buffer;
  VkDeviceSize offset, size;
};

struct VkImageSubresourceRange {
  VkImageAspectFlags aspectMask;
  uint32_t baseMipLevel, levelCount, baseArrayLayer, layerCount;
};

struct VkImageMemoryBarrier {
  VkStructureType sType;
  const void* pNext;
  VkAccessFlags srcAccessMask, dstAccessMask;
  VkImageLayout oldLayout, newLayout;
  uint32_t srcQueueFamilyIndex, dstQueueFamilyIndex;
  VkImage image;
  VkImageSubresourceRange subresourceRange;
};

struct VkBufferCopy {
  VkDeviceSize srcOffset, dstOffset, size;
};

struct VkSubmitInfo {
  VkStructureType sType;
  const void* pNext;
  uint32_t waitSemaphoreCount;
  const VkSemaphore* pWaitSemaphores;
  const VkPipelineStageFlags* pWaitDstStageMask;
  uint32_t commandBufferCount;
  const VkCommandBuffer* pCommandBuffers;
  uint32_t signalSemaphoreCount;
  const VkSemaphore* pSignalSemaphores;
};

struct VkSemaphoreCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkSemaphoreCreateFlags flags;
};

struct VkSemaphoreWaitInfo {
  VkStructureType sType;
  const void* pNext;
  VkSemaphoreWaitFlags flags;
  uint32_t semaphoreCount;
  const VkSemaphore* pSemaphores;
  const uint64_t* pValues;
};

struct VkQueryPoolCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkQueryPoolCreateFlags flags;
  VkQueryType queryType;
  uint32_t queryCount;
  VkQueryPipelineStatisticFlags pipelineStatistics;
};
