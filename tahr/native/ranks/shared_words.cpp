#include "shared_words.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "pause.h"

namespace tahr {

namespace {

constexpr int MAX_PAUSES = 1000;    // tens of microseconds, in which the other one comes if it has a core
constexpr double MOST_SLEEP_S = 0.05;  // between two looks at the word that gives the group up

}  // namespace

void SharedWords::abandon() {
  words_[0].value.store(1);
  for (int i = 0; i < n_; i++) {
#if defined(__linux__)
    syscall(SYS_futex, &words_[i].value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
  }
}

Waited SharedWords::wait(int i, uint32_t wanted, double limit_s) {
  using Clock = std::chrono::steady_clock;
  for (int n = 0; n < MAX_PAUSES; n++) {
    if (arrived(i, wanted)) return Waited::DONE;
    pause();
  }
  const auto end = Clock::now() + std::chrono::duration<double>(limit_s);
  while (!arrived(i, wanted)) {
    if (is_abandoned()) return Waited::ABANDONED;
    const double left_s = std::chrono::duration<double>(end - Clock::now()).count();
    if (left_s <= 0) return Waited::LATE;
    sleep(i, wanted, std::min(left_s, MOST_SLEEP_S));
  }
  return Waited::DONE;
}

#if defined(__linux__)

// A process that is about to sleep counts itself before it looks again: either it sees the new number, or it is seen. One
// that is killed in its sleep stays counted, which costs a call and nothing else.
void SharedWords::set(int i, uint32_t value) {
  words_[i].value.store(value);
  if (words_[i].n_sleeping.load() > 0) syscall(SYS_futex, &words_[i].value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SharedWords::sleep(int i, uint32_t wanted, double most_s) {
  SharedWord& word = words_[i];
  word.n_sleeping.fetch_add(1);
  const uint32_t seen = word.value.load();
  if (int32_t(seen - wanted) < 0) {
    const timespec most{time_t(most_s), long((most_s - double(time_t(most_s))) * 1e9)};
    syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, &most, nullptr, 0);
  }
  word.n_sleeping.fetch_sub(1);
}

#else

void SharedWords::set(int i, uint32_t value) { words_[i].value.store(value, std::memory_order_release); }

void SharedWords::sleep(int, uint32_t, double) { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

#endif

}  // namespace tahr
