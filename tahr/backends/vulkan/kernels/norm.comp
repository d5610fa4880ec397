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

void main() {
  if (gl_WorkGroupID.y >= uint(n_rows.v[0])) return;
  const uint row = gl_WorkGroupID.y * n_heads + gl_WorkGroupID.x;
  const uint64_t at = 4ul * row * width;
  float total = 0;
  if (CENTRED)
    for (uint i = gl_LocalInvocationID.x; i < width; i += gl_WorkGroupSize.x) total += input_of(at, i);
  const float mean = CENTRED ? group_sum(total) / width : 0;
  float squares = 0;
  for (uint i = gl_LocalInvocationID.x; i < width; i += gl_WorkGroupSize.x) {
    const float from_mean = input_of(at, i) - mean;
    squares = fma(from_mean, from_mean, squares);
  }
  const float inverse = 1 / sqrt(group_sum(squares) / width + eps);
  // Every invocation of a cluster has a number of the same block of 32 columns.
  for (uint first = 0; first < width; first += gl_WorkGroupSize.x) {
    const uint i = first + gl_LocalInvocationID.x;
    float normed = 0;
    if (i < width) {
      const float own = input_of(at, i);
      if (ADDS) Floats(uint64_t(sum) + at).v[i] = own;
      normed = (own - mean) * inverse * gain.v[i];
      if (BIASED) normed += bias.v[i];
      Floats(uint64_t(out_) + at).v[i] = normed;
    }
    if (codes != 0) round_blocks(row, first / 32, width, min(width - first, gl_WorkGroupSize.x), normed);
  }
}
