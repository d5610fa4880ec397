#include <nanobind/stl/vector.h>

#include "module_ops.h"
#include "released_gil.h"
#include "sampling.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tahr {

namespace {

using Addresses = std::vector<Address>;

LogitRows rows_of(Address logits, int64_t stride, int64_t n_rows, int32_t n_vocab) {
  if (n_vocab < 1 || n_rows < 1 || (n_rows > 1 && stride < n_vocab)) throw nb::value_error("There are no logits to sample from.");
  return {At{logits}, stride, n_rows, n_vocab};
}

void check_source(const int32_t* source, int64_t n_samples, int64_t n_rows) {
  for (int64_t i = 0; i < n_samples; i++)
    if (source[i] < 0 || source[i] >= n_rows) throw nb::value_error("A sample names a row of logits that is not there.");
}

LogitEdits edits_of(const Addresses& columns) {
  if (columns.empty()) return {};
  if (columns.size() != 6) throw nb::value_error("Logit edits have six columns.");
  return {At{columns[0]}, At{columns[1]}, At{columns[2]}, At{columns[3]}, At{columns[4]}, At{columns[5]}};
}

TokenMasks masks_of(const Addresses& columns) {
  if (columns.empty()) return {};
  if (columns.size() != 2) throw nb::value_error("Token masks have two columns.");
  return {At{columns[0]}, At{columns[1]}};
}

// Fewer logits than this are looked through before other threads have woken up, or another thread has the GIL.
constexpr int64_t FEW_LOGITS = 1 << 15;

template <class Op>
void run_alone(const Op& op, void (*kernel)(const Op&, Worker)) {
  std::atomic<int64_t> next{0};
  kernel(op, Worker{0, 1, nullptr, &next});
}

template <class Op>
void run(Pool& pool, const Op& op, void (*kernel)(const Op&, Worker)) {
  if (op.n_samples * op.from.n_vocab < FEW_LOGITS) return run_alone(op, kernel);
  const ReleasedGil released;
  if (op.n_samples == 1) return run_alone(op, kernel);  // a sample is one thread's work: the others need not wake up
  pool.run([&](const Worker& worker) { kernel(op, worker); });
}

void sample(const std::string& isa, Pool& pool, Address logits, int64_t stride, int64_t n_rows, int32_t n_vocab,
            int64_t n_samples, Address source, Address params, const Addresses& edits, const Addresses& masks, Address tokens,
            Address probabilities) {
  check_source(At{source}, n_samples, n_rows);
  const SampleOp op{rows_of(logits, stride, n_rows, n_vocab), n_samples, At{source}, At{params}, edits_of(edits),
                    masks_of(masks), At{tokens}, At{probabilities}};
  run(pool, op, find_isa(isa).sampling->sample);
}

void logprobs(const std::string& isa, Pool& pool, Address logits, int64_t stride, int64_t n_rows, int32_t n_vocab,
              int64_t n_samples, Address source, Address tokens, Address n_top, int64_t width, Address logprobs,
              Address top_ids, Address top_values) {
  check_source(At{source}, n_samples, n_rows);
  const LogprobsOp op{rows_of(logits, stride, n_rows, n_vocab), n_samples, At{source}, At{tokens}, At{n_top}, width,
                      At{logprobs}, At{top_ids}, At{top_values}};
  run(pool, op, find_isa(isa).sampling->logprobs);
}

}  // namespace

void bind_sampling(nb::module_& module) {
  module.attr("SAMPLE_ROW_BYTES") = sizeof(SampleRow);
  module.attr("NOT_NUMBERS") = NOT_NUMBERS;
  module.attr("NOTHING_LEFT") = NOTHING_LEFT;
  module.def("sample", sample, "isa"_a, "pool"_a, nb::kw_only(), "logits"_a, "stride"_a, "n_rows"_a, "n_vocab"_a,
             "n_samples"_a, "source"_a, "params"_a, "edits"_a, "masks"_a, "tokens"_a, "probabilities"_a,
             "A token for each sample from rows of logits.");
  module.def("logprobs", logprobs, "isa"_a, "pool"_a, nb::kw_only(), "logits"_a, "stride"_a, "n_rows"_a, "n_vocab"_a,
             "n_samples"_a, "source"_a, "tokens"_a, "n_top"_a, "width"_a, "logprobs"_a, "top_ids"_a, "top_values"_a,
             "How likely each row holds a token, and its likeliest tokens.");
}

}  // namespace tahr
