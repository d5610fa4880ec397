// A part of the Vulkan API, for processors of 64 bits: cut from the Khronos Vulkan headers 1.3.239 to what Tahr uses.
// Copyright 2015-2023 The Khronos Group Inc. SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef _WIN32
#define VKAPI_PTR __stdcall
#else
#define VKAPI_PTR
#endif

using VkInstance = struct VkInstance_T*;
using VkPhysicalDevice = struct VkPhysicalDevice_T*;
using VkDevice = struct VkDevice_T*;
using VkQueue = struct VkQueue_T*;
using VkBuffer = struct VkBuffer_T*;
using VkDeviceMemory = struct VkDeviceMemory_T*;
using VkShaderModule = struct VkShaderModule_T*;
using VkDescriptorSetLayout = struct VkDescriptorSetLayout_T*;
using VkPipelineLayout = struct VkPipelineLayout_T*;
using VkPipelineCache = struct VkPipelineCache_T*;
using VkPipeline = struct VkPipeline_T*;
using VkCommandPool = struct VkCommandPool_T*;
using VkCommandBuffer = struct VkCommandBuffer_T*;
using VkRenderPass = struct VkRenderPass_T*;
using VkFramebuffer = struct VkFramebuffer_T*;
using VkImage = struct VkImage_T*;
using VkSemaphore = struct VkSemaphore_T*;
using VkFence = struct VkFence_T*;
using VkQueryPool = struct VkQueryPool_T*;

using VkResult = int32_t;
using VkStructureType = int32_t;
using VkBool32 = uint32_t;
using VkFlags = uint32_t;
using VkShaderStageFlags = VkFlags;
using VkSubgroupFeatureFlags = VkFlags;
using VkPointClippingBehavior = int32_t;
using VkDeviceSize = uint64_t;
using VkDriverId = int32_t;
using VkShaderFloatControlsIndependence = int32_t;
using VkResolveModeFlags = VkFlags;
using VkSampleCountFlags = VkFlags;
using VkMemoryAllocateFlags = VkFlags;
using VkSemaphoreType = int32_t;
using VkMemoryHeapFlags = VkFlags;
using VkInstanceCreateFlags = VkFlags;
using VkPhysicalDeviceType = int32_t;
using VkMemoryPropertyFlags = VkFlags;
using VkQueueFlags = VkFlags;
using VkDeviceCreateFlags = VkFlags;
using VkDeviceQueueCreateFlags = VkFlags;
using VkBufferCreateFlags = VkFlags;
using VkBufferUsageFlags = VkFlags;
using VkSharingMode = int32_t;
using VkMemoryMapFlags = VkFlags;
using VkDeviceAddress = uint64_t;
using VkShaderModuleCreateFlags = VkFlags;
using VkPipelineLayoutCreateFlags = VkFlags;
using VkPipelineCreateFlags = VkFlags;
using VkPipelineShaderStageCreateFlags = VkFlags;
using VkShaderStageFlagBits = int32_t;
using VkPipelineCacheCreateFlags = VkFlags;
using VkCommandPoolCreateFlags = VkFlags;
using VkCommandBufferLevel = int32_t;
using VkCommandBufferUsageFlags = VkFlags;
using VkQueryControlFlags = VkFlags;
using VkQueryPipelineStatisticFlags = VkFlags;
using VkPipelineBindPoint = int32_t;
using VkPipelineStageFlags = VkFlags;
using VkDependencyFlags = VkFlags;
using VkAccessFlags = VkFlags;
using VkImageLayout = int32_t;
using VkImageAspectFlags = VkFlags;
using VkSemaphoreCreateFlags = VkFlags;
using VkSemaphoreWaitFlags = VkFlags;
using VkQueryPoolCreateFlags = VkFlags;
using VkQueryType = int32_t;
using VkPipelineStageFlagBits = int32_t;
using VkQueryResultFlags = VkFlags;

struct VkPhysicalDeviceVulkan11Properties {
  VkStructureType sType;
  void* pNext;
  uint8_t deviceUUID[16], driverUUID[16], deviceLUID[8];
  uint32_t deviceNodeMask;
  VkBool32 deviceLUIDValid;
  uint32_t subgroupSize;
  VkShaderStageFlags subgroupSupportedStages;
  VkSubgroupFeatureFlags subgroupSupportedOperations;
  VkBool32 subgroupQuadOperationsInAllStages;
  VkPointClippingBehavior pointClippingBehavior;
  uint32_t maxMultiviewViewCount, maxMultiviewInstanceIndex;
  VkBool32 protectedNoFault;
  uint32_t maxPerSetDescriptors;
  VkDeviceSize maxMemoryAllocationSize;
};

