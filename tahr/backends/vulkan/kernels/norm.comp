// RMS and layer norms of rows or of the heads of rows, of a sum if there is one, rounded to int8 beside if asked for.
#include "common.glsl"
#include "groups.glsl"
layout(constant_id = 1) const bool CENTRED = false;
layout(constant_id = 2) const bool ADDS = false;
layout(constant_id = 3) const bool BIASED = false;
layout(push_constant) uniform Push {
  Ints n_rows;
  Floats x;
  Floats y;
  Floats gain;
  Floats bias;
  Floats sum;      // what x + scale * y is
  Floats out_;
  uint64_t codes;  // null: nobody wants them
  uint64_t scales;
  uint width;
  uint n_heads;    // of a row, each normed by itself
  float eps;
  float scale;
};
#include "int8_rows.glsl"

float input_of(uint64_t at, uint i) {
  const float own = Floats(uint64_t(x) + at).v[i];
  if (!ADDS) return own;
  precise const float scaled = scale * Floats(uint64_t(y) + at).v[i];
  precise const float total = own + scaled;
  return total;
}

const uint KEPT = 8;  // numbers that an invocation reads once
uint row;
uint64_t at;

void put(uint i, float own, float mean, float inverse) {
  float normed = 0;
  if (i < width) {
    if (ADDS) Floats(uint64_t(sum) + at).v[i] = own;
    normed = (own - mean) * inverse * gain.v[i];
    if (BIASED) normed += bias.v[i];
    Floats(uint64_t(out_) + at).v[i] = normed;
  }
  const uint first = i - gl_LocalInvocationID.x;
  if (codes != 0) round_blocks(row, first / 32, width, min(width - first, gl_WorkGroupSize.x), normed);
}

void main() {
  if (gl_WorkGroupID.y >= uint(n_rows.v[0])) return;
  row = gl_WorkGroupID.y * n_heads + gl_WorkGroupID.x;
  at = 4ul * row * width;
  const uint step = gl_WorkGroupSize.x, own_first = gl_LocalInvocationID.x, rest = KEPT * step;
  float kept[KEPT];
  [[unroll]] for (uint k = 0; k < KEPT; ++k) {
    kept[k] = 0;
    if (own_first + k * step < width) kept[k] = input_of(at, own_first + k * step);
  }
  float total = 0;
  if (CENTRED) {
    [[unroll]] for (uint k = 0; k < KEPT; ++k) total += kept[k];
    for (uint i = own_first + rest; i < width; i += step) total += input_of(at, i);
  }
  const float mean = CENTRED ? group_sum(total) / width : 0;
  float squares = 0;
  [[unroll]] for (uint k = 0; k < KEPT; ++k) {
    const float from_mean = own_first + k * step < width ? kept[k] - mean : 0;
    squares = fma(from_mean, from_mean, squares);
  }
  for (uint i = own_first + rest; i < width; i += step) {
    const float from_mean = input_of(at, i) - mean;
    squares = fma(from_mean, from_mean, squares);
  }
  const float inverse = 1 / sqrt(group_sum(squares) / width + eps);
  [[unroll]] for (uint k = 0; k < KEPT; ++k)
    if (k * step < width) put(own_first + k * step, kept[k], mean, inverse);
  for (uint first = rest; first < width; first += step) {
    const uint i = first + own_first;
    put(i, i < width ? input_of(at, i) : 0, mean, inverse);
  }
}
