// Many rows at once by tile instructions. Only for the instruction set `amx`.
#pragma once

#include "row_block.h"

namespace tahr::TAHR_ISA {

constexpr int AMX_TILE_ROWS = 16;
constexpr int AMX_MIN_ROWS = 32;   // fewer do not repay the unpacking: at 16 the kernels for a few rows are 5 to 35 % faster

// The number of rows is a multiple of AMX_TILE_ROWS. Every sum is made by the operations of `quantised_tile` in their order, so the results are the same to the bit.
void run_amx_block(const RowBlock& block, std::byte* scratch);

}  // namespace tahr::TAHR_ISA
