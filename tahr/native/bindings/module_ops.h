// The tape as Python sees it: one method per op, each appending a struct.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "dispatch.h"
#include "tape.h"

namespace tahr {

struct Recorder {
  const Isa& isa;
  Tape tape;
};

// A matrix knows the layout it was made for, so that Python can fill it piece by piece.
struct Matrix {
  PackedMatrix packed;
  PanelLayout layout;

  int64_t n_panels() const { return packed.n_stack * packed.n_panels; }
};

const Isa& find_isa(const std::string& name);  // refuses what this processor cannot run

using Address = uintptr_t;

// An address from Python as a pointer of whatever type the struct wants.
struct At {
  Address address;
  template <class T>
  operator T*() const {
    return reinterpret_cast<T*>(address);
  }
};

Matrix shape_matrix(const std::string& format, const std::string& isa, int64_t n_stack, int64_t rows, int64_t cols);

void bind_experts(nanobind::module_& module);
void bind_pager(nanobind::module_& module, nanobind::class_<Recorder>& tape);
void bind_ranks(nanobind::module_& module, nanobind::class_<Recorder>& tape);
void bind_row_ops(nanobind::module_& module, nanobind::class_<Recorder>& tape);
void bind_recurrence(nanobind::module_& module, nanobind::class_<Recorder>& tape);
void bind_sampling(nanobind::module_& module);
void bind_grammar(nanobind::module_& module);
void bind_matrix_ops(nanobind::class_<Recorder>& tape);

}  // namespace tahr
