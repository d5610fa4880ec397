#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "grammar_threads.h"
#include "module_ops.h"
#include "released_gil.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tahr {

namespace {

using Names = std::vector<std::string>;

struct PyIndex {
  std::shared_ptr<const GrammarIndex> index;
};

struct PyMatcher {
  MatcherPtr matcher;

  // Nothing but its job may use a matcher whose mask is being filled.
  GrammarMatcher& own() const {
    if (matcher->busy.load(std::memory_order_acquire)) throw std::runtime_error("The mask of this matcher is being filled.");
    return *matcher;
  }
};

struct PyJob {
  std::shared_ptr<GrammarJob> job;
  nb::object masks;  // are written to until the job is done

  void wait() const {
    const ReleasedGil released;
    job->wait();
  }
  ~PyJob() {
    if (job) wait();
  }
  PyJob(std::shared_ptr<GrammarJob> job, nb::object masks) : job(std::move(job)), masks(std::move(masks)) {}
  PyJob(PyJob&&) = default;
};

struct PyThreads {
  std::unique_ptr<GrammarThreads> threads;

  ~PyThreads() {
    const ReleasedGil released;
    threads.reset();
  }
};

// Calls a Python function from any thread; the last reference to it may be given up on any thread, too.
GrammarIndex::Tokenize tokenizer_of(nb::object function) {
  const std::shared_ptr<nb::object> kept(new nb::object(std::move(function)), [](nb::object* object) {
    nb::gil_scoped_acquire acquire;
    delete object;
  });
  return [kept](const std::string& text) -> Tokens {
    nb::gil_scoped_acquire acquire;
    try {
      return nb::cast<Tokens>((*kept)(nb::str(text.c_str(), text.size())));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(*kept);  // llguidance cannot pass it on
      return {};
    }
  };
}

void make_index(PyIndex* self, const std::string& library, nb::iterable tokens, const Tokens& eos, const Names& slices,
                nb::object tokenize) {
  TokenBytes bytes;
  for (nb::handle token : tokens) {
    const nb::bytes text = nb::cast<nb::bytes>(token);
    bytes.add(text.c_str(), text.size());
  }
  GrammarIndex::Tokenize function = tokenizer_of(std::move(tokenize));
  const ReleasedGil released;
  new (self) PyIndex{std::make_shared<GrammarIndex>(library, bytes, eos, slices, std::move(function))};
}

LlgLimits limits_of(const nb::dict& options) {
  const auto number = [&](const char* name) { return nb::cast<uint64_t>(options[name]); };
  return {number("max_items_in_row"), number("initial_lexer_fuel"), number("step_lexer_fuel"),   number("step_max_items"),
          number("max_lexer_states"), number("max_grammar_size"),   /*precompute_large_lexemes=*/true, number("verbose_errors") != 0};
}

MatchingBudget budget_of(const nb::dict& options) {
  const auto time = [&](const char* name) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(nb::cast<double>(options[name])));
  };
  return {time("step_s"), time("token_s"), time("beyond_s"), nb::cast<int64_t>(options["n_between"])};
}

void make_matcher(PyMatcher* self, const PyIndex& index, const std::string& grammar, const nb::dict& options,
                  const nb::dict& most) {
  if (grammar.find('\0') != std::string::npos) throw nb::value_error("A grammar cannot hold the character 0.");
  const LlgLimits limits = limits_of(options);
  const MatchingBudget budget = budget_of(most);
  const ReleasedGil released;
  new (self) PyMatcher{std::make_shared<GrammarMatcher>(index.index, grammar, limits, budget)};
}

PyMatcher copied(const PyMatcher& self, bool is_same_request) {
  return {std::make_shared<GrammarMatcher>(self.own(), is_same_request)};
}

// All bits are zero where the grammar cannot go on.
nb::bytes mask_of(const PyMatcher& self) {
  GrammarMatcher& matcher = self.own();
  const size_t n_bytes = matcher.mask_bytes();
  nb::bytes mask = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(n_bytes)));
  if (!mask.is_valid()) throw nb::python_error();
  char* data = PyBytes_AsString(mask.ptr());
  const ReleasedGil released;
  if (!matcher.fill(reinterpret_cast<uint32_t*>(data))) std::fill_n(data, n_bytes, '\0');
  return mask;
}

