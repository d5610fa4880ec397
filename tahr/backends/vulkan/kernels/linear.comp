// Rows times the transpose of a matrix, plus a bias; or act(gate) * up of two such products. A subgroup makes R columns of
// the result for T rows. However many rows there are, each result is the same sum in the same order.
#include "common.glsl"
#extension GL_EXT_integer_dot_product : require
#include "weights.glsl"
#include "activation.glsl"
layout(constant_id = 1) const uint R = 2;
layout(constant_id = 2) const uint T = 1;
layout(constant_id = 3) const bool GATED = false;
layout(constant_id = 4) const bool RAGGED = false;  // rows of x do not end with a run of 8
layout(constant_id = 5) const bool BIASED = false;
layout(constant_id = 6) const uint AHEAD = 4;  // runs whose bytes are under way at once
layout(constant_id = 7) const uint LIMIT = 0;  // rows of x where these are few: nobody asks how many are alive; 0: many
layout(push_constant) uniform Push {
  uint64_t codes;
  uint64_t scales;
  uint64_t up_codes;
  uint64_t up_scales;
  Floats bias;
  Floats up_bias;
  uint64_t x;        // f32 rows; or int8 codes of rows
  uint64_t x_scales;
  Floats y;
  Ints n_rows;
  uint n_out;
  uint n_cols;
  uint act;
};
const uint M = GATED ? 2 * R : R;  // rows of matrices at a time

float sums[M * T];
uint64_t code_rows[M];
uint64_t scale_rows[M];
uint x_rows[T];

void choose_rows(uint first) {
  for (uint m = 0; m < M; ++m) {
    const uint64_t row = min(first + m % R, n_out - 1);
    code_rows[m] = (m < R ? codes : up_codes) + row * codes_row_bytes(n_cols);
    scale_rows[m] = (m < R ? scales : up_scales) + row * scales_row_bytes(n_cols);
  }
}

#if DENSE
vec4 load_x(uint row, uint at) {
  if (!RAGGED) return Floats4(x).v[(row * n_cols + at) / 4];
  vec4 found = vec4(0);
  for (uint k = 0; k < 4; ++k)
    if (at + k < n_cols) found[k] = Floats(x).v[row * n_cols + at + k];
  return found;
}

float eight(vec4 a, vec4 b, vec4 c, vec4 d) {
  precise const float low = fma(a.w, c.w, fma(a.z, c.z, fma(a.y, c.y, a.x * c.x)));
  precise const float high = fma(b.w, d.w, fma(b.z, d.z, fma(b.y, d.y, b.x * d.x)));
  precise const float both = low + high;
  return both;
}

void add_products(uint run) {
  vec4 low[M], high[M];
  [[unroll]] for (uint m = 0; m < M; ++m) load_eight(code_rows[m], run, low[m], high[m]);
  [[unroll]] for (uint t = 0; t < T; ++t) {
    const vec4 first = load_x(x_rows[t], 8 * run), second = load_x(x_rows[t], 8 * run + 4);
    [[unroll]] for (uint m = 0; m < M; ++m) {
      precise const float sum = sums[m * T + t] + eight(low[m], high[m], first, second);
      sums[m * T + t] = sum;
    }
  }
}
#else
int dot16(ivec4 a, ivec4 b) {
  return dotPacked4x8EXT(a.x, b.x) + dotPacked4x8EXT(a.y, b.y) + dotPacked4x8EXT(a.z, b.z) + dotPacked4x8EXT(a.w, b.w);
}

// What a block of a matrix and a block of a row add up to, but for the scale of the row.
float block_sum(ivec4 low, ivec4 high, vec4 scaled, ivec4 x_low, ivec4 x_high, float x_sum) {
  const int first = dot16(low, x_low), second = dot16(high, x_high);
#if KIND == Q8
  return scaled.x * float(first + second);
#elif KIND == Q4 || KIND == K4
  precise const float found = fma(scaled.x, float(first + second), scaled.y * x_sum);
  return found;
#elif KIND == W8
  precise const float found = fma(scaled.x, float(first), scaled.z * float(second));
  return found;
#else
  const ivec4 ones = ivec4(0x01010101);
  precise const float offsets = fma(scaled.y, float(dot16(ones, x_low)), scaled.w * float(dot16(ones, x_high)));
  precise const float found = fma(scaled.x, float(first), fma(scaled.z, float(second), offsets));
  return found;
#endif
}

void add_products(uint block) {
  ivec4 low[M], high[M];
  vec4 scaled[M];
  [[unroll]] for (uint m = 0; m < M; ++m) {
    load_codes(code_rows[m], block, low[m], high[m]);
    scaled[m] = load_scales(scale_rows[m], block);
  }
  [[unroll]] for (uint t = 0; t < T; ++t) {
    const uint at = x_rows[t] * (n_cols / 32) + block;
    const ivec4 first = ivec4(Words4(x).v[2 * at]), second = ivec4(Words4(x).v[2 * at + 1]);
    const vec2 of_x = Floats2(x_scales).v[at];
    [[unroll]] for (uint m = 0; m < M; ++m) {
      precise const float sum = fma(of_x.x, block_sum(low[m], high[m], scaled[m], first, second, of_x.y), sums[m * T + t]);
      sums[m * T + t] = sum;
    }
  }
}
#endif

float with_bias(float sum, Floats added, uint row) {
  if (BIASED) return sum + added.v[row];
  return sum;
}

void main() {
  const uint n = LIMIT > 0 ? LIMIT : uint(n_rows.v[0]);
  const uint first_x = LIMIT > 0 ? 0 : gl_WorkGroupID.y * T;
  const uint first = (gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID) * R;
  if (first_x >= n || first >= n_out) return;
  choose_rows(first);
  for (uint t = 0; t < T; ++t) x_rows[t] = min(first_x + t, n - 1);
  for (uint i = 0; i < M * T; ++i) sums[i] = 0;
  const uint n_runs = DENSE ? (n_cols + 7) / 8 : n_cols / 32;
  uint run = gl_SubgroupInvocationID;
  for (; run + (AHEAD - 1) * gl_SubgroupSize < n_runs; run += AHEAD * gl_SubgroupSize) {
    [[unroll]] for (uint ahead = 0; ahead < AHEAD; ++ahead) add_products(run + ahead * gl_SubgroupSize);
  }
  for (; run < n_runs; run += gl_SubgroupSize) add_products(run);
  for (uint t = 0; t < T; ++t)
    for (uint r = 0; r < R; ++r) {
      float found = with_bias(subgroupAdd(sums[r * T + t]), bias, min(first + r, n_out - 1));
      if (GATED) {
        const float up = with_bias(subgroupAdd(sums[(R + r) * T + t]), up_bias, min(first + r, n_out - 1));
        found = activated_with(act, found, up);
      }
      if (gl_SubgroupInvocationID == 0 && first + r < n_out && first_x + t < n)
        Floats(uint64_t(y) + 4ul * (first_x + t) * n_out).v[first + r] = found;
    }
}