struct VkConformanceVersion {
  uint8_t major, minor, subminor, patch;
};

struct VkPhysicalDeviceVulkan12Properties {
  VkStructureType sType;
  void* pNext;
  VkDriverId driverID;
  char driverName[256], driverInfo[256];
  VkConformanceVersion conformanceVersion;
  VkShaderFloatControlsIndependence denormBehaviorIndependence, roundingModeIndependence;
  VkBool32 shaderSignedZeroInfNanPreserveFloat16, shaderSignedZeroInfNanPreserveFloat32,
      shaderSignedZeroInfNanPreserveFloat64, shaderDenormPreserveFloat16, shaderDenormPreserveFloat32,
      shaderDenormPreserveFloat64, shaderDenormFlushToZeroFloat16, shaderDenormFlushToZeroFloat32,
      shaderDenormFlushToZeroFloat64, shaderRoundingModeRTEFloat16, shaderRoundingModeRTEFloat32,
      shaderRoundingModeRTEFloat64, shaderRoundingModeRTZFloat16, shaderRoundingModeRTZFloat32,
      shaderRoundingModeRTZFloat64;
  uint32_t maxUpdateAfterBindDescriptorsInAllPools;
  VkBool32 shaderUniformBufferArrayNonUniformIndexingNative, shaderSampledImageArrayNonUniformIndexingNative,
      shaderStorageBufferArrayNonUniformIndexingNative, shaderStorageImageArrayNonUniformIndexingNative,
      shaderInputAttachmentArrayNonUniformIndexingNative, robustBufferAccessUpdateAfterBind, quadDivergentImplicitLod;
  uint32_t maxPerStageDescriptorUpdateAfterBindSamplers, maxPerStageDescriptorUpdateAfterBindUniformBuffers,
      maxPerStageDescriptorUpdateAfterBindStorageBuffers, maxPerStageDescriptorUpdateAfterBindSampledImages,
      maxPerStageDescriptorUpdateAfterBindStorageImages, maxPerStageDescriptorUpdateAfterBindInputAttachments,
      maxPerStageUpdateAfterBindResources, maxDescriptorSetUpdateAfterBindSamplers,
      maxDescriptorSetUpdateAfterBindUniformBuffers, maxDescriptorSetUpdateAfterBindUniformBuffersDynamic,
      maxDescriptorSetUpdateAfterBindStorageBuffers, maxDescriptorSetUpdateAfterBindStorageBuffersDynamic,
      maxDescriptorSetUpdateAfterBindSampledImages, maxDescriptorSetUpdateAfterBindStorageImages,
      maxDescriptorSetUpdateAfterBindInputAttachments;
  VkResolveModeFlags supportedDepthResolveModes, supportedStencilResolveModes;
  VkBool32 independentResolveNone, independentResolve, filterMinmaxSingleComponentFormats,
      filterMinmaxImageComponentMapping;
  uint64_t maxTimelineSemaphoreValueDifference;
  VkSampleCountFlags framebufferIntegerColorSampleCounts;
};

