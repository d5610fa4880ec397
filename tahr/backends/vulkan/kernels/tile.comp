// Many rows times the transpose of a matrix, without units for matrices: an invocation makes 4 x 4 of its workgroup's tile.
#define BM 64
#define BN 64
#include "common.glsl"
#include "weights.glsl"
#include "activation.glsl"
#include "tile_weights.glsl"
#define SHARE 4
#include "tiles.glsl"
const uint BK = 32, LINE = 64 + 4;
const uint A_LOADS = BM * BK / THREADS;
shared float tile_a[BK * LINE];  // columns of rows of x, one column after the other
shared float tile_b[BK * LINE];
float raw_a[A_LOADS];

void fetch_a(uint block) {
  [[unroll]] for (uint i = 0; i < A_LOADS; ++i) {
    const uint at = i * THREADS + gl_LocalInvocationID.x, column = 32 * block + at % BK;
    const uint row = min(row0 + at / BK, n - 1);
    raw_a[i] = column < n_cols ? Floats(x + 4ul * row * n_cols).v[column] : 0;
  }
}

void put_b(uint row, uint column, vec4 numbers) {
  [[unroll]] for (uint k = 0; k < 4; ++k) tile_b[(column + k) * LINE + row] = numbers[k];
}

void put() {
  [[unroll]] for (uint i = 0; i < A_LOADS; ++i) {
    const uint at = i * THREADS + gl_LocalInvocationID.x;
    tile_a[at % BK * LINE + at / BK] = raw_a[i];
  }
  [[unroll]] for (uint i = 0; i < B_LOADS; ++i) {
    const uint at = i * THREADS + gl_LocalInvocationID.x;
    vec4 first, second;
    decode(raw_b[i], first, second);
    put_b(at / 4, first_of(at % 4), first);
    put_b(at / 4, second_of(at % 4), second);
  }
}

void main() {
  choose_tile();
  if (row0 >= n || column0 >= n_out) return;
  const uint own_row = gl_LocalInvocationID.x / 16 * 4, own_column = gl_LocalInvocationID.x % 16 * 4;
  float sums[16];
  [[unroll]] for (uint i = 0; i < 16; ++i) sums[i] = 0;
  const uint n_blocks = (n_cols + 31) / 32;
  for (uint block = 0; block < n_blocks; ++block) {
    fetch_a(block);
    fetch_b(block);
    barrier();
    put();
    barrier();
    for (uint k = 0; k < BK; ++k) {
      float a[4], b[4];
      [[unroll]] for (uint i = 0; i < 4; ++i) a[i] = tile_a[k * LINE + own_row + i];
      [[unroll]] for (uint j = 0; j < 4; ++j) b[j] = tile_b[k * LINE + own_column + j];
      [[unroll]] for (uint i = 0; i < 4; ++i)
        [[unroll]] for (uint j = 0; j < 4; ++j) sums[4 * i + j] = fma(a[i], b[j], sums[4 * i + j]);
    }
  }
  [[unroll]] for (uint i = 0; i < 4; ++i)
    [[unroll]] for (uint j = 0; j < (GATED ? 2 : 4); ++j) {
      const uint row = row0 + own_row + i, column = column0 + (GATED ? own_column / 2 : own_column) + j;
      if (row < n && column < n_out)
        Floats(uint64_t(y) + 4ul * row * n_out).v[column] = finished(sums[4 * i + j], GATED ? sums[4 * i + j + 2] : 0, column);
    }
}
