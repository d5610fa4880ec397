// A part of the Vulkan API, for processors of 64 bits: cut from the Khronos Vulkan headers 1.3.239 to what Tahr uses.
// Copyright 2015-2023 The Khronos Group Inc. SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include "api_objects.h"

enum : int32_t {
  VK_SUCCESS = 0,
  VK_TIMEOUT = 2,
  VK_ERROR_OUT_OF_HOST_MEMORY = -1,
  VK_ERROR_OUT_OF_DEVICE_MEMORY = -2,
  VK_ERROR_DEVICE_LOST = -4,
  VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU = 1,
  VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU = 2,
  VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU = 3,
  VK_PHYSICAL_DEVICE_TYPE_CPU = 4,
  VK_PIPELINE_BIND_POINT_COMPUTE = 1,
  VK_COMMAND_BUFFER_LEVEL_PRIMARY = 0,
  VK_QUERY_TYPE_TIMESTAMP = 2,
  VK_SEMAPHORE_TYPE_TIMELINE = 1,
};

enum : uint32_t {
  VK_QUEUE_COMPUTE_BIT = 0x00000002,
  VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT = 0x00000001,
  VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT = 0x00000002,
  VK_MEMORY_PROPERTY_HOST_COHERENT_BIT = 0x00000004,
  VK_MEMORY_PROPERTY_HOST_CACHED_BIT = 0x00000008,
  VK_MEMORY_HEAP_DEVICE_LOCAL_BIT = 0x00000001,
  VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT = 0x00000002,
  VK_BUFFER_USAGE_STORAGE_BUFFER_BIT = 0x00000020,
  VK_BUFFER_USAGE_TRANSFER_SRC_BIT = 0x00000001,
  VK_BUFFER_USAGE_TRANSFER_DST_BIT = 0x00000002,
  VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT = 0x00020000,
  VK_SHADER_STAGE_COMPUTE_BIT = 0x00000020,
  VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT = 0x00000002,
  VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT = 0x00000800,
  VK_PIPELINE_STAGE_TRANSFER_BIT = 0x00001000,
  VK_PIPELINE_STAGE_HOST_BIT = 0x00004000,
  VK_PIPELINE_STAGE_ALL_COMMANDS_BIT = 0x00010000,
  VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT = 0x00002000,
  VK_ACCESS_SHADER_READ_BIT = 0x00000020,
  VK_ACCESS_SHADER_WRITE_BIT = 0x00000040,
  VK_ACCESS_TRANSFER_WRITE_BIT = 0x00001000,
  VK_ACCESS_HOST_READ_BIT = 0x00002000,
  VK_ACCESS_HOST_WRITE_BIT = 0x00004000,
  VK_ACCESS_MEMORY_READ_BIT = 0x00008000,
  VK_ACCESS_MEMORY_WRITE_BIT = 0x00010000,
  VK_SUBGROUP_FEATURE_BASIC_BIT = 0x00000001,
  VK_SUBGROUP_FEATURE_ARITHMETIC_BIT = 0x00000004,
  VK_SUBGROUP_FEATURE_SHUFFLE_BIT = 0x00000010,
  VK_SUBGROUP_FEATURE_CLUSTERED_BIT = 0x00000040,
  VK_QUERY_RESULT_64_BIT = 0x00000001,
  VK_QUERY_RESULT_WAIT_BIT = 0x00000002,
  VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR = 0x00000001,
  VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT = 0x00000002,
};

