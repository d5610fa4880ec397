// Rows as int8 codes [row, width], and of each block of 32 columns a scale and the sum of its codes [row, width / 32].
shared float block_numbers[1024];

// Rounds n columns of a row, whole blocks from that block on: invocation i has number i.
void round_blocks(uint row, uint block, uint row_width, uint n, float number) {
  const uint i = gl_LocalInvocationID.x;
  barrier();
  block_numbers[i] = i < n ? number : 0;
  barrier();
  // Four columns of each word belong to one invocation; eight of them to a block.
  const uint n_words = gl_WorkGroupSize.x / 4;
  if (i >= n_words || 4 * i >= n) return;
  const vec4 four = vec4(block_numbers[4 * i], block_numbers[4 * i + 1], block_numbers[4 * i + 2], block_numbers[4 * i + 3]);
  const uint begin = i / 8 * 32;
  float most = 0;
  for (uint k = 0; k < 32; ++k) most = max(most, abs(block_numbers[begin + k]));
  const vec2 both = int8_scales(most);
  const ivec4 rounded = ivec4(roundEven(four * both.y));
  const uvec4 bytes = uvec4(rounded) & 0xFFu;
  Words(codes).v[(row * row_width + 32 * block) / 4 + i] = bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
  if (i % 8 != 0) return;
  float sum_of_codes = 0;
  for (uint k = 0; k < 32; ++k) sum_of_codes += roundEven(block_numbers[begin + k] * both.y);
  Floats2(scales).v[row * (row_width / 32) + block + i / 8] = vec2(both.x, sum_of_codes);
}

// Rounds columns i to i + 3 of a row. Eight neighbouring invocations have a block, and all of them are here.
void round_four(uint row, uint row_width, uint i, vec4 four) {
  const vec4 sizes = abs(four);
  const vec2 both = int8_scales(subgroupClusteredMax(max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)), 8));
  const vec4 rounded = roundEven(four * both.y);
  const float sum_of_codes = subgroupClusteredAdd(rounded.x + rounded.y + rounded.z + rounded.w, 8);
  const uvec4 bytes = uvec4(ivec4(rounded)) & 0xFFu;
  if (i >= row_width) return;
  Words(codes).v[(row * row_width + i) / 4] = bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
  if (i % 32 == 0) Floats2(scales).v[(row * row_width + i) / 32] = vec2(both.x, sum_of_codes);
}
