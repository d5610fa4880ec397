// Mapped files that other programs may cut short while they are read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tahr {

// Reading what a mapped file has no more of would end the process (SIGBUS). While a guard lives, such a read in its mapping
// gives zeros instead, and the guard says so from then on. Faults elsewhere go to whoever handled them before.
class MappedFile {
 public:
  MappedFile(uintptr_t address, size_t n_bytes);  // throws std::runtime_error if there are too many
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  void unmapped();      // the mapping is about to go: its addresses may become something else's
  bool was_cut() const;  // something was read that the file had no more of

 private:
  struct Slot* slot_;
};

}  // namespace tahr
