// Products of rows and panels on Arm.
#pragma once

#include "row_block.h"

namespace tahr::TAHR_ISA {

// Any number of quantised rows. Each sum is formed by the same operations in the same order however many there are.
void run_neon_block(const RowBlock& block, std::byte* scratch);

constexpr int NEON_DENSE_ROWS = 8;

// How many of `n_rows` rows `run_neon_dense` takes: whole tiles, if the matrix has a layout for them.
int neon_dense_rows(const PackedMatrix& m, int64_t n_rows);

// A multiple of NEON_DENSE_ROWS rows of f32 times a dense matrix.
void run_neon_dense(const RowBlock& block, std::byte* scratch);

}  // namespace tahr::TAHR_ISA
