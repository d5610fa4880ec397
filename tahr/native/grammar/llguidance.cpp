#include "llguidance.h"

#include <dlfcn.h>

#include <stdexcept>

namespace tahr {

namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) throw std::runtime_error(std::string("the library has no function ") + name);
}

}  // namespace

Llguidance::Llguidance(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: Python has it open, too
  if (!library) throw std::runtime_error(dlerror());
  find(library, "llg_new_tokenizer_v2", new_tokenizer);
  find(library, "llg_free_tokenizer", free_tokenizer);
  find(library, "llg_constraint_init_set_defaults", set_defaults);
  find(library, "llg_new_matcher", new_matcher);
  find(library, "llg_clone_matcher", clone_matcher);
  find(library, "llg_free_matcher", free_matcher);
  find(library, "llg_matcher_consume_token", consume_token);
  find(library, "llg_matcher_rollback", rollback);
  find(library, "llg_matcher_reset", reset);
  find(library, "llg_matcher_compute_mask_into", compute_mask_into);
  find(library, "llg_matcher_compute_ff_tokens", compute_ff_tokens);
  find(library, "llg_matcher_is_stopped", is_stopped);
  find(library, "llg_matcher_is_error", is_error);
  find(library, "llg_matcher_get_error", get_error);
}

}  // namespace tahr
