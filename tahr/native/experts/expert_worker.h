// Experts on the CPU inside the steps of another device: it posts rows with their experts in memory that both see, a
// thread computes them without the interpreter, and the device waits for a number to come back.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace tahr {

// Memory that both sides see. `posted` is written by the device alone, `served` by the host alone.
struct Exchange {
  const uint32_t* posted;  // the number of the device's last request; they are counted from 1 on
  uint32_t* served;        // the number of the last request that got an answer
  const int32_t* facts;    // of the request: how many rows, and the layer whose experts are wanted
  const float* rows;
  const int32_t* experts;
  const float* shares;
  float* result;
};

// Numbers of one row, and rows of a request at most.
struct ExchangeSizes {
  int64_t most_rows, width, n_active, n_out;
};

// The experts of one layer: `run(tape, pool)` makes `result` of what lies in the other buffers.
struct LayerTape {
  void (*run)(const void* tape, void* pool);
  const void* tape;
  void* pool;
  int32_t* n_rows;
  float* rows;
  int32_t* experts;
  float* shares;
  const float* result;
  int32_t n_experts;
};

// Only the host ends a wait of the device: with a result, or without one where none has come for `stall_s`. A request
// that ended so is kept as a failure until somebody asks for it.
class ExpertWorker {
 public:
  ExpertWorker(const Exchange& shared, const ExchangeSizes& sizes, double stall_s);
  ~ExpertWorker();
  ExpertWorker(const ExpertWorker&) = delete;
  ExpertWorker& operator=(const ExpertWorker&) = delete;

  int add(const LayerTape& layer);  // its number; before the first request for it

  // How many requests will come, on top of those before: the threads sleep where none is missing.
  void expect(int n);
  uint32_t n_expected() const;

  // Waits, at most so long, until a request has been answered; whether it has.
  bool wait(uint32_t number, std::chrono::duration<double> most) const;

  // Why one of the requests after `first` up to `last` has failed; empty if none has. What is older is forgotten.
  std::string take_failure(uint32_t first, uint32_t last);

  // Ends the threads, and says whether they have ended: one that hangs goes on looking at all that it was given.
  bool close();

 private:
  struct State;
  std::shared_ptr<State> state_;
  bool is_closed_ = false, has_ended_ = false;
};

}  // namespace tahr
