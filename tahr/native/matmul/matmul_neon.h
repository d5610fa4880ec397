// Products of quantised rows and panels on Arm.
#pragma once

#include "row_block.h"

namespace tahr::TAHR_ISA {

// Any number of rows. Each sum is formed by the same operations in the same order however many there are.
void run_neon_block(const RowBlock& block, std::byte* scratch);

}  // namespace tahr::TAHR_ISA
