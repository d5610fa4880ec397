// Picking tokens from rows of logits, a thread per row. What it means is said by engine/sampling, which does the same in
// NumPy and is what this is tested against: the same stages in the same order, sums over a row in the same order.
#pragma once

#include <cstdint>

#include "worker.h"

namespace tahr {

// How the token of one row is picked: `backends/row_sampler.py` has the same fields in the same order.
struct SampleRow {
  uint64_t key, n_picked;  // the random numbers of a request are counted by its picks
  double mirostat_mu;      // NaN: no mirostat
  double temperature;      // 0: the best token
  double top_n_sigma, xtc_probability, xtc_threshold, typical_p, top_a, eta_cutoff, top_k, min_p, top_p;
};

// Logits that are not what the model said. A row that is `blank` begins as -inf everywhere.
struct RowEdits {
  const int64_t* begins;  // [n_rows + 1] into ids and values; null: no row is edited
  const int32_t* ids;
  const float* values;
  const uint8_t* blank;
};

struct LogitRows {
  const float* logits;
  int64_t stride;  // numbers from one row to the next
  int64_t n_rows;
  int32_t n_vocab;

  const float* row(int64_t i) const { return logits + i * stride; }
};

constexpr int32_t NOT_NUMBERS = -1, NOTHING_LEFT = -2;  // instead of a token

struct SampleOp {
  LogitRows from;
  const SampleRow* rows;
  RowEdits edits;
  int32_t* tokens;
  double* probabilities;  // that the token had when it was drawn
};

struct LogprobsOp {
  LogitRows from;
  const int32_t* tokens;
  const int32_t* n_top;  // of each row, at most `width`
  int64_t width;
  double* logprobs;   // [n_rows], NaN where the logits are not numbers
  int32_t* top_ids;   // [n_rows, width], the likeliest first; -1 where there are no more
  double* top_values;
};

struct SamplingKernels {
  void (*sample)(const SampleOp&, Worker);
  void (*logprobs)(const LogprobsOp&, Worker);
};

// Defined once per instruction set in sampling.cpp: tahr::<isa>::sampling_kernels.
namespace scalar { extern const SamplingKernels sampling_kernels; }
namespace avx2 { extern const SamplingKernels sampling_kernels; }
namespace avx512vnni { extern const SamplingKernels sampling_kernels; }
namespace neon_dotprod { extern const SamplingKernels sampling_kernels; }
namespace neon_i8mm { extern const SamplingKernels sampling_kernels; }

}  // namespace tahr
