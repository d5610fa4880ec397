#include "matmul_ops.h"
#include "simd.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int PARTS = 32 / LANES;

void quantise_block(const float* x, QuantBlock& out) {
  Floats parts[PARTS], most = set1(0.0f);
  for (int i = 0; i < PARTS; i++) {
    parts[i] = load(x + i * LANES);
    most = max(most, abs(parts[i]));
  }
  out.scale = max_lane(most) / 127.0f;
  const Floats divisor = set1(out.scale > 0 ? out.scale : 1.0f), limit = set1(127.0f), lower = set1(-127.0f);
  Ints halves[2] = {set1(0), set1(0)};
  for (int i = 0; i < PARTS; i++) {
    // The scale may be subnormal and so coarse that a quotient passes 127; clamping also stops infinities.
    const Ints codes = round(max(min(div(parts[i], divisor), limit), lower));
    store_i8(out.codes + i * LANES, codes);
    halves[i >= PARTS / 2] = add(halves[i >= PARTS / 2], codes);
  }
  out.half_sum = sum(halves[0]);
  out.sum = out.half_sum + sum(halves[1]);
  out.scaled_sum = out.scale * float(out.sum);
}

}  // namespace

// Blocks of all rows lie one after the other on both sides: rows play no part.
void quantise(const QuantiseOp& op, Lane lane) {
  auto* out = reinterpret_cast<QuantBlock*>(op.out);
  const Range blocks = share(*op.n_rows * (op.cols / 32), lane);
  for (int64_t i = blocks.begin; i < blocks.end; i++) quantise_block(op.x + 32 * i, out[i]);
}

}  // namespace tahr::TAHR_ISA
