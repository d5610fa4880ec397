// Rows as f16 numbers that fill whole runs of 32 columns, each row times a power of two that keeps it in range.
#include "common.glsl"
layout(push_constant) uniform Push {
  Ints n_rows;
  Floats x;
  uint64_t halves;
  Floats factors;  // what makes up for the power of two, one for each row
  uint width;
};
shared float tops[128];

const int TOP = 10;  // exponent of the largest number of a row

void main() {
  const uint row = gl_WorkGroupID.x, i = gl_LocalInvocationID.x;
  if (row >= uint(n_rows.v[0])) return;
  Floats xs = Floats(uint64_t(x) + 4ul * row * width);
  float top = 0;
  for (uint k = i; k < width; k += gl_WorkGroupSize.x) top = max(top, abs(xs.v[k]));
  top = subgroupMax(top);
  if (gl_SubgroupInvocationID == 0) tops[gl_SubgroupID] = top;
  barrier();
  for (uint k = 0; k < gl_NumSubgroups; ++k) top = max(top, tops[k]);
  const int exponent = int(floatBitsToUint(top) >> 23 & 0xFFu) - 127;
  // What is not finite stays so.
  const int shift = exponent == 128 || top == 0 ? 0 : clamp(TOP - exponent, -100, 100);
  const float factor = uintBitsToFloat(uint(127 + shift) << 23);
  if (i == 0) factors.v[row] = uintBitsToFloat(uint(127 - shift) << 23);
  const uint n_words = (width + 31) / 32 * 16;
  Words to = Words(halves + 4ul * row * n_words);
  for (uint k = i; k < n_words; k += gl_WorkGroupSize.x) {
    const float first = 2 * k < width ? xs.v[2 * k] * factor : 0;
    const float second = 2 * k + 1 < width ? xs.v[2 * k + 1] * factor : 0;
    to.v[k] = packHalf2x16(vec2(first, second));
  }
}
