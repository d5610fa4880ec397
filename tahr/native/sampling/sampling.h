// Sampling tokens from rows of logits, a thread per sample. `backends/sampling` does the same in NumPy; it says what is
// meant and is what this is tested against: the same stages in the same order, sums over a row in the same order.
#pragma once

#include <cstdint>

#include "worker.h"

namespace tahr {

// How one token is sampled: `backends/sampling/sample_rows.py` has the same fields in the same order.
struct SampleRow {
  uint64_t key, counter;  // the random numbers of a request are counted by its samples
  double mirostat_mu;      // NaN: no mirostat
  double temperature;      // 0: the best token
  double top_n_sigma, xtc_probability, xtc_threshold, typical_p, top_a, eta_cutoff, top_k, min_p, top_p;
};

// Changes to single logits: value = logit + before, divided by the penalty if positive, else multiplied, plus after. An -inf
// in before or after bans the token. In a `blank` row every token without an edit is banned.
struct LogitEdits {
  const int64_t* begins = nullptr;  // [n_samples + 1] into the other columns; null: no row is edited
  const int32_t* ids = nullptr;
  const float *before = nullptr, *penalty = nullptr, *after = nullptr;
  const uint8_t* blank = nullptr;
};

// Bit t % 32 of word t / 32 of a sample's words allows token t.
struct TokenMasks {
  const uint32_t* words = nullptr;   // [n_samples, n_words]; null: no row is masked
  const uint8_t* masked = nullptr;   // [n_samples]: whether the words of a sample count
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
  int64_t n_samples;
  const int32_t* source;  // the row of logits of each sample
  const SampleRow* params;
  LogitEdits edits;
  TokenMasks masks;
  int32_t* tokens;
  double* probabilities;  // that the token had when it was drawn
};

struct LogprobsOp {
  LogitRows from;
  int64_t n_samples;
  const int32_t* source;
  const int32_t* tokens;
  const int32_t* n_top;  // of each sample, at most `width`
  int64_t width;
  double* logprobs;   // [n_samples], NaN where the logits are not numbers
  int32_t* top_ids;   // [n_samples, width], the likeliest first; -1 where there are no more
  double* top_values;
};

// A token from every row of a step, as an op of a tape: later ops read the tokens. Where there is none, `ids` has 0.
struct ChooseOp {
  const int32_t* n_rows;
  LogitRows from;  // as many rows as `n_rows` says when it runs
  const SampleRow* params;
  LogitEdits edits;
  int32_t* tokens;  // a token or the reason for none
  int32_t* ids;
};

struct SamplingKernels {
  void (*sample)(const SampleOp&, Worker);
  void (*choose)(const ChooseOp&, Worker);
  void (*logprobs)(const LogprobsOp&, Worker);
};

// Defined once per instruction set in sampling.cpp: tahr::<isa>::sampling_kernels.
namespace scalar { extern const SamplingKernels sampling_kernels; }
namespace avx2 { extern const SamplingKernels sampling_kernels; }
namespace avx512vnni { extern const SamplingKernels sampling_kernels; }
namespace neon_dotprod { extern const SamplingKernels sampling_kernels; }
namespace neon_i8mm { extern const SamplingKernels sampling_kernels; }

}  // namespace tahr
