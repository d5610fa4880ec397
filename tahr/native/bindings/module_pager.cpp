// Matrices in slots, and the ops that await them.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "module_ops.h"
#include "pager.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tahr {

namespace {

using FilePlace = std::tuple<int, int64_t, int64_t>;             // file, offset, bytes
using Pieces = std::tuple<int64_t, int64_t, Address>;            // the first, how many, the starts of experts or 0

std::vector<PieceRange> ranges_of(const std::vector<Pieces>& pieces) {
  std::vector<PieceRange> ranges;
  for (const auto& [first, n, starts] : pieces) ranges.push_back({first, n, At{starts}});
  return ranges;
}

int add_file(Pager& self, int descriptor, const std::string& label) {
  const int file = self.loader().add_file(descriptor, label);
  if (file >= 0) return file;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

std::pair<Matrix, int64_t> add_matrix(Pager& self, const std::string& format, const std::string& isa, int64_t n_stack, int64_t rows,
                                      int64_t cols, const std::vector<FilePlace>& places) {
  Matrix matrix = shape_matrix(format, isa, n_stack, rows, cols);
  if (!self.takes(matrix.packed)) throw nb::value_error("A slot holds no panel of that matrix, or its rows are too long in their file.");
  std::vector<Extent> extents;
  for (const auto& [file, offset, n_bytes] : places) {
    if (n_bytes != rows * file_row_bytes(matrix.packed.format, cols)) throw nb::value_error("A piece takes another number of bytes.");
    extents.push_back({file, offset});
  }
  if (int64_t(extents.size()) != n_stack) throw nb::value_error("Every matrix of a stack has a place in a file.");
  const int64_t first = self.add(matrix.packed, matrix.layout, extents);
  return {matrix, first};
}

void await_op(Recorder& self, Pager& pager, const std::vector<Pieces>& pieces, const std::vector<Pieces>& soon) {
  self.tape.add(AwaitOp{&pager, ranges_of(pieces), ranges_of(soon)}, await_pieces);
}

void release_op(Recorder& self, Pager& pager, const std::vector<Pieces>& pieces) {
  self.tape.add(AwaitOp{&pager, ranges_of(pieces), {}}, release_pieces);
}

std::pair<int, std::string> take_failure(Pager& self) {
  ReadFailure failure = self.take_failure();
  return {int(failure.kind), failure.text};
}

}  // namespace

void bind_pager(nb::module_& m, nb::class_<Recorder>& tape) {
  m.attr("READ_PAST_END") = int(ReadError::END);
  m.attr("ARENA_TOO_SMALL") = int(ReadError::NO_ROOM);
  nb::class_<Pager>(m, "Pager")
      .def("__init__", [](Pager* self, bool by_usage, int64_t slot_bytes, int64_t n_slots, int n_readers, int n_ahead, double stall_s) {
             if (slot_bytes < 1 || slot_bytes % 4096 || n_slots < 1 || n_readers < 1) throw nb::value_error("There is no such arena.");
             const SlotPolicy policy = by_usage ? SlotPolicy::USAGE : SlotPolicy::CYCLE;
             new (self) Pager({policy, slot_bytes, n_slots, n_readers, n_ahead, stall_s});
           }, nb::kw_only(), "by_usage"_a, "slot_bytes"_a, "n_slots"_a, "n_readers"_a, "n_ahead"_a, "stall_s"_a = 10.0)
      .def("add_file", add_file, "descriptor"_a, "label"_a, "The number of a file, which stays open.")
      .def("add", add_matrix, "format"_a, "isa"_a, "n_stack"_a, "rows"_a, "cols"_a, "places"_a,
           "A matrix in slots, and the number of its first piece; places are (file, offset, bytes), one for each of a stack.")
      .def("forget", &Pager::forget, "Have everything read again: its files were written to.")
      .def("take_failure", take_failure, "Why the last step failed, 0 if it did not, and a sentence about it.")
      .def("is_direct", [](Pager& self, int file) { return self.loader().is_direct(file); }, "file"_a)
      .def_prop_ro("arena_bytes", &Pager::arena_bytes)
      .def_prop_ro("staging_bytes", [](Pager& self) { return self.loader().staging_bytes(); })
      .def("counts", [](const Pager& self) {
        const PagerCounts c = self.counts();
        return std::tuple(c.n_hits, c.n_misses, c.n_evictions, c.n_bytes_read, c.wait_s);
      }, "Hits, misses, evictions, bytes read, and the seconds that steps waited.");
  tape.def("await_pieces", await_op, "pager"_a, "pieces"_a, "soon"_a = std::vector<Pieces>{})
      .def("release_pieces", release_op, "pager"_a, "pieces"_a);
}

}  // namespace tahr
