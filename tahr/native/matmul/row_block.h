// Some panels of a matrix, met by some rows that were quantised.
#pragma once

#include "matmul.h"

namespace tahr::TAHR_ISA {

constexpr int MAX_BLOCK_ROWS = 64;

struct RowBlock {
  const PackedMatrix* matrix;
  int64_t index;  // of the matrix in its stack
  Range panels;
  const float* bias;  // of the matrix, or null
  int n_rows;
  const std::byte* x[MAX_BLOCK_ROWS];  // QuantBlocks
  float* out[MAX_BLOCK_ROWS];          // whole rows of the result
};

}  // namespace tahr::TAHR_ISA