// The number by which a structure says what it is.
template <class T>
constexpr VkStructureType TYPE_OF = -1;
template <>
inline constexpr VkStructureType TYPE_OF<VkPhysicalDeviceVulkan11Properties> = 50;
template <>
inline constexpr VkStructureType TYPE_OF<VkPhysicalDeviceVulkan12Properties> = 52;
template <>
inline constexpr VkStructureType TYPE_OF<VkPhysicalDeviceVulkan13Properties> = 54;
template <>
inline constexpr VkStructureType TYPE_OF<VkPhysicalDeviceVulkan11Features> = 49;
template <>
inline constexpr VkStructureType TYPE_OF<VkPhysicalDeviceVulkan12Features> = 51;
template <>
inline constexpr VkStructureType TYPE_OF<VkPhysicalDeviceVulkan13Features> = 53;
template <>
inline constexpr VkStructureType TYPE_OF<VkPhysicalDeviceMemoryBudgetPropertiesEXT> = 1000237000;
template <>
inline constexpr VkStructureType TYPE_OF<VkMemoryAllocateFlagsInfo> = 1000060000;
template <>
inline constexpr VkStructureType TYPE_OF<VkPipelineShaderStageRequiredSubgroupSizeCreateInfo> = 1000225001;
template <>
inline constexpr VkStructureType TYPE_OF<VkApplicationInfo> = 0;
template <>
inline constexpr VkStructureType TYPE_OF<VkPhysicalDeviceFeatures2> = 1000059000;
template <>
inline constexpr VkStructureType TYPE_OF<VkTimelineSemaphoreSubmitInfo> = 1000207003;
template <>
inline constexpr VkStructureType TYPE_OF<VkSemaphoreTypeCreateInfo> = 1000207002;
template <>
inline constexpr VkStructureType TYPE_OF<VkInstanceCreateInfo> = 1;
template <>
inline constexpr VkStructureType TYPE_OF<VkPhysicalDeviceProperties2> = 1000059001;
template <>
inline constexpr VkStructureType TYPE_OF<VkPhysicalDeviceMemoryProperties2> = 1000059006;
template <>
inline constexpr VkStructureType TYPE_OF<VkDeviceQueueCreateInfo> = 2;
template <>
inline constexpr VkStructureType TYPE_OF<VkDeviceCreateInfo> = 3;
template <>
inline constexpr VkStructureType TYPE_OF<VkBufferCreateInfo> = 12;
template <>
inline constexpr VkStructureType TYPE_OF<VkMemoryAllocateInfo> = 5;
template <>
inline constexpr VkStructureType TYPE_OF<VkBufferDeviceAddressInfo> = 1000244001;
template <>
inline constexpr VkStructureType TYPE_OF<VkShaderModuleCreateInfo> = 16;
template <>
inline constexpr VkStructureType TYPE_OF<VkPipelineLayoutCreateInfo> = 30;
template <>
inline constexpr VkStructureType TYPE_OF<VkPipelineShaderStageCreateInfo> = 18;
template <>
inline constexpr VkStructureType TYPE_OF<VkComputePipelineCreateInfo> = 29;
template <>
inline constexpr VkStructureType TYPE_OF<VkPipelineCacheCreateInfo> = 17;
template <>
inline constexpr VkStructureType TYPE_OF<VkCommandPoolCreateInfo> = 39;
template <>
inline constexpr VkStructureType TYPE_OF<VkCommandBufferAllocateInfo> = 40;
template <>
inline constexpr VkStructureType TYPE_OF<VkCommandBufferBeginInfo> = 42;
template <>
inline constexpr VkStructureType TYPE_OF<VkMemoryBarrier> = 46;
template <>
inline constexpr VkStructureType TYPE_OF<VkSubmitInfo> = 4;
template <>
inline constexpr VkStructureType TYPE_OF<VkSemaphoreCreateInfo> = 9;
template <>
inline constexpr VkStructureType TYPE_OF<VkSemaphoreWaitInfo> = 1000207004;
template <>
inline constexpr VkStructureType TYPE_OF<VkQueryPoolCreateInfo> = 11;
template <>
inline constexpr VkStructureType TYPE_OF<VkPhysicalDeviceCooperativeMatrixFeaturesKHR> = 1000506000;
template <>
inline constexpr VkStructureType TYPE_OF<VkCooperativeMatrixPropertiesKHR> = 1000506001;

typedef VkResult (VKAPI_PTR *PFN_vkEnumerateInstanceVersion)(uint32_t* pApiVersion);
typedef VkResult (VKAPI_PTR *PFN_vkEnumerateInstanceExtensionProperties)(const char* pLayerName,
    uint32_t* pPropertyCount, VkExtensionProperties* pProperties);
typedef VkResult (VKAPI_PTR *PFN_vkCreateInstance)(const VkInstanceCreateInfo* pCreateInfo, const void* pAllocator,
    VkInstance* pInstance);