struct VkPhysicalDeviceVulkan13Properties {
  VkStructureType sType;
  void* pNext;
  uint32_t minSubgroupSize, maxSubgroupSize, maxComputeWorkgroupSubgroups;
  VkShaderStageFlags requiredSubgroupSizeStages;
  uint32_t maxInlineUniformBlockSize, maxPerStageDescriptorInlineUniformBlocks,
      maxPerStageDescriptorUpdateAfterBindInlineUniformBlocks, maxDescriptorSetInlineUniformBlocks,
      maxDescriptorSetUpdateAfterBindInlineUniformBlocks, maxInlineUniformTotalSize;
  VkBool32 integerDotProduct8BitUnsignedAccelerated, integerDotProduct8BitSignedAccelerated,
      integerDotProduct8BitMixedSignednessAccelerated, integerDotProduct4x8BitPackedUnsignedAccelerated,
      integerDotProduct4x8BitPackedSignedAccelerated, integerDotProduct4x8BitPackedMixedSignednessAccelerated,
      integerDotProduct16BitUnsignedAccelerated, integerDotProduct16BitSignedAccelerated,
      integerDotProduct16BitMixedSignednessAccelerated, integerDotProduct32BitUnsignedAccelerated,
      integerDotProduct32BitSignedAccelerated, integerDotProduct32BitMixedSignednessAccelerated,
      integerDotProduct64BitUnsignedAccelerated, integerDotProduct64BitSignedAccelerated,
      integerDotProduct64BitMixedSignednessAccelerated,
      integerDotProductAccumulatingSaturating8BitUnsignedAccelerated,
      integerDotProductAccumulatingSaturating8BitSignedAccelerated,
      integerDotProductAccumulatingSaturating8BitMixedSignednessAccelerated,
      integerDotProductAccumulatingSaturating4x8BitPackedUnsignedAccelerated,
      integerDotProductAccumulatingSaturating4x8BitPackedSignedAccelerated,
      integerDotProductAccumulatingSaturating4x8BitPackedMixedSignednessAccelerated,
      integerDotProductAccumulatingSaturating16BitUnsignedAccelerated,
      integerDotProductAccumulatingSaturating16BitSignedAccelerated,
      integerDotProductAccumulatingSaturating16BitMixedSignednessAccelerated,
      integerDotProductAccumulatingSaturating32BitUnsignedAccelerated,
      integerDotProductAccumulatingSaturating32BitSignedAccelerated,
      integerDotProductAccumulatingSaturating32BitMixedSignednessAccelerated,
      integerDotProductAccumulatingSaturating64BitUnsignedAccelerated,
      integerDotProductAccumulatingSaturating64BitSignedAccelerated,
      integerDotProductAccumulatingSaturating64BitMixedSignednessAccelerated;
  VkDeviceSize storageTexelBufferOffsetAlignmentBytes;
  VkBool32 storageTexelBufferOffsetSingleTexelAlignment;
  VkDeviceSize uniformTexelBufferOffsetAlignmentBytes;
  VkBool32 uniformTexelBufferOffsetSingleTexelAlignment;
  VkDeviceSize maxBufferSize;
};

struct VkPhysicalDeviceVulkan11Features {
  VkStructureType sType;
  void* pNext;
  VkBool32 storageBuffer16BitAccess, uniformAndStorageBuffer16BitAccess, storagePushConstant16, storageInputOutput16,
      multiview, multiviewGeometryShader, multiviewTessellationShader, variablePointersStorageBuffer,
      variablePointers, protectedMemory, samplerYcbcrConversion, shaderDrawParameters;
};

struct VkPhysicalDeviceVulkan12Features {
  VkStructureType sType;
  void* pNext;
  VkBool32 samplerMirrorClampToEdge, drawIndirectCount, storageBuffer8BitAccess, uniformAndStorageBuffer8BitAccess,
      storagePushConstant8, shaderBufferInt64Atomics, shaderSharedInt64Atomics, shaderFloat16, shaderInt8,
      descriptorIndexing, shaderInputAttachmentArrayDynamicIndexing, shaderUniformTexelBufferArrayDynamicIndexing,
      shaderStorageTexelBufferArrayDynamicIndexing, shaderUniformBufferArrayNonUniformIndexing,
      shaderSampledImageArrayNonUniformIndexing, shaderStorageBufferArrayNonUniformIndexing,
      shaderStorageImageArrayNonUniformIndexing, shaderInputAttachmentArrayNonUniformIndexing,
      shaderUniformTexelBufferArrayNonUniformIndexing, shaderStorageTexelBufferArrayNonUniformIndexing,
      descriptorBindingUniformBufferUpdateAfterBind, descriptorBindingSampledImageUpdateAfterBind,
      descriptorBindingStorageImageUpdateAfterBind, descriptorBindingStorageBufferUpdateAfterBind,
      descriptorBindingUniformTexelBufferUpdateAfterBind, descriptorBindingStorageTexelBufferUpdateAfterBind,
      descriptorBindingUpdateUnusedWhilePending, descriptorBindingPartiallyBound,
      descriptorBindingVariableDescriptorCount, runtimeDescriptorArray, samplerFilterMinmax, scalarBlockLayout,
      imagelessFramebuffer, uniformBufferStandardLayout, shaderSubgroupExtendedTypes, separateDepthStencilLayouts,
      hostQueryReset, timelineSemaphore, bufferDeviceAddress, bufferDeviceAddressCaptureReplay,
      bufferDeviceAddressMultiDevice, vulkanMemoryModel, vulkanMemoryModelDeviceScope,
      vulkanMemoryModelAvailabilityVisibilityChains, shaderOutputViewportIndex, shaderOutputLayer,
      subgroupBroadcastDynamicId;
};

