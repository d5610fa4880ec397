// CRC-32C (Castagnoli), which processors have an instruction for: it finds every flipped bit, and every run of up to 32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tahr {

// The sum of bytes that follow others, whose own sum is `before` (0: none).
uint32_t crc32c(uint32_t before, const std::byte* data, int64_t n_bytes);

// The same without the instruction.
uint32_t crc32c_by_table(uint32_t before, const std::byte* data, int64_t n_bytes);

}  // namespace tahr
