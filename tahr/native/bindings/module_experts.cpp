// The thread that computes experts for another device.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "expert_worker.h"
#include "module_ops.h"
#include "released_gil.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tahr {

namespace {

void make_worker(ExpertWorker* self, Address posted, Address served, Address facts, Address rows, Address experts, Address shares,
                 Address result, int64_t most_rows, int64_t width, int64_t n_active, int64_t n_out, double stall_s) {
  if (most_rows < 1 || width < 1 || n_active < 1 || n_out < 1) throw nb::value_error("There is no such exchange.");
  const Exchange shared{At{posted}, At{served}, At{facts}, At{rows}, At{experts}, At{shares}, At{result}};
  new (self) ExpertWorker(shared, {most_rows, width, n_active, n_out}, stall_s);
}

int add_layer(ExpertWorker& self, Address run, Address tape, Address pool, Address n_rows, Address rows, Address experts,
              Address shares, Address result, int32_t n_experts) {
  return self.add({reinterpret_cast<void (*)(const void*, void*)>(run), At{tape}, At{pool}, At{n_rows}, At{rows}, At{experts},
                   At{shares}, At{result}, n_experts});
}

bool wait(const ExpertWorker& self, uint32_t number, double most_s) {
  const ReleasedGil released;
  return self.wait(number, std::chrono::duration<double>(most_s));
}

bool close(ExpertWorker& self) {
  const ReleasedGil released;
  return self.close();
}

}  // namespace

void bind_experts(nb::module_& m) {
  nb::class_<ExpertWorker>(m, "ExpertWorker")
      .def("__init__", make_worker, nb::kw_only(), "posted"_a, "served"_a, "facts"_a, "rows"_a, "experts"_a, "shares"_a, "result"_a,
           "most_rows"_a, "width"_a, "n_active"_a, "n_out"_a, "stall_s"_a = 10.0)
      .def("add", add_layer, nb::kw_only(), "run"_a, "tape"_a, "pool"_a, "n_rows"_a, "rows"_a, "experts"_a, "shares"_a, "result"_a,
           "n_experts"_a, "The number of a layer; all but the last are addresses.")
      .def("expect", &ExpertWorker::expect, "n"_a, "Say that so many requests will come, on top of those before.")
      .def_prop_ro("n_expected", &ExpertWorker::n_expected)
      .def("wait", wait, "number"_a, "most_s"_a, "Whether a request has been answered, after so many seconds at most.")
      .def("take_failure", &ExpertWorker::take_failure, "first"_a, "last"_a,
           "Why one of the requests after `first` up to `last` has failed; empty if none has.")
      .def("close", close, "End the threads; False if one hangs, and goes on looking at what it was given.");
}

}  // namespace tahr
