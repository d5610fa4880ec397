#include "causal_conv.h"

#include "simd_tail.h"
#include "vecmath.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int64_t TILE = 512;  // channels whose taps and latest inputs stay in the nearest cache

// Where the inputs of the token `back` tokens before `row` begin: among the rows of the step, in the state, or null where they are zeros.
const float* input(const CausalConvOp& op, int seq, int64_t row, int back) {
  const int64_t before = op.seqs.begin(seq) - (row - back);
  if (before <= 0) return op.x + (row - back) * op.channels;
  return op.seqs.is_new(seq) ? nullptr : op.seqs.slot_of(seq) + (op.kernel - 1 - before) * op.channels;
}

// Channels [begin, end) of one token; `inputs` are those of the last tokens, the oldest first.
void convolve(const CausalConvOp& op, const float* const* inputs, int64_t begin, int64_t end, float* out) {
  for (int64_t c = begin; c < end; c += LANES) {
    const int n = end - c < LANES ? int(end - c) : LANES;
    Floats sum = op.bias ? load_some(op.bias + c, n) : set1(0.0f);
    for (int j = 0; j < op.kernel; j++) {
      const Floats x = inputs[j] ? load_some(inputs[j] + c, n) : set1(0.0f);
      sum = fma(load_some(op.conv + j * op.channels + c, n), x, sum);
    }
    store_some(out + c, mul(sum, sigmoid(sum)), n);
  }
}

// The state of channels [begin, end): the last inputs, some of which it may hold already, further on.
void remember(const CausalConvOp& op, int seq, int64_t begin, int64_t end) {
  float* state = op.seqs.slot_of(seq);
  for (int j = 0; j + 1 < op.kernel; j++) {
    const float* x = input(op, seq, op.seqs.end(seq) - 1, op.kernel - 2 - j);
    for (int64_t c = begin; c < end; c++) state[j * op.channels + c] = x ? x[c] : 0.0f;
  }
}

void convolve_tile(const CausalConvOp& op, int seq, int64_t begin, int64_t end) {
  const float* inputs[MAX_CONV_KERNEL];
  for (int64_t row = op.seqs.begin(seq); row < op.seqs.end(seq); row++) {
    for (int j = 0; j < op.kernel; j++) inputs[j] = input(op, seq, row, op.kernel - 1 - j);
    convolve(op, inputs, begin, end, op.out + row * op.channels);
  }
  remember(op, seq, begin, end);
}

}  // namespace

void causal_conv(const CausalConvOp& op, Worker worker) {
  const Range mine = share((op.channels + LANES - 1) / LANES, worker);
  const int64_t last = mine.end * LANES < op.channels ? mine.end * LANES : op.channels;
  for (int seq = 0; seq < op.seqs.n(); seq++)
    for (int64_t begin = mine.begin * LANES; begin < last; begin += TILE)
      convolve_tile(op, seq, begin, begin + TILE < last ? begin + TILE : last);
}

}  // namespace tahr::TAHR_ISA