typedef void (VKAPI_PTR *PFN_vkVoidFunction)(void);
typedef PFN_vkVoidFunction (VKAPI_PTR *PFN_vkGetInstanceProcAddr)(VkInstance instance, const char* pName);
typedef VkResult (VKAPI_PTR *PFN_vkEnumeratePhysicalDevices)(VkInstance instance, uint32_t* pPhysicalDeviceCount,
    VkPhysicalDevice* pPhysicalDevices);
typedef void (VKAPI_PTR *PFN_vkGetPhysicalDeviceProperties2)(VkPhysicalDevice physicalDevice,
    VkPhysicalDeviceProperties2* pProperties);
typedef void (VKAPI_PTR *PFN_vkGetPhysicalDeviceFeatures2)(VkPhysicalDevice physicalDevice,
    VkPhysicalDeviceFeatures2* pFeatures);
typedef void (VKAPI_PTR *PFN_vkGetPhysicalDeviceMemoryProperties2)(VkPhysicalDevice physicalDevice,
    VkPhysicalDeviceMemoryProperties2* pMemoryProperties);
typedef VkResult (VKAPI_PTR *PFN_vkEnumerateDeviceExtensionProperties)(VkPhysicalDevice physicalDevice,
    const char* pLayerName, uint32_t* pPropertyCount, VkExtensionProperties* pProperties);
typedef void (VKAPI_PTR *PFN_vkGetPhysicalDeviceQueueFamilyProperties)(VkPhysicalDevice physicalDevice,
    uint32_t* pQueueFamilyPropertyCount, VkQueueFamilyProperties* pQueueFamilyProperties);
typedef VkResult (VKAPI_PTR *PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)(VkPhysicalDevice physicalDevice,
    uint32_t* pPropertyCount, VkCooperativeMatrixPropertiesKHR* pProperties);
typedef VkResult (VKAPI_PTR *PFN_vkCreateDevice)(VkPhysicalDevice physicalDevice,
    const VkDeviceCreateInfo* pCreateInfo, const void* pAllocator, VkDevice* pDevice);
typedef void (VKAPI_PTR *PFN_vkDestroyDevice)(VkDevice device, const void* pAllocator);
typedef PFN_vkVoidFunction (VKAPI_PTR *PFN_vkGetDeviceProcAddr)(VkDevice device, const char* pName);
typedef void (VKAPI_PTR *PFN_vkGetDeviceQueue)(VkDevice device, uint32_t queueFamilyIndex, uint32_t queueIndex,
    VkQueue* pQueue);
typedef VkResult (VKAPI_PTR *PFN_vkCreateBuffer)(VkDevice device, const VkBufferCreateInfo* pCreateInfo,
    const void* pAllocator, VkBuffer* pBuffer);
typedef void (VKAPI_PTR *PFN_vkDestroyBuffer)(VkDevice device, VkBuffer buffer, const void* pAllocator);
typedef void (VKAPI_PTR *PFN_vkGetBufferMemoryRequirements)(VkDevice device, VkBuffer buffer,
    VkMemoryRequirements* pMemoryRequirements);
typedef VkResult (VKAPI_PTR *PFN_vkAllocateMemory)(VkDevice device, const VkMemoryAllocateInfo* pAllocateInfo,
    const void* pAllocator, VkDeviceMemory* pMemory);
typedef void (VKAPI_PTR *PFN_vkFreeMemory)(VkDevice device, VkDeviceMemory memory, const void* pAllocator);
typedef VkResult (VKAPI_PTR *PFN_vkBindBufferMemory)(VkDevice device, VkBuffer buffer, VkDeviceMemory memory,
    VkDeviceSize memoryOffset);
typedef VkResult (VKAPI_PTR *PFN_vkMapMemory)(VkDevice device, VkDeviceMemory memory, VkDeviceSize offset,
    VkDeviceSize size, VkMemoryMapFlags flags, void** ppData);
typedef VkDeviceAddress (VKAPI_PTR *PFN_vkGetBufferDeviceAddress)(VkDevice device,
    const VkBufferDeviceAddressInfo* pInfo);
typedef VkResult (VKAPI_PTR *PFN_vkCreateShaderModule)(VkDevice device, const VkShaderModuleCreateInfo* pCreateInfo,
    const void* pAllocator, VkShaderModule* pShaderModule);
typedef void (VKAPI_PTR *PFN_vkDestroyShaderModule)(VkDevice device, VkShaderModule shaderModule,
    const void* pAllocator);
