#include "mapped_file.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <stdexcept>

namespace tahr {

// What the handler of the signal reads; it may interrupt any thread at any place, so it takes no lock and no memory.
struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0}, end{0};  // whole pages; nothing while both are 0
  std::atomic<bool> cut{false};
};

namespace {

constexpr size_t MAX_MAPPINGS = 4096;
Slot slots[MAX_MAPPINGS];
std::mutex installing;
struct sigaction before;  // of ours, written before ours is installed
thread_local bool is_passing_on = false;

uintptr_t page_bytes() {
  static const uintptr_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

Slot* slot_at(uintptr_t address) {
  for (Slot& slot : slots)
    if (address >= slot.begin && address < slot.end) return &slot;
  return nullptr;
}

// Zeros from the missing page to the end of the mapping: whatever is still in the file there, the model is lost.
bool fill_with_zeros(Slot& slot, uintptr_t address) {
  const uintptr_t page = address & ~(page_bytes() - 1), end = slot.end;
  if (end <= page) return false;
  slot.cut = true;
  const int error = errno;  // of the code that was interrupted
  void* zeros = mmap(reinterpret_cast<void*>(page), end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  errno = error;
  return zeros != MAP_FAILED;
}

void pass_on(int signal, siginfo_t* info, void* context) {
  const bool has_handler = before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN;
  if (!has_handler || is_passing_on) {  // it may be one that passes on to us
    struct sigaction fresh = {};
    fresh.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &fresh, nullptr);
    if (info->si_code <= 0) raise(signal);  // sent by a program: nothing faults again by itself
    return;
  }
  is_passing_on = true;
  if (before.sa_flags & SA_SIGINFO)
    before.sa_sigaction(signal, info, context);
  else
    before.sa_handler(signal);
  is_passing_on = false;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  Slot* slot = info->si_code > 0 ? slot_at(address) : nullptr;
  if (!slot || !fill_with_zeros(*slot, address)) pass_on(signal, info, context);
}

// Again at every mapping: others, like Python's faulthandler, may have taken the signal meanwhile.
void install() {
  const std::lock_guard<std::mutex> lock(installing);
  struct sigaction now;
  if (sigaction(SIGBUS, nullptr, &now) != 0 || now.sa_sigaction == on_bus_error) return;
  before = now;
  struct sigaction ours = {};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

MappedFile::MappedFile(uintptr_t address, size_t n_bytes) : slot_(nullptr) {
  page_bytes();  // known before the handler needs it
  for (Slot& slot : slots) {
    bool free = false;
    if (!slot.taken.compare_exchange_strong(free, true)) continue;
    slot_ = &slot;
    slot.cut = false;
    slot.begin = address;
    slot.end = (address + n_bytes + page_bytes() - 1) & ~(page_bytes() - 1);
    install();
    return;
  }
  throw std::runtime_error("too many files are mapped");
}

MappedFile::~MappedFile() {
  unmapped();
  slot_->taken = false;
}

void MappedFile::unmapped() {
  slot_->end = 0;
  slot_->begin = 0;
}

bool MappedFile::was_cut() const { return slot_->cut; }

}  // namespace tahr
