// The Python face of the native code. Memory is passed by address: whoever records an op keeps what it points at alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/stat.h>

#include "cpu_features.h"
#include "crc32c.h"
#include "mapped_file.h"
#include "module_ops.h"
#include "released_gil.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tahr {

const Isa& find_isa(const std::string& name) {
  for (const Isa& isa : isas())
    if (isa.name == name && isa.available()) return isa;
  throw nb::value_error(("There are no kernels called '" + name + "' for this processor.").c_str());
}

namespace {

Format named_format(const std::string& name) {
  Format format;
  if (!find_format(name.c_str(), &format)) throw nb::value_error(("There is no native kernel for " + name + ".").c_str());
  return format;
}

}  // namespace

Matrix shape_matrix(const std::string& format_name, const std::string& isa, int64_t n_stack, int64_t rows, int64_t cols) {
  const Format format = named_format(format_name);
  const PanelLayout layout = find_isa(isa).matmul->layout;
  if (n_stack < 1 || rows < 1 || cols < 1 || cols % block_cols(format) != 0)
    throw nb::value_error("A matrix of that format cannot have that shape.");
  return {shape_packed(format, layout, n_stack, rows, cols), layout};
}

namespace {

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : isas())
    if (isa.available()) names.push_back(isa.name);
  return names;
}

// Where the numbers of an array are: a tenth of what asking NumPy for its array interface takes.
Address address_of(nb::handle array) {
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_STRIDES) != 0) throw nb::python_error();
  const Address address = reinterpret_cast<Address>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

// Size and time of change of an open file, as `os.fstat` gives them.
std::tuple<int64_t, int64_t> file_stamp(int descriptor) {
  struct stat found;
  if (fstat(descriptor, &found) != 0) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
#ifdef __APPLE__
  const timespec changed = found.st_mtimespec;
#else
  const timespec changed = found.st_mtim;
#endif
  return {found.st_size, int64_t{1000000000} * changed.tv_sec + changed.tv_nsec};
}

// Sums of bytes, by the processor's instruction or by tables. The bytes may be gigabytes.
uint32_t sum_of_bytes(uintptr_t address, int64_t n_bytes, uint32_t before, bool by_table) {
  if (n_bytes < 0) throw nb::value_error("A run of bytes has no negative length.");
  const ReleasedGil released;
  const std::byte* data = reinterpret_cast<const std::byte*>(address);
  return by_table ? crc32c_by_table(before, data, n_bytes) : crc32c(before, data, n_bytes);
}

bool has_format(const std::string& name) {
  Format format;
  return find_format(name.c_str(), &format);
}

Matrix make_matrix(const std::string& format_name, const std::string& isa, int64_t n_stack, int64_t rows, int64_t cols) {
  const auto [shape, layout] = shape_matrix(format_name, isa, n_stack, rows, cols);
  return {make_packed(shape.format, layout, n_stack, rows, cols), layout};
}

void fill(Matrix& self, int64_t begin, int64_t end, uintptr_t source, int64_t n_bytes, Pool& pool) {
  if (begin < 0 || begin > end || end > self.n_panels() || !self.packed.data) throw nb::value_error("There are no such panels.");
  const int64_t n_rows = rows_before(self.packed, end) - rows_before(self.packed, begin);
  if (n_bytes != n_rows * file_row_bytes(self.packed.format, self.packed.cols))
    throw nb::value_error("The panels take another number of bytes.");
  const ReleasedGil released;
  fill_panels(self.packed, self.layout, begin, end, reinterpret_cast<const std::byte*>(source), &pool);
}

Matrix pack_matrix(const std::string& format, const std::string& isa, int64_t n_stack, int64_t rows, int64_t cols,
                   uintptr_t source, int64_t n_bytes, Pool& pool) {
  Matrix matrix = make_matrix(format, isa, n_stack, rows, cols);
  fill(matrix, 0, matrix.n_panels(), source, n_bytes, pool);
  return matrix;
}

int64_t panel_bytes(const std::string& format_name, const std::string& isa, int64_t cols) {
  return packed_panel_bytes(named_format(format_name), cols, find_isa(isa).matmul->layout.panel_rows);
}

int64_t packed_bytes(const std::string& format_name, const std::string& isa, int64_t n_stack, int64_t rows, int64_t cols) {
  const int panel_rows = find_isa(isa).matmul->layout.panel_rows;
  const int64_t n_panels = (rows + panel_rows - 1) / panel_rows;
  return n_stack * n_panels * packed_panel_bytes(named_format(format_name), cols, panel_rows);
}

void run_tape(const Recorder& recorder, Pool& pool) {
  const ReleasedGil released;
  recorder.tape.run(pool);
}

// For threads that know nothing of Python, which call it by its address.
void run_tape_at(const Tape* tape, Pool* pool) noexcept { tape->run(*pool); }

