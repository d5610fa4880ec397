// Some panels of a matrix, met by some rows, and the kernels that only some instruction sets have for them.
#pragma once

#include "matmul.h"
#include "quants.h"
#include "simd.h"

namespace tahr::TAHR_ISA {

constexpr int MAX_BLOCK_ROWS = 64;

struct RowBlock {
  const PackedMatrix* matrix;
  int64_t index;  // of the matrix in its stack
  Range panels;
  const float* bias;  // of the matrix, or null
  int n_rows;
  const std::byte* x[MAX_BLOCK_ROWS];  // QuantBlocks, or floats for dense formats
  float* out[MAX_BLOCK_ROWS];          // whole rows of the result
  Ahead* ahead;                        // of the thread, or null
};

// In all of them every sum is formed by the same operations in the same order as by the kernels for a few rows.

#if defined(TAHR_ISA_amx)

constexpr int AMX_TILE_ROWS = 16;
constexpr int AMX_MIN_ROWS = 32;  // fewer do not repay the unpacking: at 16 the kernels for a few rows are 5 to 35 % faster

// Tiles of 16 columns take as long as tiles of 32: formats with a scale per 16 columns are faster without.
constexpr bool amx_takes(Format format) { return row_of(format).group == PIECE_COLS; }

// A multiple of AMX_TILE_ROWS rows, quantised, and a format that `amx_takes`.
void run_amx_block(const RowBlock& block, std::byte* scratch);

#elif defined(TAHR_NEON)

// Any number of quantised rows.
void run_neon_block(const RowBlock& block, std::byte* scratch);

constexpr int NEON_DENSE_ROWS = 8;

// How many of `n_rows` rows `run_neon_dense` takes: whole tiles, if the matrix has a layout for them.
int neon_dense_rows(const PackedMatrix& m, int64_t n_rows);

// A multiple of NEON_DENSE_ROWS rows of f32 times a dense matrix.
void run_neon_dense(const RowBlock& block, std::byte* scratch);

#endif

}  // namespace tahr::TAHR_ISA
