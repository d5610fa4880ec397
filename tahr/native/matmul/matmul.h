// Matrices as the kernels want them, and the ops that multiply by them.
//
// Every op is plain data plus a function `void(const Op&, Worker)`. `n_rows` is read when the op runs. An output element is
// computed by one thread in an order of float operations that depends only on the matrix, so a row's result is the
// same bit for bit whatever other rows, threads or tiles there are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker.h"
#include "pack.h"

namespace tahr {

// ---- activations as int8 ----

// 32 columns of a row rounded to int8: value = scale * code, scale = max|value| / 127, ties to even.
struct QuantBlock {
  int8_t codes[32];
  float scale;
  float scaled_sum;    // scale * sum of the codes
  int32_t minus_sum;   // of the codes; negative, as kernels begin their sums with it
  int32_t minus_half;  // of the first 16
};

// A quantised row is cols / 32 blocks. Matrices that meet one have a multiple of 32 columns, as their formats demand.
constexpr int64_t quantised_row_bytes(int64_t cols) { return cols / 32 * int64_t(sizeof(QuantBlock)); }

// x: f32 rows `cols` wide, one after the other; out: as many quantised rows.
struct QuantiseOp {
  const float* x;
  std::byte* out;
  int64_t cols;
  const int32_t* n_rows;
};

// ---- x @ w.T + bias ----

struct LinearJob {
  const PackedMatrix* matrix;
  float* out;         // [n_rows, matrix->rows]
  const float* bias;  // [matrix->rows], of each matrix of a stack, or null
};

constexpr int MAX_LINEAR_JOBS = 4;

// Up to four matrices with the same columns, met by the same rows. Jobs whose format is dense read `x`, the others
// read `quantised`; one of the two may be null when no job needs it. See `is_dense`.
struct LinearOp {
  LinearJob jobs[MAX_LINEAR_JOBS];
  int n_jobs;
  const float* x;
  const std::byte* quantised;
  const int32_t* n_rows;
};

// ---- experts: stacks of matrices, each row meeting `n_active` of them ----

// Pair p = row * n_active + slot. Sorts the pairs by expert, keeping their order within one:
// pairs of expert e are order[starts[e] : starts[e + 1]]. starts[n_experts] is the number of pairs: its address
// serves as `n_rows` of ops over pairs. Done by one thread.
struct GroupOp {
  const int32_t* experts;  // [n_rows * n_active], each in 0 .. n_experts - 1
  int32_t* starts;         // [n_experts + 1]
  int32_t* order;          // [n_rows * n_active]
  int n_experts;
  int n_active;
  const int32_t* n_rows;
};

// Row p of each job's `out` is row p / pairs_per_row of x times the matrix of pair p's expert: pairs_per_row is n_active
// for gate and up (x has a row per token) and 1 for down (x has a row per pair). `bias` is [n_experts][rows], or null.
struct ExpertsOp {
  LinearJob jobs[MAX_LINEAR_JOBS];
  int n_jobs;
  const float* x;
  const std::byte* quantised;
  const int32_t* starts;
  const int32_t* order;
  int n_experts;
  int pairs_per_row;
};

// ---- embedding ----

// Row ids[t] of a table in its file layout, dequantised exactly as the format says, times `scale`.
// The caller has checked that ids are in 0 .. table_rows - 1.
struct EmbedOp {
  Format format;
  const std::byte* table;
  int64_t table_rows;
  int64_t cols;
  const int32_t* ids;
  float* out;  // [n_rows, cols]
  float scale;
  const int32_t* n_rows;
};

// ---- the machine's best, to measure the others by ----

enum class Roof : uint8_t { BYTES, INTS, FLOATS };

// BYTES reads n_bytes once, shared by the threads; the others do n_repeats * roof_work operations on each thread.
struct RoofOp {
  Roof kind;
  const std::byte* data;  // at least 1024 bytes
  int64_t n_bytes;
  int64_t n_repeats;
};

// What one instruction set offers: dispatch picks a table, packing asks it for the layout.
struct MatmulKernels {
  PanelLayout layout;
  void (*quantise)(const QuantiseOp&, Worker);
  void (*linear)(const LinearOp&, Worker);
  bool (*linear_reads)(const LinearOp&, const Worker&, int64_t, Stretch&);
  void (*group)(const GroupOp&, Worker);
  void (*experts)(const ExpertsOp&, Worker);
  void (*embed)(const EmbedOp&, Worker);
  void (*roof)(const RoofOp&, Worker);
  int64_t (*roof_work)(Roof);  // multiplications and additions of one repeat
};

// Defined once per instruction set in matmul.cpp: tahr::<isa>::matmul_kernels.
namespace scalar { extern const MatmulKernels matmul_kernels; }
namespace avx2 { extern const MatmulKernels matmul_kernels; }
namespace avx512vnni { extern const MatmulKernels matmul_kernels; }
namespace amx { extern const MatmulKernels matmul_kernels; }
namespace neon_dotprod { extern const MatmulKernels matmul_kernels; }
namespace neon_i8mm { extern const MatmulKernels matmul_kernels; }

}  // namespace tahr
