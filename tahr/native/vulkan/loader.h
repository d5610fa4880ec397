// The Vulkan loader of this machine, found at run time, and the devices it knows.
#pragma once

#include <string>
#include <vector>

#include "api.h"

namespace tahr::vulkan {

constexpr const char* MATRIX_EXTENSION = "VK_KHR_cooperative_matrix";

// What is said of a device before it is opened. Plain bytes: a child process sends them through a pipe.
struct DeviceFacts {
  char name[256];
  char driver[512];
  char missing[512];  // features that Tahr needs and the device has not; empty: it can be used
  uint32_t type;      // VkPhysicalDeviceType
  uint32_t api_version;
  uint32_t driver_version;
  uint32_t vendor;
  uint32_t subgroup_size;
  uint32_t shared_bytes;
  uint64_t memory_bytes;  // of the largest heap that is the device's own
  uint8_t driver_id[16];  // changes with the driver
  uint32_t matrix[3];     // m, n and k of the products of f16 matrices that subgroups sum in f32; 0: there are none
};

// The loader's functions and one instance, made at the first call and kept until the process ends.
struct Loader {
  VkInstance instance = nullptr;
  std::vector<VkPhysicalDevice> devices;
#define TAHR_VK_MEMBER(name) PFN_##name name = nullptr;
  TAHR_VK_INSTANCE_FUNCTIONS(TAHR_VK_MEMBER)
};

// Throws a sentence where there is no loader, no driver or no device.
const Loader& loader();

DeviceFacts facts_of(const Loader& loader, VkPhysicalDevice device);

bool has_extension(const Loader& loader, VkPhysicalDevice device, const char* name);

// The devices of this machine, asked for in a child process where the system has such: a driver that crashes or hangs takes
// the child with it. Throws a sentence where there is none.
std::vector<DeviceFacts> probe(int timeout_s);

}  // namespace tahr::vulkan
