// Keys and values: [page, head, token of the page, number], by KV type.
#define KV_F32 0
#define KV_F16 1
#define KV_BF16 2

uint kv_bytes() { return KV == KV_F32 ? 4 : 2; }

// Numbers 2 * pair and 2 * pair + 1 of a head.
vec2 load_pair(uint64_t head, uint pair) {
#if KV == KV_F32
  return Floats2(head).v[pair];
#elif KV == KV_F16
  return unpackHalf2x16(Words(head).v[pair]);
#else
  const uint word = Words(head).v[pair];
  return uintBitsToFloat(uvec2(word << 16, word & 0xFFFF0000u));
#endif
}

void store_pair(uint64_t head, uint pair, vec2 numbers) {
#if KV == KV_F32
  Floats2(head).v[pair] = numbers;
#elif KV == KV_F16
  Words(head).v[pair] = packHalf2x16(numbers);
#else
  Words(head).v[pair] = to_bf16(numbers.x) | to_bf16(numbers.y) << 16;
#endif
}

// Numbers 8 * unit to 8 * unit + 7 of a head of whole eights.
void load_eight(uint64_t head, uint unit, out vec4 low, out vec4 high) {
#if KV == KV_F32
  low = Floats4(head).v[2 * unit];
  high = Floats4(head).v[2 * unit + 1];
#else
  const uvec4 words = Words4(head).v[unit];
#if KV == KV_F16
  low = vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
  high = vec4(unpackHalf2x16(words.z), unpackHalf2x16(words.w));
#else
  low = uintBitsToFloat(uvec4(words.x << 16, words.x & 0xFFFF0000u, words.y << 16, words.y & 0xFFFF0000u));
  high = uintBitsToFloat(uvec4(words.z << 16, words.z & 0xFFFF0000u, words.w << 16, words.w & 0xFFFF0000u));
#endif
#endif
}
