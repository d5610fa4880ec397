#include "loader.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "failure.h"

namespace tahr::vulkan {
namespace {

constexpr uint32_t VULKAN_1_3 = 1u << 22 | 3u << 12;
constexpr VkSubgroupFeatureFlags SUBGROUP_OPERATIONS = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT |
                                                       VK_SUBGROUP_FEATURE_SHUFFLE_BIT | VK_SUBGROUP_FEATURE_CLUSTERED_BIT;
constexpr uint32_t LEAST_SUBGROUP = 8;  // kernels let eight invocations share a key
constexpr uint32_t LEAST_GROUP = 512;

#ifdef _WIN32
void* open_library(const char* name) { return reinterpret_cast<void*>(LoadLibraryA(name)); }
void* symbol(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(reinterpret_cast<HMODULE>(library), name));
}
constexpr const char* NAMES[] = {"vulkan-1.dll"};
#else
void* open_library(const char* name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }
void* symbol(void* library, const char* name) { return dlsym(library, name); }
#ifdef __APPLE__
constexpr const char* NAMES[] = {"libvulkan.1.dylib", "libMoltenVK.dylib", "/opt/homebrew/lib/libvulkan.1.dylib",
                                 "/usr/local/lib/libvulkan.1.dylib"};
#else
constexpr const char* NAMES[] = {"libvulkan.so.1", "libvulkan.so"};
#endif
#endif

PFN_vkGetInstanceProcAddr find_entry() {
  for (const char* name : NAMES) {
    void* library = open_library(name);
    void* entry = library ? symbol(library, "vkGetInstanceProcAddr") : nullptr;
    if (entry) return reinterpret_cast<PFN_vkGetInstanceProcAddr>(entry);
  }
  throw DeviceError("there is no Vulkan loader (" + std::string(NAMES[0]) + "): install the driver of your graphics card");
}

// Layers over other systems list their devices only if they are asked for.
bool offers_portability(PFN_vkGetInstanceProcAddr entry) {
  const auto list = reinterpret_cast<PFN_vkEnumerateInstanceExtensionProperties>(
      entry(nullptr, "vkEnumerateInstanceExtensionProperties"));
  uint32_t n = 0;
  if (!list || list(nullptr, &n, nullptr) != VK_SUCCESS) return false;
  std::vector<VkExtensionProperties> found(n);
  if (list(nullptr, &n, found.data()) != VK_SUCCESS) return false;
  return std::any_of(found.begin(), found.end(), [](const VkExtensionProperties& each) {
    return !std::strcmp(each.extensionName, "VK_KHR_portability_enumeration");
  });
}

VkInstance make_instance(PFN_vkGetInstanceProcAddr entry) {
  const auto version = reinterpret_cast<PFN_vkEnumerateInstanceVersion>(entry(nullptr, "vkEnumerateInstanceVersion"));
  uint32_t found = 0;
  if (!version || version(&found) != VK_SUCCESS || found < VULKAN_1_3)
    throw DeviceError("the Vulkan loader is older than 1.3: update the driver of your graphics card");
  VkApplicationInfo application{TYPE_OF<VkApplicationInfo>};
  application.pApplicationName = "tahr";
  application.apiVersion = VULKAN_1_3;
  VkInstanceCreateInfo info{TYPE_OF<VkInstanceCreateInfo>};
  info.pApplicationInfo = &application;
  const char* portability = "VK_KHR_portability_enumeration";
  if (offers_portability(entry)) {
    info.flags = VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR;
    info.enabledExtensionCount = 1;
    info.ppEnabledExtensionNames = &portability;
  }
  const auto create = reinterpret_cast<PFN_vkCreateInstance>(entry(nullptr, "vkCreateInstance"));
  VkInstance instance = nullptr;
  if (!create || create(&info, nullptr, &instance) != VK_SUCCESS)
    throw DeviceError("the Vulkan loader finds no driver: install the driver of your graphics card");
  return instance;
}

Loader make_loader() {
  const PFN_vkGetInstanceProcAddr entry = find_entry();
  Loader loader;
  loader.instance = make_instance(entry);
#define TAHR_VK_LOAD(name) loader.name = reinterpret_cast<PFN_##name>(entry(loader.instance, #name));
  TAHR_VK_INSTANCE_FUNCTIONS(TAHR_VK_LOAD)
  uint32_t n = 0;
  check(loader.vkEnumeratePhysicalDevices(loader.instance, &n, nullptr), "list its devices");
  loader.devices.resize(n);
  check(loader.vkEnumeratePhysicalDevices(loader.instance, &n, loader.devices.data()), "list its devices");
  loader.devices.resize(n);
  if (!n) throw DeviceError("the Vulkan loader finds no device: install the driver of your graphics card");
  return loader;
}

// What a device lacks, as a list of names.
std::string missing_of(const Loader& loader, VkPhysicalDevice device, const VkPhysicalDeviceProperties& properties,
                       const VkPhysicalDeviceVulkan11Properties& eleven) {
  if (properties.apiVersion < VULKAN_1_3) return "Vulkan 1.3";
  VkPhysicalDeviceVulkan13Features f13{TYPE_OF<VkPhysicalDeviceVulkan13Features>};
  VkPhysicalDeviceVulkan12Features f12{TYPE_OF<VkPhysicalDeviceVulkan12Features>, &f13};
  VkPhysicalDeviceVulkan11Features f11{TYPE_OF<VkPhysicalDeviceVulkan11Features>, &f12};
  VkPhysicalDeviceFeatures2 features{TYPE_OF<VkPhysicalDeviceFeatures2>, &f11};
  loader.vkGetPhysicalDeviceFeatures2(device, &features);
  const bool subgroups = (eleven.subgroupSupportedOperations & SUBGROUP_OPERATIONS) == SUBGROUP_OPERATIONS &&
                         eleven.subgroupSize >= LEAST_SUBGROUP;
  const struct {
    bool has;
    const char* name;
  } needed[] = {{f12.bufferDeviceAddress != 0, "bufferDeviceAddress"}, {features.features.shaderInt64 != 0, "shaderInt64"},
                {f11.storageBuffer16BitAccess != 0, "storageBuffer16BitAccess"}, {features.features.shaderInt16 != 0, "shaderInt16"},
                {f12.timelineSemaphore != 0, "timelineSemaphore"}, {f13.shaderIntegerDotProduct != 0, "shaderIntegerDotProduct"},
                {f13.maintenance4 != 0, "maintenance4"},
                {f13.subgroupSizeControl != 0 && f13.computeFullSubgroups != 0, "subgroupSizeControl"},
                {properties.limits.maxComputeWorkGroupInvocations >= LEAST_GROUP, "workgroups of 512 invocations"},
                {subgroups, "subgroups of at least 8 invocations that add and shuffle"}};
  std::string missing;
  for (const auto& [has, name] : needed)
    if (!has) missing += (missing.empty() ? "" : ", ") + std::string(name);
  return missing;
}

uint64_t own_memory(const Loader& loader, VkPhysicalDevice device) {
  VkPhysicalDeviceMemoryProperties2 memory{TYPE_OF<VkPhysicalDeviceMemoryProperties2>};
  loader.vkGetPhysicalDeviceMemoryProperties2(device, &memory);
  uint64_t most = 0;
  for (uint32_t i = 0; i < memory.memoryProperties.memoryHeapCount; ++i) {
    const VkMemoryHeap& heap = memory.memoryProperties.memoryHeaps[i];
    if (heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) most = std::max(most, heap.size);
  }
  return most;
}

// Sizes that kernels are made for, the best first.
constexpr uint32_t MATRICES[][3] = {{16, 16, 16}, {8, 16, 16}, {8, 8, 16}, {8, 8, 8}};

bool multiplies(const VkCooperativeMatrixPropertiesKHR& kind) {
  return kind.AType == VK_COMPONENT_TYPE_FLOAT16_KHR && kind.BType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
         kind.CType == VK_COMPONENT_TYPE_FLOAT32_KHR && kind.ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
         kind.scope == VK_SCOPE_SUBGROUP_KHR && !kind.saturatingAccumulation;
}

// The size of matrices that subgroups of a device multiply, if kernels are made for it.
void find_matrix(const Loader& loader, VkPhysicalDevice device, uint32_t (&found)[3]) {
  if (!loader.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR || !has_extension(loader, device, MATRIX_EXTENSION)) return;
  VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrices{TYPE_OF<VkPhysicalDeviceCooperativeMatrixFeaturesKHR>};
  VkPhysicalDeviceVulkan12Features f12{TYPE_OF<VkPhysicalDeviceVulkan12Features>, &matrices};
  VkPhysicalDeviceFeatures2 features{TYPE_OF<VkPhysicalDeviceFeatures2>, &f12};
  loader.vkGetPhysicalDeviceFeatures2(device, &features);
  if (!matrices.cooperativeMatrix || !f12.shaderFloat16 || !f12.vulkanMemoryModel) return;
  uint32_t n = 0;
  if (loader.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR(device, &n, nullptr) != VK_SUCCESS) return;
  std::vector<VkCooperativeMatrixPropertiesKHR> kinds(n, {TYPE_OF<VkCooperativeMatrixPropertiesKHR>});
  if (loader.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR(device, &n, kinds.data()) != VK_SUCCESS) return;
  for (const auto& size : MATRICES)
    for (const VkCooperativeMatrixPropertiesKHR& kind : kinds)
      if (!found[0] && multiplies(kind) && kind.MSize == size[0] && kind.NSize == size[1] && kind.KSize == size[2])
        std::copy(std::begin(size), std::end(size), found);
}

template <size_t N>
void put(char (&to)[N], const std::string& text) {
  std::strncpy(to, text.c_str(), N - 1);
}

}  // namespace

