// Many rows at once by tile instructions. Only for the instruction set `amx`.
#pragma once

#include "matmul.h"

namespace tahr::TAHR_ISA {

constexpr int AMX_TILE_ROWS = 16;
constexpr int AMX_MIN_ROWS = 32;   // fewer do not repay the unpacking: at 16 the kernels for a few rows are 5 to 35 % faster
constexpr int AMX_MAX_ROWS = 64;   // of a block

// Some panels of a matrix, met by some rows.
struct AmxBlock {
  const PackedMatrix* matrix;
  int64_t index;  // of the matrix in its stack
  Range panels;
  const float* bias;                  // of the matrix, or null
  int n_rows;                         // a multiple of AMX_TILE_ROWS
  const std::byte* x[AMX_MAX_ROWS];   // QuantBlocks
  float* out[AMX_MAX_ROWS];           // whole rows of the result
};

// Every sum is made by the operations of `quantised_tile` in their order, so the results are the same to the bit.
void run_amx_block(const AmxBlock& block, std::byte* scratch);

}  // namespace tahr::TAHR_ISA
