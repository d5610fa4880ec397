// Many rows times the transpose of a matrix by the device's units for small matrices, TM x TN x TK at a time: f16 numbers,
// sums in f32. A subgroup makes WM x WN of its workgroup's tile.
#pragma use_vulkan_memory_model
#include "common.glsl"
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#include "weights.glsl"
#include "activation.glsl"
#include "tile_weights.glsl"
#define SHARE WN
#include "tiles.glsl"
const uint BK = 32;
const uint LINE = BK / 8 + 1;  // of 16 bytes; one more keeps rows in different banks
const uint A_LOADS = (4 * BM + THREADS - 1) / THREADS;
const uint N_SUBGROUPS = BM / WM * (BN / WN);
const uint PATCH = TM * TN / 4;
const uint A_LINES = max(2 * BM * LINE, 2 * N_SUBGROUPS * PATCH);
shared uvec4 tile_a[A_LINES];  // two, filled by turns; in the end results
shared uvec2 tile_b[2 * BN * LINE * 2];
uvec4 raw_a[A_LOADS];

void fetch_a(uint block) {
  const uint line = (n_cols + 31) / 32 * 4;
  [[unroll]] for (uint i = 0; i < A_LOADS; ++i) {
    const uint at = i * THREADS + gl_LocalInvocationID.x;
    raw_a[i] = Words4(x).v[min(row0 + min(at / 4, BM - 1), n - 1) * line + 4 * block + at % 4];
  }
}

uvec2 halved(vec4 numbers) { return uvec2(packHalf2x16(numbers.xy), packHalf2x16(numbers.zw)); }

void put(uint turn) {
  [[unroll]] for (uint i = 0; i < A_LOADS; ++i) {
    const uint at = i * THREADS + gl_LocalInvocationID.x;
    if (at < 4 * BM) tile_a[turn * BM * LINE + at / 4 * LINE + at % 4] = raw_a[i];
  }
  [[unroll]] for (uint i = 0; i < B_LOADS; ++i) {
    const uint at = i * THREADS + gl_LocalInvocationID.x, part = at % 4;
    if (at >= 4 * BN) continue;
    const uint line = 2 * (turn * BN * LINE + at / 4 * LINE);
#if KIND == F16
    tile_b[line + 2 * part] = raw_b[i].words.xy;
    tile_b[line + 2 * part + 1] = raw_b[i].words.zw;
#else
    vec4 first, second;
    decode(raw_b[i], first, second);
    tile_b[line + first_of(part) / 4] = halved(first);
    tile_b[line + second_of(part) / 4] = halved(second);
#endif
  }
}

const uint MS = WM / TM, NS = WN / TN;
coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> sums[MS * NS];

void multiply(uint turn, uint wr, uint wc) {
  [[unroll]] for (uint k = 0; k < BK / TK; ++k) {
    coopmat<float16_t, gl_ScopeSubgroup, TM, TK, gl_MatrixUseA> a[MS];
    [[unroll]] for (uint i = 0; i < MS; ++i)
      coopMatLoad(a[i], tile_a, turn * BM * LINE + (wr + i * TM) * LINE + k * (TK / 8), LINE, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint j = 0; j < NS; ++j) {
      coopmat<float16_t, gl_ScopeSubgroup, TK, TN, gl_MatrixUseB> b;
      coopMatLoad(b, tile_b, 2 * (turn * BN * LINE + (wc + j * TN) * LINE + k * (TK / 8)), 2 * LINE,
                  gl_CooperativeMatrixLayoutColumnMajor);
      [[unroll]] for (uint i = 0; i < MS; ++i) sums[j * MS + i] = coopMatMulAdd(a[i], b, sums[j * MS + i]);
    }
  }
}

// Results of a subgroup's small matrix go by way of shared memory: only there is known which number is where.
void store(uint at, uint row, uint column) {
  subgroupBarrier();
  for (uint e = gl_SubgroupInvocationID; e < TM * TN; e += gl_SubgroupSize) {
    const uint r = row + e / TN, c = column + e % TN;
    if (r >= n || c >= n_out) continue;
    const float factor = factors.v[r];
    const float sum = uintBitsToFloat(tile_a[at + e / 4][e % 4]) * factor;
    const float up = GATED ? uintBitsToFloat(tile_a[at + PATCH + e / 4][e % 4]) * factor : 0;
    Floats(uint64_t(y) + 4ul * r * n_out).v[c] = finished(sum, up, c);
  }
  subgroupBarrier();
}

void main() {
  choose_tile();
  if (row0 >= n || column0 >= n_out) return;
  const uint wr = gl_SubgroupID % (BM / WM) * WM, wc = gl_SubgroupID / (BM / WM) * WN;
  [[unroll]] for (uint i = 0; i < MS * NS; ++i) sums[i] = coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator>(0.0);
  const uint n_blocks = (n_cols + 31) / 32;
  fetch_a(0);
  fetch_b(0);
  put(0);
  barrier();
  for (uint block = 0; block < n_blocks; ++block) {
    if (block + 1 < n_blocks) {
      fetch_a(block + 1);
      fetch_b(block + 1);
    }
    multiply(block & 1, wr, wc);
    if (block + 1 < n_blocks) put(1 - (block & 1));
    barrier();
  }
  const uint own = gl_SubgroupID * 2 * PATCH;
  [[unroll]] for (uint i = 0; i < MS; ++i)
    [[unroll]] for (uint j = 0; j < (GATED ? NS / 2 : NS); ++j) {
      coopMatStore(sums[j * MS + i], tile_a, own, TN / 4, gl_CooperativeMatrixLayoutRowMajor);
      if (GATED) coopMatStore(sums[(j + NS / 2) * MS + i], tile_a, own + PATCH, TN / 4, gl_CooperativeMatrixLayoutRowMajor);
      store(own, row0 + wr + i * TM, column0 + (GATED ? wc / 2 : wc) + j * TN);
    }
}
