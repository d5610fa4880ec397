#include "causal_conv.h"

#include "simd_tail.h"
#include "vecmath.h"

namespace tahr::TAHR_ISA {

namespace {

// LANES channels (the last `n` of all) of one sequence, token by token.
void convolve(const CausalConvOp& op, int seq, int64_t channel, int n) {
  const bool is_new = op.seqs.is_new(seq);
  float* state = op.seqs.slot_of(seq) + channel;
  const Floats bias = op.bias ? load_some(op.bias + channel, n) : set1(0.0f);
  Floats taps[MAX_CONV_KERNEL], past[MAX_CONV_KERNEL];
  for (int j = 0; j < op.kernel; j++) taps[j] = load_some(op.conv + j * op.channels + channel, n);
  for (int j = 0; j + 1 < op.kernel; j++) past[j] = is_new ? set1(0.0f) : load_some(state + j * op.channels, n);
  for (int64_t row = op.seqs.begin(seq); row < op.seqs.end(seq); row++) {
    past[op.kernel - 1] = load_some(op.x + row * op.channels + channel, n);
    Floats sum = bias;
    for (int j = 0; j < op.kernel; j++) sum = fma(taps[j], past[j], sum);
    store_some(op.out + row * op.channels + channel, mul(sum, sigmoid(sum)), n);
    for (int j = 0; j + 1 < op.kernel; j++) past[j] = past[j + 1];
  }
  for (int j = 0; j + 1 < op.kernel; j++) store_some(state + j * op.channels, past[j], n);
}

}  // namespace

void causal_conv(const CausalConvOp& op, Worker worker) {
  const Range mine = share((op.channels + LANES - 1) / LANES, worker);
  for (int seq = 0; seq < op.seqs.n(); seq++)
    for (int64_t piece = mine.begin; piece < mine.end; piece++) {
      const int64_t channel = piece * LANES, left = op.channels - channel;
      convolve(op, seq, channel, left < LANES ? int(left) : LANES);
    }
}

}  // namespace tahr::TAHR_ISA