typedef VkResult (VKAPI_PTR *PFN_vkCreatePipelineLayout)(VkDevice device,
    const VkPipelineLayoutCreateInfo* pCreateInfo, const void* pAllocator, VkPipelineLayout* pPipelineLayout);
typedef void (VKAPI_PTR *PFN_vkDestroyPipelineLayout)(VkDevice device, VkPipelineLayout pipelineLayout,
    const void* pAllocator);
typedef VkResult (VKAPI_PTR *PFN_vkCreateComputePipelines)(VkDevice device, VkPipelineCache pipelineCache,
    uint32_t createInfoCount, const VkComputePipelineCreateInfo* pCreateInfos, const void* pAllocator,
    VkPipeline* pPipelines);
typedef void (VKAPI_PTR *PFN_vkDestroyPipeline)(VkDevice device, VkPipeline pipeline, const void* pAllocator);
typedef VkResult (VKAPI_PTR *PFN_vkCreatePipelineCache)(VkDevice device,
    const VkPipelineCacheCreateInfo* pCreateInfo, const void* pAllocator, VkPipelineCache* pPipelineCache);
typedef void (VKAPI_PTR *PFN_vkDestroyPipelineCache)(VkDevice device, VkPipelineCache pipelineCache,
    const void* pAllocator);
typedef VkResult (VKAPI_PTR *PFN_vkGetPipelineCacheData)(VkDevice device, VkPipelineCache pipelineCache,
    size_t* pDataSize, void* pData);
typedef VkResult (VKAPI_PTR *PFN_vkCreateCommandPool)(VkDevice device, const VkCommandPoolCreateInfo* pCreateInfo,
    const void* pAllocator, VkCommandPool* pCommandPool);
typedef void (VKAPI_PTR *PFN_vkDestroyCommandPool)(VkDevice device, VkCommandPool commandPool,
    const void* pAllocator);
typedef VkResult (VKAPI_PTR *PFN_vkAllocateCommandBuffers)(VkDevice device,
    const VkCommandBufferAllocateInfo* pAllocateInfo, VkCommandBuffer* pCommandBuffers);
typedef VkResult (VKAPI_PTR *PFN_vkBeginCommandBuffer)(VkCommandBuffer commandBuffer,
    const VkCommandBufferBeginInfo* pBeginInfo);
typedef VkResult (VKAPI_PTR *PFN_vkEndCommandBuffer)(VkCommandBuffer commandBuffer);
typedef void (VKAPI_PTR *PFN_vkCmdBindPipeline)(VkCommandBuffer commandBuffer,
    VkPipelineBindPoint pipelineBindPoint, VkPipeline pipeline);
typedef void (VKAPI_PTR *PFN_vkCmdPushConstants)(VkCommandBuffer commandBuffer, VkPipelineLayout layout,
    VkShaderStageFlags stageFlags, uint32_t offset, uint32_t size, const void* pValues);
typedef void (VKAPI_PTR *PFN_vkCmdDispatch)(VkCommandBuffer commandBuffer, uint32_t groupCountX,
    uint32_t groupCountY, uint32_t groupCountZ);
typedef void (VKAPI_PTR *PFN_vkCmdPipelineBarrier)(VkCommandBuffer commandBuffer, VkPipelineStageFlags srcStageMask,
    VkPipelineStageFlags dstStageMask, VkDependencyFlags dependencyFlags, uint32_t memoryBarrierCount,
    const VkMemoryBarrier* pMemoryBarriers, uint32_t bufferMemoryBarrierCount,
    const VkBufferMemoryBarrier* pBufferMemoryBarriers, uint32_t imageMemoryBarrierCount,
    const VkImageMemoryBarrier* pImageMemoryBarriers);
typedef void (VKAPI_PTR *PFN_vkCmdCopyBuffer)(VkCommandBuffer commandBuffer, VkBuffer srcBuffer, VkBuffer dstBuffer,
    uint32_t regionCount, const VkBufferCopy* pRegions);
typedef void (VKAPI_PTR *PFN_vkCmdFillBuffer)(VkCommandBuffer commandBuffer, VkBuffer dstBuffer,
    VkDeviceSize dstOffset, VkDeviceSize size, uint32_t data);
