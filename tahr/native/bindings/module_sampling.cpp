#include "module_ops.h"
#include "sampling.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tahr {

namespace {

LogitRows rows_of(Address logits, int64_t stride, int64_t n_rows, int32_t n_vocab) {
  if (n_vocab < 1 || n_rows < 1) throw nb::value_error("There are no logits to pick from.");
  return {At{logits}, stride, n_rows, n_vocab};
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
  if (op.from.n_rows * op.from.n_vocab < FEW_LOGITS) return run_alone(op, kernel);
  nb::gil_scoped_release release;
  if (op.from.n_rows == 1) return run_alone(op, kernel);  // a row is one thread's work: nobody need wake up for it
  pool.run([&](const Worker& worker) { kernel(op, worker); });
}

void sample(const std::string& isa, Pool& pool, Address logits, int64_t stride, int64_t n_rows, int32_t n_vocab, Address rows,
            Address edit_begins, Address edit_ids, Address edit_values, Address blank, Address tokens,
            Address probabilities) {
  const SampleOp op{rows_of(logits, stride, n_rows, n_vocab), At{rows},
                    {At{edit_begins}, At{edit_ids}, At{edit_values}, At{blank}}, At{tokens}, At{probabilities}};
  run(pool, op, find_isa(isa).sampling->sample);
}

void logprobs(const std::string& isa, Pool& pool, Address logits, int64_t stride, int64_t n_rows, int32_t n_vocab,
              Address tokens, Address n_top, int64_t width, Address logprobs, Address top_ids, Address top_values) {
  const LogprobsOp op{rows_of(logits, stride, n_rows, n_vocab), At{tokens}, At{n_top}, width, At{logprobs}, At{top_ids},
                      At{top_values}};
  run(pool, op, find_isa(isa).sampling->logprobs);
}

}  // namespace

void bind_sampling(nb::module_& module) {
  module.attr("SAMPLE_ROW_BYTES") = sizeof(SampleRow);
  module.attr("NOT_NUMBERS") = NOT_NUMBERS;
  module.attr("NOTHING_LEFT") = NOTHING_LEFT;
  module.def("sample", sample, "isa"_a, "pool"_a, nb::kw_only(), "logits"_a, "stride"_a, "n_rows"_a, "n_vocab"_a, "rows"_a,
             "edit_begins"_a, "edit_ids"_a, "edit_values"_a, "blank"_a, "tokens"_a, "probabilities"_a,
             "A token for each row of logits.");
  module.def("logprobs", logprobs, "isa"_a, "pool"_a, nb::kw_only(), "logits"_a, "stride"_a, "n_rows"_a, "n_vocab"_a,
             "tokens"_a, "n_top"_a, "width"_a, "logprobs"_a, "top_ids"_a, "top_values"_a,
             "How likely each row holds a token, and its likeliest tokens.");
}

}  // namespace tahr
