// Native code without the interpreter's lock.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace tahr {

// While it lives, other threads run Python. A daemon's thread may come back when the process is ending: then Python ends
// the thread by unwinding its stack, which C++ cannot have in a destructor and would abort the process for. So such a thread
// waits for the end of the process, as Python does it by itself from 3.14 on.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace tahr