struct VkPhysicalDeviceVulkan13Features {
  VkStructureType sType;
  void* pNext;
  VkBool32 robustImageAccess, inlineUniformBlock, descriptorBindingInlineUniformBlockUpdateAfterBind,
      pipelineCreationCacheControl, privateData, shaderDemoteToHelperInvocation, shaderTerminateInvocation,
      subgroupSizeControl, computeFullSubgroups, synchronization2, textureCompressionASTC_HDR,
      shaderZeroInitializeWorkgroupMemory, dynamicRendering, shaderIntegerDotProduct, maintenance4;
};

// These two are of 1.3.255 and later.
struct VkPhysicalDeviceCooperativeMatrixFeaturesKHR {
  VkStructureType sType;
  void* pNext;
  VkBool32 cooperativeMatrix, cooperativeMatrixRobustBufferAccess;
};

struct VkCooperativeMatrixPropertiesKHR {
  VkStructureType sType;
  void* pNext;
  uint32_t MSize, NSize, KSize, AType, BType, CType, ResultType;
  VkBool32 saturatingAccumulation;
  uint32_t scope;
};

constexpr uint32_t VK_COMPONENT_TYPE_FLOAT16_KHR = 0, VK_COMPONENT_TYPE_FLOAT32_KHR = 1, VK_SCOPE_SUBGROUP_KHR = 3;

struct VkPhysicalDeviceMemoryBudgetPropertiesEXT {
  VkStructureType sType;
  void* pNext;
  VkDeviceSize heapBudget[16], heapUsage[16];
};

struct VkPhysicalDeviceFeatures {
  VkBool32 robustBufferAccess, fullDrawIndexUint32, imageCubeArray, independentBlend, geometryShader,
      tessellationShader, sampleRateShading, dualSrcBlend, logicOp, multiDrawIndirect, drawIndirectFirstInstance,
      depthClamp, depthBiasClamp, fillModeNonSolid, depthBounds, wideLines, largePoints, alphaToOne, multiViewport,
      samplerAnisotropy, textureCompressionETC2, textureCompressionASTC_LDR, textureCompressionBC,
      occlusionQueryPrecise, pipelineStatisticsQuery, vertexPipelineStoresAndAtomics, fragmentStoresAndAtomics,
      shaderTessellationAndGeometryPointSize, shaderImageGatherExtended, shaderStorageImageExtendedFormats,
      shaderStorageImageMultisample, shaderStorageImageReadWithoutFormat, shaderStorageImageWriteWithoutFormat,
      shaderUniformBufferArrayDynamicIndexing, shaderSampledImageArrayDynamicIndexing,
      shaderStorageBufferArrayDynamicIndexing, shaderStorageImageArrayDynamicIndexing, shaderClipDistance,
      shaderCullDistance, shaderFloat64, shaderInt64, shaderInt16, shaderResourceResidency, shaderResourceMinLod,
      sparseBinding, sparseResidencyBuffer, sparseResidencyImage2D, sparseResidencyImage3D, sparseResidency2Samples,
      sparseResidency4Samples, sparseResidency8Samples, sparseResidency16Samples, sparseResidencyAliased,
      variableMultisampleRate, inheritedQueries;
};

struct VkPhysicalDeviceFeatures2 {
  VkStructureType sType;
  void* pNext;
  VkPhysicalDeviceFeatures features;
};

