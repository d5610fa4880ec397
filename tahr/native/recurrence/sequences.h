// The sequences of a step, as ops with a state per sequence see them.
#pragma once

#include <cstdint>

namespace tahr {

// A sequence whose first token has position 0 starts from zeros, whatever its slot holds.
struct StateSequences {
  const int32_t* counts;     // n_tokens, n_rows, n_seqs
  const int32_t* positions;
  const int32_t* starts;     // of sequences, as rows of the step
  const int32_t* slots;      // of sequences
  float* state;              // [slots][state_width]
  int64_t state_width;

  int n() const { return counts[2]; }
  int64_t begin(int seq) const { return starts[seq]; }
  int64_t end(int seq) const { return starts[seq + 1]; }
  float* slot_of(int seq) const { return state + slots[seq] * state_width; }
  bool is_new(int seq) const { return positions[starts[seq]] == 0; }
};

}  // namespace tahr
