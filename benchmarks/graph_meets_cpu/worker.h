// The CPU's side of a meeting: a thread that polls a number in pinned memory and then runs a tape, without Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

// Pinned memory that both sides see. Each word has one writer; the device clears `released` again.
struct Mailbox {
  alignas(128) uint32_t posted;    // the number of the device's last request
  alignas(128) uint32_t served;    // the number of the last request with a result
  alignas(128) uint32_t released;  // 1 from a result until the device has taken it: what a stream can wait for
  alignas(128) uint32_t failed;    // 1: the device waited for many seconds in vain; 2: a result was another one before
  float *request, *result;         // pinned too: rows and then their scores; rows
};

// A tape by the addresses that `CpuPlan.native_call` gives. Without one, rows go back as they came.
struct Tape {
  void (*run)(const void* tape, void* pool);
  const void* tape;
  void* pool;
  float *rows, *scores, *result;  // what the tape reads and writes
};

class Server {
 public:
  Server(Mailbox& mail, const Tape& tape, size_t row_bytes, size_t score_bytes)
      : mail_(mail), tape_(tape), row_bytes_(row_bytes), score_bytes_(score_bytes), thread_([this] { serve(); }) {}

  ~Server() {
    closing_ = true;
    thread_.join();
  }

 private:
  void serve() {
    for (uint32_t seen = 0; !closing_; __builtin_ia32_pause()) {
      const uint32_t number = __atomic_load_n(&mail_.posted, __ATOMIC_ACQUIRE);
      if (number == seen) continue;
      seen = number;
      compute();
      __atomic_store_n(&mail_.served, number, __ATOMIC_RELEASE);
      __atomic_store_n(&mail_.released, 1u, __ATOMIC_RELEASE);
    }
  }

  void compute() {
    if (tape_.run) {
      std::memcpy(tape_.rows, mail_.request, row_bytes_);
      std::memcpy(tape_.scores, mail_.request + row_bytes_ / sizeof(float), score_bytes_);
      tape_.run(tape_.tape, tape_.pool);
    }
    std::memcpy(mail_.result, tape_.run ? tape_.result : mail_.request, row_bytes_);
  }

  Mailbox& mail_;
  const Tape tape_;
  const size_t row_bytes_, score_bytes_;
  std::atomic<bool> closing_{false};
  std::thread thread_;
};