struct VkPhysicalDeviceLimits {
  uint32_t maxImageDimension1D, maxImageDimension2D, maxImageDimension3D, maxImageDimensionCube, maxImageArrayLayers,
      maxTexelBufferElements, maxUniformBufferRange, maxStorageBufferRange, maxPushConstantsSize,
      maxMemoryAllocationCount, maxSamplerAllocationCount;
  VkDeviceSize bufferImageGranularity, sparseAddressSpaceSize;
  uint32_t maxBoundDescriptorSets, maxPerStageDescriptorSamplers, maxPerStageDescriptorUniformBuffers,
      maxPerStageDescriptorStorageBuffers, maxPerStageDescriptorSampledImages, maxPerStageDescriptorStorageImages,
      maxPerStageDescriptorInputAttachments, maxPerStageResources, maxDescriptorSetSamplers,
      maxDescriptorSetUniformBuffers, maxDescriptorSetUniformBuffersDynamic, maxDescriptorSetStorageBuffers,
      maxDescriptorSetStorageBuffersDynamic, maxDescriptorSetSampledImages, maxDescriptorSetStorageImages,
      maxDescriptorSetInputAttachments, maxVertexInputAttributes, maxVertexInputBindings,
      maxVertexInputAttributeOffset, maxVertexInputBindingStride, maxVertexOutputComponents,
      maxTessellationGenerationLevel, maxTessellationPatchSize, maxTessellationControlPerVertexInputComponents,
      maxTessellationControlPerVertexOutputComponents, maxTessellationControlPerPatchOutputComponents,
      maxTessellationControlTotalOutputComponents, maxTessellationEvaluationInputComponents,
      maxTessellationEvaluationOutputComponents, maxGeometryShaderInvocations, maxGeometryInputComponents,
      maxGeometryOutputComponents, maxGeometryOutputVertices, maxGeometryTotalOutputComponents,
      maxFragmentInputComponents, maxFragmentOutputAttachments, maxFragmentDualSrcAttachments,
      maxFragmentCombinedOutputResources, maxComputeSharedMemorySize, maxComputeWorkGroupCount[3],
      maxComputeWorkGroupInvocations, maxComputeWorkGroupSize[3], subPixelPrecisionBits, subTexelPrecisionBits,
      mipmapPrecisionBits, maxDrawIndexedIndexValue, maxDrawIndirectCount;
  float maxSamplerLodBias, maxSamplerAnisotropy;
  uint32_t maxViewports, maxViewportDimensions[2];
  float viewportBoundsRange[2];
  uint32_t viewportSubPixelBits;
  size_t minMemoryMapAlignment;
  VkDeviceSize minTexelBufferOffsetAlignment, minUniformBufferOffsetAlignment, minStorageBufferOffsetAlignment;
  int32_t minTexelOffset;
  uint32_t maxTexelOffset;
  int32_t minTexelGatherOffset;
  uint32_t maxTexelGatherOffset;
  float minInterpolationOffset, maxInterpolationOffset;
  uint32_t subPixelInterpolationOffsetBits, maxFramebufferWidth, maxFramebufferHeight, maxFramebufferLayers;
  VkSampleCountFlags framebufferColorSampleCounts, framebufferDepthSampleCounts, framebufferStencilSampleCounts,
      framebufferNoAttachmentsSampleCounts;
  uint32_t maxColorAttachments;
  VkSampleCountFlags sampledImageColorSampleCounts, sampledImageIntegerSampleCounts, sampledImageDepthSampleCounts,
      sampledImageStencilSampleCounts, storageImageSampleCounts;
  uint32_t maxSampleMaskWords;
  VkBool32 timestampComputeAndGraphics;
  float timestampPeriod;
  uint32_t maxClipDistances, maxCullDistances, maxCombinedClipAndCullDistances, discreteQueuePriorities;
  float pointSizeRange[2], lineWidthRange[2], pointSizeGranularity, lineWidthGranularity;
  VkBool32 strictLines, standardSampleLocations;
  VkDeviceSize optimalBufferCopyOffsetAlignment, optimalBufferCopyRowPitchAlignment, nonCoherentAtomSize;
};

struct VkPhysicalDeviceSparseProperties {
  VkBool32 residencyStandard2DBlockShape, residencyStandard2DMultisampleBlockShape, residencyStandard3DBlockShape,
      residencyAlignedMipSize, residencyNonResidentStrict;
};

struct VkPhysicalDeviceProperties {
  uint32_t apiVersion, driverVersion, vendorID, deviceID;
  VkPhysicalDeviceType deviceType;
  char deviceName[256];
  uint8_t pipelineCacheUUID[16];
  VkPhysicalDeviceLimits limits;
  VkPhysicalDeviceSparseProperties sparseProperties;
};

struct VkPhysicalDeviceProperties2 {
  VkStructureType sType;
  void* pNext;
  VkPhysicalDeviceProperties properties;
};

struct VkMemoryType {
  VkMemoryPropertyFlags propertyFlags;
  uint32_t heapIndex;
};

struct VkMemoryHeap {
  VkDeviceSize size;
  VkMemoryHeapFlags flags;
};

struct VkPhysicalDeviceMemoryProperties {
  uint32_t memoryTypeCount;
  VkMemoryType memoryTypes[32];
  uint32_t memoryHeapCount;
  VkMemoryHeap memoryHeaps[16];
};

struct VkPhysicalDeviceMemoryProperties2 {
  VkStructureType sType;
  void* pNext;
  VkPhysicalDeviceMemoryProperties memoryProperties;
};
