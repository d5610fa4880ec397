// Words that processes share, meetings of ranks, and their ops.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "meeting.h"
#include "module_ops.h"
#include "orphan.h"
#include "released_gil.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tahr {

namespace {

const Worker ALONE{0, 1, nullptr, nullptr};

int word_of(const SharedWords& words, int i) {
  if (i < 0 || i >= words.n_words()) throw nb::index_error("There is no such word.");
  return i;
}

int wait_for(SharedWords& self, int i, uint32_t wanted, double limit_s) {
  word_of(self, i);
  const ReleasedGil released;
  return int(self.wait(i, wanted, limit_s));
}

void refuse_large(const Meeting& meeting, int64_t most_rows, int64_t width) {
  if (most_rows < 0 || width < 1 || most_rows > meeting.place_bytes() / 4 / width)
    throw nb::value_error("A place of the meeting does not hold these rows.");
}

void add_meeting(Recorder& self, Meeting& meeting, Address n_rows, int64_t most_rows, int64_t width, Address x) {
  refuse_large(meeting, most_rows, width);
  self.tape.add(HandInOp{&meeting, At{n_rows}, width, At{x}}, hand_in);
  self.tape.add(MeetOp{&meeting}, meet);
}

void sum_over_ranks(Recorder& self, Meeting& meeting, Address n_rows, int64_t most_rows, int64_t width, Address x, Address out) {
  add_meeting(self, meeting, n_rows, most_rows, width, x);
  self.tape.add(SumPartsOp{&meeting, At{n_rows}, width, At{out}}, sum_parts);
}

void refuse_widths(const Meeting& meeting, const std::vector<int64_t>& widths) {
  if (int64_t(widths.size()) != meeting.n_ranks()) throw nb::value_error("Every rank has a width.");
}

void join_over_ranks(Recorder& self, Meeting& meeting, Address n_rows, int64_t most_rows, const std::vector<int64_t>& widths,
                     Address x, Address out) {
  refuse_widths(meeting, widths);
  for (const int64_t width : widths) refuse_large(meeting, most_rows, width);
  add_meeting(self, meeting, n_rows, most_rows, widths[size_t(meeting.rank())], x);
  self.tape.add(JoinPartsOp{&meeting, At{n_rows}, widths, At{out}}, join_parts);
}

// The same at once, for numbers that no tape has.
int all_reduce(Meeting& self, Address x, int32_t n, Address out) {
  refuse_large(self, 1, n);
  const ReleasedGil released;
  const int32_t one = 1;
  hand_in({&self, &one, n, At{x}}, ALONE);
  if (self.meet()) sum_parts({&self, &one, n, At{out}}, ALONE);
  return int(self.how());
}

int all_gather(Meeting& self, Address x, const std::vector<int64_t>& widths, Address out) {
  refuse_widths(self, widths);
  for (const int64_t width : widths) refuse_large(self, 1, width);
  const ReleasedGil released;
  const int32_t one = 1;
  hand_in({&self, &one, widths[size_t(self.rank())], At{x}}, ALONE);
  if (self.meet()) join_parts({&self, &one, widths, At{out}}, ALONE);
  return int(self.how());
}

// The numbers of rank `source` for all of them.
int broadcast(Meeting& self, Address x, int32_t n, int source) {
  refuse_large(self, 1, n);
  if (source < 0 || source >= self.n_ranks()) throw nb::value_error("There is no such rank.");
  const ReleasedGil released;
  const int32_t one = 1;
  if (source == self.rank()) hand_in({&self, &one, n, At{x}}, ALONE);
  float* target = At{x};
  if (self.meet() && source != self.rank()) std::copy_n(self.part(source), n, target);
  return int(self.how());
}

}  // namespace

void bind_ranks(nb::module_& m, nb::class_<Recorder>& tape) {
  m.attr("WORD_BYTES") = sizeof(SharedWord);
  m.attr("MEETING_PLACES") = Meeting::PLACES;
  m.attr("WAITED_LATE") = int(Waited::LATE);
  m.attr("WAITED_ABANDONED") = int(Waited::ABANDONED);
  m.def("end_with", end_with, "parent"_a, "pipe"_a, "End this process with its parent; False if that has ended already.");
  nb::class_<SharedWords>(m, "SharedWords")
      .def("__init__", [](SharedWords* self, Address address, int n_words) {
             if (address % alignof(SharedWord) || n_words < 1) throw nb::value_error("There are no words.");
             new (self) SharedWords(At{address}, n_words);
           }, "address"_a, "n_words"_a)
      .def("get", [](const SharedWords& self, int i) { return self.get(word_of(self, i)); }, "word"_a)
      .def("set", [](SharedWords& self, int i, uint32_t value) { self.set(word_of(self, i), value); }, "word"_a, "value"_a)
      .def("wait", wait_for, "word"_a, "wanted"_a, "limit_s"_a, "0 when the word has come so far, else why not.")
      .def("abandon", &SharedWords::abandon, "Let nobody wait for anything any more.")
      .def_prop_ro("is_abandoned", &SharedWords::is_abandoned);
  nb::class_<Meeting>(m, "Meeting")
      .def("__init__", [](Meeting* self, SharedWords& words, int first_word, Address memory, int64_t place_bytes, int n_ranks,
                          int rank, double limit_s) {
             if (n_ranks < 1 || rank < 0 || rank >= n_ranks || place_bytes < 64 || place_bytes % 64 || memory % 64)
               throw nb::value_error("There is no such meeting.");
             word_of(words, first_word);
             word_of(words, first_word + n_ranks - 1);
             new (self) Meeting(words, first_word, At{memory}, place_bytes, n_ranks, rank, limit_s);
           }, nb::kw_only(), "words"_a, "first_word"_a, "memory"_a, "place_bytes"_a, "n_ranks"_a, "rank"_a, "limit_s"_a,
           nb::keep_alive<1, 2>())
      .def_prop_ro("how", [](const Meeting& self) { return int(self.how()); }, "0, or why the ranks do not meet any more.")
      .def("all_reduce", all_reduce, "x"_a, "n"_a, "out"_a)
      .def("all_gather", all_gather, "x"_a, "widths"_a, "out"_a)
      .def("broadcast", broadcast, "x"_a, "n"_a, "source"_a);
  tape.def("sum_over_ranks", sum_over_ranks, nb::kw_only(), "meeting"_a, "n_rows"_a, "most_rows"_a, "width"_a, "x"_a, "out"_a)
      .def("join_over_ranks", join_over_ranks, nb::kw_only(), "meeting"_a, "n_rows"_a, "most_rows"_a, "widths"_a, "x"_a, "out"_a);
}

}  // namespace tahr
