#include "orphan.h"

#include <cerrno>
#include <csignal>
#include <thread>

#if defined(__linux__)
#include <sys/prctl.h>
#endif
#include <unistd.h>

namespace tahr {

bool end_with(int parent, int pipe) {
#if defined(__linux__)
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  if (getppid() != parent) return false;
  std::thread([pipe] {
    char byte;
    for (;;) {
      const ssize_t n = read(pipe, &byte, 1);
      if (n == 0 || (n < 0 && errno != EINTR)) _exit(1);
    }
  }).detach();
  return true;
}

}  // namespace tahr