uint32_t* checked_masks(const nb::object& masks, size_t n_rows, const GrammarMatcher& matcher) {
  Py_buffer view;
  if (PyObject_GetBuffer(masks.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) throw nb::python_error();
  uint32_t* found = static_cast<uint32_t*>(view.buf);
  const bool fits = size_t(view.len) == n_rows * matcher.mask_bytes();
  PyBuffer_Release(&view);
  if (!fits) throw nb::value_error("The masks have another size than the vocabulary.");
  return found;
}

PyJob begin(const PyThreads& self, const std::vector<PyMatcher*>& takers, const Tokens& tokens, const std::vector<bool>& forces,
            const std::vector<PyMatcher*>& fillers, const std::vector<size_t>& rows, nb::object masks) {
  if (takers.size() != tokens.size() || takers.size() != forces.size() || fillers.size() != rows.size())
    throw nb::value_error("Each matcher needs a token or a row.");
  std::vector<GrammarToken> taken;
  for (size_t i = 0; i < takers.size(); i++) {
    takers[i]->own();
    taken.push_back({takers[i]->matcher, tokens[i], forces[i], false, {}});
  }
  std::vector<GrammarRow> filled;
  if (!fillers.empty()) {
    const size_t n_rows = nb::len(masks), n_words = fillers[0]->matcher->mask_bytes() / 4;
    uint32_t* first = checked_masks(masks, n_rows, *fillers[0]->matcher);
    for (size_t i = 0; i < fillers.size(); i++) {
      if (rows[i] >= n_rows) throw nb::value_error("There are fewer masks.");
      fillers[i]->own();
      filled.push_back({fillers[i]->matcher, first + rows[i] * n_words, false});
    }
  }
  auto job = std::make_shared<GrammarJob>(std::move(taken), std::move(filled));
  const ReleasedGil released;
  self.threads->begin(job);
  job->take_tokens();
  return {std::move(job), std::move(masks)};
}

// What each token forces; None where a grammar forbids it.
nb::list forced_of(const PyJob& self) {
  nb::list found;
  for (const GrammarToken& token : self.job->tokens())
    found.append(token.is_allowed ? nb::cast(token.forced) : nb::none());
  return found;
}

// Waits, and says which of the rows have no mask because their grammars cannot go on.
std::vector<size_t> failed_rows(const PyJob& self) {
  self.wait();
  std::vector<size_t> found;
  const std::vector<GrammarRow>& rows = self.job->rows();
  for (size_t i = 0; i < rows.size(); i++)
    if (rows[i].failed) found.push_back(i);
  return found;
}

}  // namespace

void bind_grammar(nb::module_& module) {
  nb::class_<PyIndex>(module, "GrammarIndex")
      .def("__init__", make_index, "library"_a, "tokens"_a, "eos"_a, "slices"_a, "tokenize"_a);

  nb::class_<PyMatcher>(module, "GrammarMatcher")
      .def("__init__", make_matcher, "index"_a, "grammar"_a, "limits"_a, "budget"_a)
      .def("copy", [](const PyMatcher& self) { return copied(self, false); }, "For another request.")
      .def("fork", [](const PyMatcher& self) { return copied(self, true); }, "For the same request.")
      .def("consume", [](const PyMatcher& self, uint32_t token) { return self.own().consume(token); }, "token"_a)
      .def("rollback", [](const PyMatcher& self, size_t n) { return self.own().rollback(n); }, "n_tokens"_a)
      .def("reset", [](const PyMatcher& self) { return self.own().reset(); })
      .def("forced", [](const PyMatcher& self) { return self.own().forced(); })
      .def("mask", mask_of)
      .def("error", [](const PyMatcher& self) { return self.own().error(); })
      .def_prop_ro("busy", [](const PyMatcher& self) { return self.matcher->busy.load(); })
      .def_prop_ro("is_over_budget", [](const PyMatcher& self) { return self.matcher->is_over_budget(); })
      .def_prop_ro("n_long_steps", [](const PyMatcher& self) { return self.matcher->n_long_steps(); })
      .def_prop_ro("finished", [](const PyMatcher& self) { return self.matcher->finished(); })
      .def_prop_ro("n_consumed", [](const PyMatcher& self) { return self.matcher->n_consumed(); })
      .def_prop_ro("n_seen", [](const PyMatcher& self) { return self.matcher->n_seen(); });

  nb::class_<PyJob>(module, "GrammarJob").def("forced", forced_of).def("wait", failed_rows);

  nb::class_<PyThreads>(module, "GrammarThreads")
      .def("__init__", [](PyThreads* self, int n) { new (self) PyThreads{std::make_unique<GrammarThreads>(n)}; }, "n_threads"_a)
      .def("begin", begin, "takers"_a, "tokens"_a, "forces"_a, "fillers"_a, "rows"_a, "masks"_a.none(),
           "Let matchers take tokens, and begin to fill rows of masks.");
}

}  // namespace tahr
