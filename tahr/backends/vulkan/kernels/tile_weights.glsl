// Eight columns of a row of a matrix at a time, as tiles take them: first the bytes as they lie, later the numbers.
#if KIND == F32
struct Raw { uvec4 words; uvec4 more; };
#elif DENSE
struct Raw { uvec4 words; };
#elif KIND == Q4 || KIND == K4
struct Raw { uint words; vec2 scaled; };
#else
struct Raw { uvec2 words; vec2 scaled; };
#endif

// The columns of part 0 to 3 of a block: four from `first_of` on, four from `second_of` on.
#if KIND == Q4 || KIND == K4
uint first_of(uint part) { return 4 * part; }
uint second_of(uint part) { return 16 + 4 * part; }
#else
uint first_of(uint part) { return 8 * part; }
uint second_of(uint part) { return 8 * part + 4; }
#endif

Raw fetch(uint64_t code_row, uint64_t scale_row, uint block, uint part, uint n_cols) {
  Raw raw;
#if DENSE
  const uint run = 4 * block + part;
  const bool is_there = 8 * run < n_cols;  // rows are filled to whole runs of 8
#if KIND == F32
  raw.words = is_there ? Words4(code_row).v[2 * run] : uvec4(0);
  raw.more = is_there ? Words4(code_row).v[2 * run + 1] : uvec4(0);
#else
  raw.words = is_there ? Words4(code_row).v[run] : uvec4(0);
#endif
#else
  const vec4 scaled = load_scales(scale_row, block);
#if KIND == Q4 || KIND == K4
  raw.words = Words(code_row).v[4 * block + part];
  raw.scaled = scaled.xy;
#else
  raw.words = Words2(code_row).v[4 * block + part];
  raw.scaled = part < 2 ? scaled.xy : scaled.zw;
#endif
#endif
  return raw;
}

#if !DENSE
vec4 codes_of(uint word) {
#if KIND == Q4 || KIND == K4
  return vec4(word & 15u, word >> 8 & 15u, word >> 16 & 15u, word >> 24 & 15u);
#else
  const int codes = int(word);
  return vec4(bitfieldExtract(codes, 0, 8), bitfieldExtract(codes, 8, 8), bitfieldExtract(codes, 16, 8), codes >> 24);
#endif
}
#endif

void decode(Raw raw, out vec4 first, out vec4 second) {
#if KIND == F32
  first = uintBitsToFloat(raw.words);
  second = uintBitsToFloat(raw.more);
#elif KIND == F16
  first = vec4(unpackHalf2x16(raw.words.x), unpackHalf2x16(raw.words.y));
  second = vec4(unpackHalf2x16(raw.words.z), unpackHalf2x16(raw.words.w));
#elif KIND == BF16
  first = uintBitsToFloat(uvec4(raw.words.x << 16, raw.words.x & 0xFFFF0000u, raw.words.y << 16, raw.words.y & 0xFFFF0000u));
  second = uintBitsToFloat(uvec4(raw.words.z << 16, raw.words.z & 0xFFFF0000u, raw.words.w << 16, raw.words.w & 0xFFFF0000u));
#elif KIND == Q4 || KIND == K4
  first = codes_of(raw.words) * raw.scaled.x + raw.scaled.y;
  second = codes_of(raw.words >> 4) * raw.scaled.x + raw.scaled.y;
#else
  first = codes_of(raw.words.x) * raw.scaled.x + raw.scaled.y;
  second = codes_of(raw.words.y) * raw.scaled.x + raw.scaled.y;
#endif
}