std::vector<int64_t> run_tape_timed(const Recorder& recorder, Pool& pool) {
  const ReleasedGil released;
  return recorder.tape.run_timed(pool);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Kernels, threads and tapes of the CPU backend, and threads that follow grammars.";
  nb::set_leak_warnings(false);  // Python may end with a frozen heap, whose objects it never frees
  m.def("isas", available_isas, "Instruction sets with kernels for this processor, the fastest first.");
  m.def("cpu_features", cpu_features, "Processor features the kernels look for and this processor has.");
  m.def("address_of", address_of, "array"_a, "Where the numbers of an array are.");
  m.def("crc32c", sum_of_bytes, "address"_a, "n_bytes"_a, "before"_a = 0, "by_table"_a = false,
        "CRC-32C of bytes that follow others with the sum `before`.");
  m.def("file_stamp", file_stamp, "descriptor"_a, "The size of an open file, and when it was last changed.");
  m.def("has_format", has_format, "format"_a, "Whether matrices of that weight format can be packed.");
  m.def("packed_bytes", packed_bytes, "format"_a, "isa"_a, "n_stack"_a, "rows"_a, "cols"_a);
  m.def("panel_bytes", panel_bytes, "format"_a, "isa"_a, "cols"_a);
  m.def("quantised_row_bytes", quantised_row_bytes, "cols"_a);
  m.attr("WORKER_SCRATCH_BYTES") = WORKER_SCRATCH_BYTES;
  m.attr("KV_SPAN") = KV_SPAN;
  m.attr("SPLIT_TOKENS") = SPLIT_TOKENS;
  m.attr("MAX_HEAD_DIM") = MAX_HEAD_DIM;
  m.attr("MAX_STATE_DIM") = MAX_STATE_DIM;
  m.attr("MAX_CONV_KERNEL") = MAX_CONV_KERNEL;
  m.attr("MAX_QUERY_TILE") = MAX_QUERY_TILE;
  m.attr("MAX_EXPERTS") = MAX_EXPERTS;
  m.attr("MAX_LINEAR_JOBS") = MAX_LINEAR_JOBS;
  m.attr("LORA_PANEL") = LORA_PANEL;
  m.attr("LORA_ROUNDS") = LORA_ROUNDS;
  m.attr("MAX_LORA_TARGETS") = MAX_LORA_TARGETS;

  nb::class_<MappedFile>(m, "MappedFile")
      .def(nb::init<uintptr_t, size_t>(), "address"_a, "n_bytes"_a)
      .def("unmapped", &MappedFile::unmapped, "Say that the mapping is about to go.")
      .def_prop_ro("was_cut", &MappedFile::was_cut, "Whether zeros were read in place of what the file has no more of.");

  m.attr("RUN_TAPE") = reinterpret_cast<Address>(&run_tape_at);

  nb::class_<Pool>(m, "Pool")
      .def(nb::init<int>(), "n_threads"_a)
      .def_prop_ro("n_threads", &Pool::n_threads)
      .def_prop_ro("address", [](const Pool& self) { return reinterpret_cast<Address>(&self); });

  nb::class_<Matrix>(m, "Matrix")
      .def("__init__", [](Matrix* self, const std::string& format, const std::string& isa, int64_t n_stack, int64_t rows,
                          int64_t cols) { new (self) Matrix(make_matrix(format, isa, n_stack, rows, cols)); },
           "format"_a, "isa"_a, "n_stack"_a, "rows"_a, "cols"_a)
      .def_prop_ro("n_panels", &Matrix::n_panels)
      .def_prop_ro("n_bytes", [](const Matrix& self) { return self.packed.n_bytes; })
      .def_prop_ro("format", [](const Matrix& self) { return format_name(self.packed.format); })
      .def_prop_ro("shape", [](const Matrix& self) { return std::tuple(self.packed.n_stack, self.packed.rows, self.packed.cols); })
      .def_prop_ro("dense", [](const Matrix& self) { return is_dense(self.packed.format); })
      .def("rows_before", [](const Matrix& self, int64_t panel) { return rows_before(self.packed, panel); }, "panel"_a)
      .def("fill", fill, "begin"_a, "end"_a, "source"_a, "n_bytes"_a, "pool"_a,
           "Fill panels [begin, end) from their rows in the layout of a weight file.");
  m.def("pack", pack_matrix, "format"_a, "isa"_a, "n_stack"_a, "rows"_a, "cols"_a, "source"_a, "n_bytes"_a, "pool"_a,
        "A matrix filled at once.");

  nb::class_<Recorder> tape(m, "Tape");
  tape.def("__init__", [](Recorder* self, const std::string& isa) { new (self) Recorder{find_isa(isa), {}}; }, "isa"_a)
      .def("__len__", [](const Recorder& self) { return self.tape.size(); })
      .def_prop_ro("address", [](const Recorder& self) { return reinterpret_cast<Address>(&self.tape); })
      .def("clear", [](Recorder& self) { self.tape.clear(); })
      .def("run", run_tape, "pool"_a, "All threads walk the tape; other Python threads run meanwhile.")
      .def("run_timed", run_tape_timed, "pool"_a, "The same; returns the nanoseconds of each op.");
  bind_row_ops(m, tape);
  bind_matrix_ops(tape);
  bind_recurrence(m, tape);
  bind_sampling(m);
  bind_grammar(m);
  bind_pager(m, tape);
  bind_experts(m);
  bind_ranks(m, tape);
}

}  // namespace tahr
