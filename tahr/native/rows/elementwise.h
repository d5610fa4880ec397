// Ops that treat rows or numbers one by one. Rows are contiguous f32; `n_rows` is read when the op runs.
#pragma once

#include <cstdint>

#include "worker.h"

namespace tahr {

enum class Activation : int32_t { silu, gelu_tanh, gelu, sigmoid, relu2, clamped_swiglu, quick_gelu };

// out = columns begin .. begin + width of x
struct ColumnsOp {
  const int32_t* n_rows;
  int64_t width;
  int64_t x_width;
  int64_t begin;
  const float* x;
  float* out;
};

// Head by head, the numbers of x, then those of y.
struct JoinHeadsOp {
  const int32_t* n_rows;
  int64_t n_heads;
  int64_t x_dim, y_dim;
  const float* x;
  const float* y;
  float* out;
};

// Every head of a row normed by itself: out = x / sqrt(mean(x^2) + eps) * gain.
struct HeadNormOp {
  const int32_t* n_rows;
  int64_t n_heads;
  int64_t dim;
  const float* x;
  const float* gain;
  float* out;
  float eps;
};

// sum = x + scale * y, out = sum / sqrt(mean(sum^2) + eps) * gain; without y, the norm of x alone (sum is then unused).
struct NormOp {
  const int32_t* n_rows;
  int64_t width;
  const float* x;
  const float* y;
  const float* gain;
  float* sum;
  float* out;
  float eps;
  float scale;
  std::byte* const* quantised_out;  // of `out`; see quantised_out.h
};

// sum = x + scale * y, out = (sum - mean) / sqrt(variance + eps) * gain + bias; y and bias may be absent, as above.
struct LayerNormOp {
  const int32_t* n_rows;
  int64_t n_heads;  // of a row, each normed by itself; gains are those of all heads
  int64_t width;    // of a head
  const float* x;
  const float* y;
  const float* gain;
  const float* bias;
  float* sum;
  float* out;
  float eps;
  float scale;
  std::byte* const* quantised_out;  // of `out`
};

// out = x + scale * y; without y, scale * x.
struct AddOp {
  const int32_t* n_rows;
  int64_t width;
  const float* x;
  const float* y;
  float* out;
  float scale;
};

// out = act(gate) * up; without up, act(gate). clamped_swiglu: see `clamped_swiglu` in elementwise.cpp.
struct ActivateOp {
  const int32_t* n_rows;
  int64_t width;
  const float* gate;
  const float* up;
  float* out;
  Activation act;
  std::byte* const* quantised_out;  // of `out`
};

// out = cap * tanh(x / cap)
struct SoftcapOp {
  const int32_t* n_rows;
  int64_t width;
  const float* x;
  float* out;
  float cap;
};

// out = min(max(x, -limit), limit)
struct ClipOp {
  const int32_t* n_rows;
  int64_t width;
  const float* x;
  float* out;
  float limit;
};

// out[t] = x[t] * (1 + beta * log(1 + floor((positions[t] + offset) / period)))
struct TemperOp {
  const int32_t* n_rows;
  int64_t width;
  const int32_t* positions;
  const float* x;
  float* out;
  float beta;
  int32_t period;
  int32_t offset;
};

// out[i] = x[rows[i]]
struct GatherRowsOp {
  const int32_t* n_rows;
  int64_t width;
  const int32_t* rows;
  const float* x;
  float* out;
};

// out[t] = row row_of[t] of a buffer, its columns from `begin` on, in place of x[t] or added to it; -1: x[t]. Without x, zeros stand
// for it.
struct WithRowsOp {
  const int32_t* n_rows;
  int64_t width;
  int64_t buffer_width;
  int64_t begin;
  const int32_t* row_of;
  const float* buffer;
  const float* x;
  float* out;
  bool add;
};

// Row row_target[t] of a buffer gets x[t], in its columns from `begin` on; -1: nothing happens.
struct StoreRowsOp {
  const int32_t* n_rows;
  int64_t width;
  int64_t buffer_width;
  int64_t begin;
  const int32_t* row_target;
  const float* x;
  float* buffer;
};

// out[t] = cos then sin of a position of t * inv_freq, times scale; `axis_begins` says by frequency where the positions begin that
// turn it, without it all do at 0
struct CosSinOp {
  const int32_t* n_rows;
  int64_t n_freqs;
  const int32_t* positions;
  const float* inv_freq;
  const int32_t* axis_begins;
  float* out;
  float scale;
};

}  // namespace tahr
