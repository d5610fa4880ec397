// RMS and layer norms of rows or of the heads of rows, of a sum if there is one, rounded to int8 beside if asked for.
#include "common.glsl"
#include "groups.glsl"
layout(constant_id = 1) const bool CENTRED = false;
layout(constant_id = 2) const bool ADDS = false;
layout(constant_id = 3) const bool BIASED = false;
layout(constant_id = 4) const bool RAGGED = false;  // widths that are no multiple of 4
layout(constant_id = 5) const bool COUNTED = true;  // there may be fewer rows than groups
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

const uint KEPT = 4;  // times four numbers that an invocation reads once
uint row;
uint64_t at;

// Numbers i to i + 3 of a row that begins at an address.
vec4 four_of(uint64_t begin, uint i) {
  if (!RAGGED) return Floats4(begin).v[i / 4];
  vec4 found = vec4(0);
  for (uint k = 0; k < 4; ++k)
    if (i + k < width) found[k] = Floats(begin).v[i + k];
  return found;
}

void put_four(uint64_t begin, uint i, vec4 numbers) {
  if (!RAGGED) {
    Floats4(begin).v[i / 4] = numbers;
    return;
  }
  for (uint k = 0; k < 4; ++k)
    if (i + k < width) Floats(begin).v[i + k] = numbers[k];
}

vec4 input_of(uint i) {
  const vec4 own = four_of(uint64_t(x) + at, i);
  if (!ADDS) return own;
  precise const vec4 scaled = scale * four_of(uint64_t(y) + at, i);
  precise const vec4 total = own + scaled;
  return total;
}

// Numbers less their mean; none behind the end.
vec4 centred(vec4 own, uint i, float mean) {
  if (!CENTRED) return own;
  return vec4(i < width ? own.x - mean : 0, i + 1 < width ? own.y - mean : 0, i + 2 < width ? own.z - mean : 0,
              i + 3 < width ? own.w - mean : 0);
}

void put(uint i, vec4 own, float mean, float inverse) {
  vec4 normed = vec4(0);
  if (i < width) {
    if (ADDS) put_four(uint64_t(sum) + at, i, own);
    normed = centred(own, i, mean) * inverse * four_of(uint64_t(gain), i);
    if (BIASED) normed += four_of(uint64_t(bias), i);
    put_four(uint64_t(out_) + at, i, normed);
  }
  if (codes != 0) round_four(row, width, i, normed);
}

void main() {
  if (COUNTED && gl_WorkGroupID.y >= uint(n_rows.v[0])) return;
  row = gl_WorkGroupID.y * n_heads + gl_WorkGroupID.x;
  at = 4ul * row * width;
  const uint step = 4 * gl_WorkGroupSize.x, first = 4 * gl_LocalInvocationID.x, rest = KEPT * step;
  vec4 kept[KEPT];
  [[unroll]] for (uint k = 0; k < KEPT; ++k) {
    kept[k] = vec4(0);
    if (first + k * step < width) kept[k] = input_of(first + k * step);
  }
  float total = 0;
  if (CENTRED) {
    [[unroll]] for (uint k = 0; k < KEPT; ++k) total += kept[k].x + kept[k].y + kept[k].z + kept[k].w;
    for (uint i = first + rest; i < width; i += step) {
      const vec4 own = input_of(i);
      total += own.x + own.y + own.z + own.w;
    }
  }
  const float mean = CENTRED ? group_sum(total) / width : 0;
  vec4 squares = vec4(0);
  [[unroll]] for (uint k = 0; k < KEPT; ++k) {
    const vec4 own = centred(kept[k], first + k * step, mean);
    squares = fma(own, own, squares);
  }
  for (uint i = first + rest; i < width; i += step) {
    const vec4 own = centred(input_of(i), i, mean);
    squares = fma(own, own, squares);
  }
  const float inverse = 1 / sqrt(group_sum(squares.x + squares.y + squares.z + squares.w) / width + eps);
  [[unroll]] for (uint k = 0; k < KEPT; ++k)
    if (k * step < width) put(first + k * step, kept[k], mean, inverse);
  for (uint begin = rest; begin < width; begin += step) {
    const uint i = begin + first;
    put(i, i < width ? input_of(i) : vec4(0), mean, inverse);
  }
}
