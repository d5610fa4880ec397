#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "module_ops.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tahr {

namespace {

using Job = std::tuple<const Matrix*, Address, Address>;  // matrix, out, bias

template <class Op>
void set_jobs(Op& op, const std::vector<Job>& jobs) {
  if (jobs.empty() || jobs.size() > MAX_LINEAR_JOBS) throw nb::value_error("Too many matrices for one op.");
  op.n_jobs = int(jobs.size());
  for (int i = 0; i < op.n_jobs; i++) op.jobs[i] = {&std::get<0>(jobs[i])->packed, At{std::get<1>(jobs[i])}, At{std::get<2>(jobs[i])}};
}

void quantise(Recorder& self, Address n_rows, int64_t cols, Address x, Address out) {
  self.tape.add(QuantiseOp{At{x}, At{out}, cols, At{n_rows}}, self.isa.matmul->quantise);
}

void linear(Recorder& self, Address n_rows, Address x, Address quantised, const std::vector<Job>& jobs) {
  LinearOp op{};
  set_jobs(op, jobs);
  op.x = At{x};
  op.quantised = At{quantised};
  op.n_rows = At{n_rows};
  // What is in slots moves: it must not be fetched before it has been awaited.
  bool is_paged = false;
  for (int i = 0; i < op.n_jobs; i++) is_paged |= op.jobs[i].matrix->places.at != nullptr;
  self.tape.add(op, self.isa.matmul->linear, is_paged ? nullptr : self.isa.matmul->linear_reads);
}

void group(Recorder& self, Address n_rows, Address experts, Address starts, Address order, int n_experts, int n_active) {
  self.tape.add(GroupOp{At{experts}, At{starts}, At{order}, n_experts, n_active, At{n_rows}}, self.isa.matmul->group);
}

void experts(Recorder& self, Address x, Address quantised, const std::vector<Job>& jobs, Address starts, Address order,
             int n_experts, int pairs_per_row) {
  ExpertsOp op{};
  set_jobs(op, jobs);
  op.x = At{x};
  op.quantised = At{quantised};
  op.starts = At{starts};
  op.order = At{order};
  op.n_experts = n_experts;
  op.pairs_per_row = pairs_per_row;
  self.tape.add(op, self.isa.matmul->experts);
}

void embed(Recorder& self, Address n_rows, const std::string& format_name, Address table, int64_t table_rows, int64_t cols,
           Address ids, Address out, float scale) {
  Format format;
  if (!find_format(format_name.c_str(), &format)) throw nb::value_error("There is no native kernel for that format.");
  self.tape.add(EmbedOp{format, At{table}, table_rows, cols, At{ids}, At{out}, scale, At{n_rows}}, self.isa.matmul->embed);
}

constexpr const char* ROOFS[] = {"bytes", "ints", "floats"};

Roof named_roof(const std::string& name) {
  for (int i = 0; i < 3; i++)
    if (name == ROOFS[i]) return Roof(i);
  throw nb::value_error("A roof is one of bytes, ints and floats.");
}

void roof(Recorder& self, const std::string& kind, Address data, int64_t n_bytes, int64_t n_repeats) {
  self.tape.add(RoofOp{named_roof(kind), At{data}, n_bytes, n_repeats}, self.isa.matmul->roof);
}

int64_t roof_work(const Recorder& self, const std::string& kind) { return self.isa.matmul->roof_work(named_roof(kind)); }

}  // namespace

void bind_matrix_ops(nb::class_<Recorder>& tape) {
  tape.def("quantise", quantise, nb::kw_only(), "n_rows"_a, "cols"_a, "x"_a, "out"_a)
      .def("linear", linear, nb::kw_only(), "n_rows"_a, "x"_a, "quantised"_a, "jobs"_a)
      .def("group", group, nb::kw_only(), "n_rows"_a, "experts"_a, "starts"_a, "order"_a, "n_experts"_a, "n_active"_a)
      .def("experts", experts, nb::kw_only(), "x"_a, "quantised"_a, "jobs"_a, "starts"_a, "order"_a, "n_experts"_a,
           "pairs_per_row"_a)
      .def("embed", embed, nb::kw_only(), "n_rows"_a, "format"_a, "table"_a, "table_rows"_a, "cols"_a, "ids"_a, "out"_a,
           "scale"_a)
      .def("roof", roof, nb::kw_only(), "kind"_a, "data"_a, "n_bytes"_a, "n_repeats"_a,
           "A loop that only reads, or only multiplies: the most this machine can do.")
      .def("roof_work", roof_work, "kind"_a, "Operations that one thread does in one repeat of that roof.");
}

}  // namespace tahr