typedef VkResult (VKAPI_PTR *PFN_vkQueueSubmit)(VkQueue queue, uint32_t submitCount, const VkSubmitInfo* pSubmits,
    VkFence fence);
typedef VkResult (VKAPI_PTR *PFN_vkCreateSemaphore)(VkDevice device, const VkSemaphoreCreateInfo* pCreateInfo,
    const void* pAllocator, VkSemaphore* pSemaphore);
typedef void (VKAPI_PTR *PFN_vkDestroySemaphore)(VkDevice device, VkSemaphore semaphore, const void* pAllocator);
typedef VkResult (VKAPI_PTR *PFN_vkWaitSemaphores)(VkDevice device, const VkSemaphoreWaitInfo* pWaitInfo,
    uint64_t timeout);
typedef VkResult (VKAPI_PTR *PFN_vkGetSemaphoreCounterValue)(VkDevice device, VkSemaphore semaphore,
    uint64_t* pValue);
typedef VkResult (VKAPI_PTR *PFN_vkDeviceWaitIdle)(VkDevice device);
typedef VkResult (VKAPI_PTR *PFN_vkCreateQueryPool)(VkDevice device, const VkQueryPoolCreateInfo* pCreateInfo,
    const void* pAllocator, VkQueryPool* pQueryPool);
typedef void (VKAPI_PTR *PFN_vkDestroyQueryPool)(VkDevice device, VkQueryPool queryPool, const void* pAllocator);
typedef void (VKAPI_PTR *PFN_vkCmdResetQueryPool)(VkCommandBuffer commandBuffer, VkQueryPool queryPool,
    uint32_t firstQuery, uint32_t queryCount);
typedef void (VKAPI_PTR *PFN_vkCmdWriteTimestamp)(VkCommandBuffer commandBuffer,
    VkPipelineStageFlagBits pipelineStage, VkQueryPool queryPool, uint32_t query);
typedef VkResult (VKAPI_PTR *PFN_vkGetQueryPoolResults)(VkDevice device, VkQueryPool queryPool, uint32_t firstQuery,
    uint32_t queryCount, size_t dataSize, void* pData, VkDeviceSize stride, VkQueryResultFlags flags);

#define TAHR_VK_INSTANCE_FUNCTIONS(X) \
  X(vkEnumeratePhysicalDevices) X(vkGetPhysicalDeviceProperties2) X(vkGetPhysicalDeviceFeatures2) \
  X(vkGetPhysicalDeviceMemoryProperties2) X(vkEnumerateDeviceExtensionProperties) \
  X(vkGetPhysicalDeviceQueueFamilyProperties) X(vkCreateDevice) X(vkGetDeviceProcAddr) \
  X(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)

#define TAHR_VK_DEVICE_FUNCTIONS(X) \
  X(vkDestroyDevice) X(vkGetDeviceQueue) X(vkCreateBuffer) X(vkDestroyBuffer) X(vkGetBufferMemoryRequirements) \
  X(vkAllocateMemory) X(vkFreeMemory) X(vkBindBufferMemory) X(vkMapMemory) X(vkGetBufferDeviceAddress) \
  X(vkCreateShaderModule) X(vkDestroyShaderModule) X(vkCreatePipelineLayout) X(vkDestroyPipelineLayout) \
  X(vkCreateComputePipelines) X(vkDestroyPipeline) X(vkCreatePipelineCache) X(vkDestroyPipelineCache) \
  X(vkGetPipelineCacheData) X(vkCreateCommandPool) X(vkDestroyCommandPool) X(vkAllocateCommandBuffers) \
  X(vkBeginCommandBuffer) X(vkEndCommandBuffer) X(vkCmdBindPipeline) X(vkCmdPushConstants) X(vkCmdDispatch) \
  X(vkCmdPipelineBarrier) X(vkCmdCopyBuffer) X(vkCmdFillBuffer) X(vkQueueSubmit) X(vkCreateSemaphore) \
  X(vkDestroySemaphore) X(vkWaitSemaphores) X(vkGetSemaphoreCounterValue) X(vkDeviceWaitIdle) \
  X(vkCreateQueryPool) X(vkDestroyQueryPool) X(vkCmdResetQueryPool) X(vkCmdWriteTimestamp) \
  X(vkGetQueryPoolResults)
