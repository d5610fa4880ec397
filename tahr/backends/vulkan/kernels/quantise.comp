// Rows rounded to int8, where the op that made them was not asked to.
#include "common.glsl"
layout(push_constant) uniform Push {
  Ints n_rows;
  Floats x;
  uint64_t codes;
  uint64_t scales;
  uint width;
};
#include "int8_rows.glsl"

void main() {
  const uint row = gl_WorkGroupID.y;
  if (row >= uint(n_rows.v[0])) return;
  const uint first = gl_WorkGroupID.x * gl_WorkGroupSize.x;
  const uint i = first + gl_LocalInvocationID.x;
  const float number = i < width ? Floats(uint64_t(x) + 4ul * row * width).v[i] : 0;
  round_blocks(row, first / 32, width, min(width - first, gl_WorkGroupSize.x), number);
}
