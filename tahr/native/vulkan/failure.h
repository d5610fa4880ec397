// What can go wrong on a device, as sentences.
#pragma once

#include <stdexcept>
#include <string>

#include "api.h"

namespace tahr::vulkan {

// Something failed that will fail again: a driver, a shader, an argument.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// There is no memory left.
struct DeviceFull : DeviceError {
  using DeviceError::DeviceError;
};

// The device is gone, and everything on it.
struct DeviceLost : DeviceError {
  using DeviceError::DeviceError;
};

// Throws what a result means; `action` is what was tried, as in "submit a step".
inline void check(VkResult result, const std::string& action) {
  if (result == VK_SUCCESS) return;
  if (result == VK_ERROR_DEVICE_LOST)
    throw DeviceLost("The Vulkan device was lost when it had to " + action +
                     ": its driver was reset, or ended work that took too long.");
  if (result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY)
    throw DeviceFull("The Vulkan device has not enough memory to " + action + ".");
  throw DeviceError("The Vulkan driver cannot " + action + ": error " + std::to_string(result) + ".");
}

}  // namespace tahr::vulkan
