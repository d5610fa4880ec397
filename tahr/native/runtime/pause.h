// What a thread does between two looks at something that another thread is about to change.
#pragma once

namespace tahr {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` does nothing on most cores; this waits about as long as x86's pause
#endif
}

}  // namespace tahr
