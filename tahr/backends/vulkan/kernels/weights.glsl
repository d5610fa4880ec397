// How matrices lie in memory, by KIND. Dense rows are filled with zeros to whole runs of 8 columns. Codes of blocks of 32
// columns lie row after row, and so does what scales them, in a plane of its own.
#define F32 0
#define F16 1
#define BF16 2
#define Q8 3    // 8-bit codes, an f16 scale
#define Q4 4    // 4-bit codes (byte k: columns k and k + 16), an f16 scale and an f16 offset
#define K4 5    // the same codes; of 256 columns: f16 units of scales and offsets, then 8 times a scale and an offset in bytes
#define W8 6    // 8-bit codes, an f32 scale for each half of the block
#define W8_OFFSETS 7  // 8-bit codes, an f32 scale and an f32 offset for each half
#define DENSE (KIND <= BF16)

uint64_t codes_row_bytes(uint n_cols) {
#if DENSE
  return uint64_t((n_cols + 7) / 8) * (KIND == F32 ? 32 : 16);
#elif KIND == Q4 || KIND == K4
  return n_cols / 2;
#else
  return n_cols;
#endif
}

uint64_t scales_row_bytes(uint n_cols) {
#if KIND == Q8
  return n_cols / 32 * 2;
#elif KIND == Q4
  return n_cols / 32 * 4;
#elif KIND == K4
  return n_cols / 256 * 20;
#elif KIND == W8
  return n_cols / 32 * 8;
#else
  return n_cols / 32 * 16;
#endif
}

#if DENSE
// Eight neighbouring numbers of a row.
void load_eight(uint64_t row, uint run, out vec4 low, out vec4 high) {
#if KIND == F32
  low = Floats4(row).v[2 * run];
  high = Floats4(row).v[2 * run + 1];
#else
  const uvec4 words = Words4(row).v[run];
#if KIND == F16
  low = vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
  high = vec4(unpackHalf2x16(words.z), unpackHalf2x16(words.w));
#else
  low = uintBitsToFloat(uvec4(words.x << 16, words.x & 0xFFFF0000u, words.y << 16, words.y & 0xFFFF0000u));
  high = uintBitsToFloat(uvec4(words.z << 16, words.z & 0xFFFF0000u, words.w << 16, words.w & 0xFFFF0000u));
#endif
#endif
}
#else
// Scales and offsets of both halves of a block: (scale, offset, scale, offset).
vec4 load_scales(uint64_t row, uint block) {
#if KIND == Q8
  const float scale = unpackHalf2x16(uint(Halves(row).v[block])).x;
  return vec4(scale, 0, scale, 0);
#elif KIND == Q4
  return unpackHalf2x16(Words(row).v[block]).xyxy;
#elif KIND == K4
  const uint at = block / 8 * 5;
  const vec2 units = unpackHalf2x16(Words(row).v[at]);
  const uint both = Words(row).v[at + 1 + block % 8 / 2] >> block % 2 * 16;
  return vec2(units.x * float(both & 0xFFu), -units.y * float(both >> 8 & 0xFFu)).xyxy;
#elif KIND == W8
  const vec2 halves = Floats2(row).v[block];
  return vec4(halves.x, 0, halves.y, 0);
#else
  return Floats4(row).v[block];
#endif
}

// Codes of a block, four to a word in the order of columns.
void load_codes(uint64_t row, uint block, out ivec4 low, out ivec4 high) {
#if KIND == Q4 || KIND == K4
  const uvec4 words = Words4(row).v[block];
  low = ivec4(words & 0x0F0F0F0Fu);
  high = ivec4(words >> 4 & 0x0F0F0F0Fu);
#else
  low = ivec4(Words4(row).v[2 * block]);
  high = ivec4(Words4(row).v[2 * block + 1]);
#endif
}
#endif
