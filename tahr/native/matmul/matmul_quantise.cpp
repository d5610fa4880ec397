#include <cfloat>

#include "matmul_ops.h"
#include "simd.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int PARTS = 32 / LANES;

void quantise_block(const float* x, QuantBlock& out) {
  Floats parts[PARTS], most = set1(0.0f), spoilt = set1(0.0f);  // the last becomes NaN with NaN, which a maximum may pass over
  for (int i = 0; i < PARTS; i++) {
    parts[i] = load(x + i * LANES);
    most = max(most, abs(parts[i]));
    spoilt = fma(parts[i], set1(0.0f), spoilt);
  }
  out.scale = max_lane(most) / 127.0f + sum(spoilt);
  // A subnormal scale has no finite inverse: such a block becomes zeros.
  const Floats inverse = set1(out.scale >= FLT_MIN ? 1.0f / out.scale : 0.0f), limit = set1(127.0f), lower = set1(-127.0f);
  for (int i = 0; i < PARTS; i++)  // infinities must not become -128
    store_i8(out.codes + i * LANES, round(max(min(mul(parts[i], inverse), limit), lower)));
  out.minus_half = -sum16(out.codes);
  out.minus_sum = out.minus_half - sum16(out.codes + 16);
  out.scaled_sum = out.scale * float(-out.minus_sum);
}

}  // namespace

// Blocks of all rows lie one after the other on both sides: rows play no part.
void quantise(const QuantiseOp& op, Worker worker) {
  auto* out = reinterpret_cast<QuantBlock*>(op.out);
  const Range blocks = share(*op.n_rows * (op.cols / 32), worker);
  for (int64_t i = blocks.begin; i < blocks.end; i++) quantise_block(op.x + 32 * i, out[i]);
}

}  // namespace tahr::TAHR_ISA
