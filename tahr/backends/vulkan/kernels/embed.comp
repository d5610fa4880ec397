// Rows of a table, each number exactly as it is stored.
#include "common.glsl"
#include "weights.glsl"
layout(push_constant) uniform Push {
  Ints n_rows;
  Ints chosen;
  uint64_t codes;
  uint64_t scales;
  Floats out_;
  uint n_cols;
  uint n_table;
  float scale;
};

float number(uint row, uint column) {
  const uint64_t code_row = codes + row * codes_row_bytes(n_cols);
#if DENSE
  vec4 low, high;
  load_eight(code_row, column / 8, low, high);
  return (column & 4) == 0 ? low[column & 3] : high[column & 3];
#else
  ivec4 low, high;
  load_codes(code_row, column / 32, low, high);
  const uint at = column % 32;
  const vec4 scaled = load_scales(scales + row * scales_row_bytes(n_cols), column / 32);
  const int word = at < 16 ? low[at / 4] : high[at / 4 - 4];
  const float code = float(bitfieldExtract(word, int(at % 4 * 8), 8));
  const vec2 half_scales = at < 16 ? scaled.xy : scaled.zw;
  precise const float found = half_scales.x * code + half_scales.y;  // the product is exact
  return found;
#endif
}

void main() {
  const uint row = gl_WorkGroupID.y;
  const uint column = gl_GlobalInvocationID.x;
  if (row >= uint(n_rows.v[0]) || column >= n_cols) return;
  const uint wanted = min(uint(chosen.v[row]), n_table - 1);
  precise const float found = number(wanted, column) * scale;
  Floats(uint64_t(out_) + 4ul * row * n_cols).v[column] = found;
}