const Loader& loader() {
  static std::mutex mutex;
  static Loader* made = nullptr;  // never freed: drivers do not like to be unloaded
  const std::lock_guard<std::mutex> lock(mutex);
  if (!made) made = new Loader(make_loader());
  return *made;
}

bool has_extension(const Loader& loader, VkPhysicalDevice device, const char* name) {
  uint32_t n = 0;
  if (loader.vkEnumerateDeviceExtensionProperties(device, nullptr, &n, nullptr) != VK_SUCCESS) return false;
  std::vector<VkExtensionProperties> found(n);
  if (loader.vkEnumerateDeviceExtensionProperties(device, nullptr, &n, found.data()) != VK_SUCCESS) return false;
  return std::any_of(found.begin(), found.end(),
                     [&](const VkExtensionProperties& each) { return !std::strcmp(each.extensionName, name); });
}

DeviceFacts facts_of(const Loader& loader, VkPhysicalDevice device) {
  VkPhysicalDeviceVulkan12Properties p12{TYPE_OF<VkPhysicalDeviceVulkan12Properties>};
  VkPhysicalDeviceVulkan11Properties p11{TYPE_OF<VkPhysicalDeviceVulkan11Properties>, &p12};
  VkPhysicalDeviceProperties2 properties{TYPE_OF<VkPhysicalDeviceProperties2>, &p11};
  loader.vkGetPhysicalDeviceProperties2(device, &properties);
  const VkPhysicalDeviceProperties& plain = properties.properties;
  DeviceFacts facts{};
  put(facts.name, plain.deviceName);
  put(facts.driver, std::string(p12.driverName) + " " + p12.driverInfo);
  put(facts.missing, missing_of(loader, device, plain, p11));
  facts.type = uint32_t(plain.deviceType);
  facts.api_version = plain.apiVersion;
  facts.driver_version = plain.driverVersion;
  facts.vendor = plain.vendorID;
  facts.subgroup_size = p11.subgroupSize;
  facts.shared_bytes = plain.limits.maxComputeSharedMemorySize;
  facts.memory_bytes = own_memory(loader, device);
  std::memcpy(facts.driver_id, plain.pipelineCacheUUID, sizeof facts.driver_id);
  find_matrix(loader, device, facts.matrix);
  return facts;
}

}  // namespace tahr::vulkan
