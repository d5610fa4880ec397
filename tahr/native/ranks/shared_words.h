// Numbers in memory that processes share, on which one waits until another has changed them.
#pragma once

#include <atomic>
#include <cstdint>

namespace tahr {

enum class Waited { DONE = 0, LATE = 1, ABANDONED = 2 };

// A number on a cache line of its own, and how many processes may sleep until it changes. Zeros are a good beginning.
struct alignas(64) SharedWord {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> n_sleeping;
};
static_assert(sizeof(SharedWord) == 64 && std::atomic<uint32_t>::is_always_lock_free);

// Word 0 says that the group is given up: nobody waits for anything any more. All others only ever grow, and may pass the
// largest number and begin again.
class SharedWords {
 public:
  SharedWords(void* memory, int n) : words_(static_cast<SharedWord*>(memory)), n_(n) {}

  int n_words() const { return n_; }
  uint32_t get(int i) const { return words_[i].value.load(std::memory_order_acquire); }
  void set(int i, uint32_t value);

  // Until word `i` has come to `wanted`, at most so many seconds.
  Waited wait(int i, uint32_t wanted, double limit_s);

  bool is_abandoned() const { return get(0) != 0; }
  void abandon();

 private:
  bool arrived(int i, uint32_t wanted) const { return int32_t(get(i) - wanted) >= 0; }
  void sleep(int i, uint32_t wanted, double most_s);

  SharedWord* words_;
  int n_;
};

}  // namespace tahr
