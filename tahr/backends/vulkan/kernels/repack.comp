// Blocks of a weight file become codes and scales in planes. An invocation makes the 32 columns of one block of ours.
#include "common.glsl"
#include "weights.glsl"
layout(push_constant) uniform Push {
  uint64_t raw;
  uint64_t codes;
  uint64_t scales;
  uint n_blocks;
};

uint64_t base;  // of the block of the file
uint part;      // which 32 columns of it

uint byte_at(uint i) {
  const uint64_t at = base + i;
  return Words(at & ~3ul).v[0] >> uint(at & 3ul) * 8 & 0xFFu;
}

int signed_byte(uint i) { return bitfieldExtract(int(byte_at(i)), 0, 8); }
uint half_bits(uint i) { return byte_at(i) | byte_at(i + 1) << 8; }
float half_at(uint i) { return unpackHalf2x16(half_bits(i)).x; }
uint nibble(uint first, uint i) { return byte_at(first + i % 16) >> i / 16 * 4 & 15u; }  // of 32 columns in 16 bytes
uint high_bit(uint first, uint i) { return byte_at(first + i / 8) >> i % 8 & 1u; }

const int IQ4[16] = int[](-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
const int FP4[16] = int[](0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);

// Scale and offset k of the eight of Q4_K and Q5_K, 6 bits each.
uvec2 six_bits(uint k) {
  if (k < 4) return uvec2(byte_at(4 + k) & 63u, byte_at(8 + k) & 63u);
  return uvec2((byte_at(8 + k) & 15u) | byte_at(k) >> 6 << 4, byte_at(8 + k) >> 4 | byte_at(4 + k) >> 6 << 4);
}

// Scale k of the sixteen of Q3_K: 4 low bits in the first 8 bytes, 2 high bits in the last 4.
int q3_scale(uint k) {
  const uint low = byte_at(96 + k % 8) >> k / 8 * 4 & 15u;
  return int(low | (byte_at(104 + k % 4) >> k / 4 * 2 & 3u) << 4) - 32;
}

#if FORMAT == 80  // Q8_0
const uint PER = 1, BYTES = 34;
int code(uint i) { return signed_byte(2 + i); }
#elif FORMAT == 40  // Q4_0
const uint PER = 1, BYTES = 18;
int code(uint i) { return int(nibble(2, i)); }
uint pair() { return packHalf2x16(vec2(half_at(0), -8 * half_at(0))); }
#elif FORMAT == 41  // Q4_1
const uint PER = 1, BYTES = 20;
int code(uint i) { return int(nibble(4, i)); }
uint pair() { return half_bits(0) | half_bits(2) << 16; }
#elif FORMAT == 50  // Q5_0
const uint PER = 1, BYTES = 22;
int code(uint i) { return int(nibble(6, i) | high_bit(2, i) << 4) - 16; }
vec4 wide() { return vec4(half_at(0), 0, half_at(0), 0); }
#elif FORMAT == 51  // Q5_1
const uint PER = 1, BYTES = 24;
int code(uint i) { return int(nibble(8, i) | high_bit(4, i) << 4); }
vec4 wide() { return vec4(half_at(0), half_at(2), half_at(0), half_at(2)); }
#elif FORMAT == 2  // Q2_K
const uint PER = 8, BYTES = 84;
int code(uint i) { return int(byte_at(16 + part / 4 * 32 + i) >> part % 4 * 2 & 3u); }
vec4 wide() {
  const uint first = byte_at(2 * part), second = byte_at(2 * part + 1);
  const float d = half_at(80), least = half_at(82);
  return vec4(d * float(first & 15u), -least * float(first >> 4), d * float(second & 15u), -least * float(second >> 4));
}
#elif FORMAT == 3  // Q3_K
const uint PER = 8, BYTES = 110;
int code(uint i) {
  const int low = int(byte_at(32 + part / 4 * 32 + i) >> part % 4 * 2 & 3u);
  return (byte_at(i) >> part & 1u) != 0 ? low : low - 4;
}
vec4 wide() { return vec4(half_at(108) * q3_scale(2 * part), 0, half_at(108) * q3_scale(2 * part + 1), 0); }
#elif FORMAT == 4  // Q4_K
const uint PER = 8, BYTES = 144;
int code(uint i) { return int(byte_at(16 + part / 2 * 32 + i) >> part % 2 * 4 & 15u); }
#elif FORMAT == 5  // Q5_K
const uint PER = 8, BYTES = 176;
int code(uint i) {
  const uint low = byte_at(48 + part / 2 * 32 + i) >> part % 2 * 4 & 15u;
  return int(low | (byte_at(16 + i) >> part & 1u) << 4);
}
vec4 wide() {
  const uvec2 both = six_bits(part);
  return vec2(half_at(0) * float(both.x), -half_at(2) * float(both.y)).xyxy;
}
#elif FORMAT == 6  // Q6_K
const uint PER = 8, BYTES = 210;
int code(uint i) {
  const uint at = part % 4, half_of = part / 4;
  const uint low = byte_at(half_of * 64 + at % 2 * 32 + i) >> at / 2 * 4 & 15u;
  return int(low | (byte_at(128 + half_of * 32 + i) >> at * 2 & 3u) << 4) - 32;
}
vec4 wide() { return vec4(half_at(208) * signed_byte(192 + 2 * part), 0, half_at(208) * signed_byte(193 + 2 * part), 0); }
#elif FORMAT == 20  // IQ4_NL
const uint PER = 1, BYTES = 18;
int code(uint i) { return IQ4[nibble(2, i)]; }
#elif FORMAT == 23  // IQ4_XS
const uint PER = 8, BYTES = 136;
int code(uint i) { return IQ4[nibble(8 + 16 * part, i)]; }
vec4 wide() {
  const uint low = byte_at(4 + part / 2) >> part % 2 * 4 & 15u;
  const float scale = half_at(0) * (int(low | (half_bits(2) >> 2 * part & 3u) << 4) - 32);
  return vec4(scale, 0, scale, 0);
}
#elif FORMAT == 39  // MXFP4
const uint PER = 1, BYTES = 17;
int code(uint i) { return FP4[nibble(1, i)]; }
vec4 wide() {
  const float scale = ldexp(0.5, int(byte_at(0)) - 127);
  return vec4(scale, 0, scale, 0);
}
#endif

void main() {
  const uint block = gl_GlobalInvocationID.x;
  if (block >= n_blocks) return;
  base = raw + uint64_t(block / PER) * BYTES;
  part = block % PER;
#if KIND == Q4 || KIND == K4
  for (uint word = 0; word < 4; ++word) {
    uint packed = 0;
    for (uint k = 0; k < 4; ++k) packed |= uint(code(4 * word + k) | code(16 + 4 * word + k) << 4) << 8 * k;
    Words(codes + 16ul * block).v[word] = packed;
  }
#else
  for (uint word = 0; word < 8; ++word) {
    uint packed = 0;
    for (uint k = 0; k < 4; ++k) packed |= (uint(code(4 * word + k)) & 0xFFu) << 8 * k;
    Words(codes + 32ul * block).v[word] = packed;
  }
#endif
#if KIND == Q8
  Halves(scales).v[block] = uint16_t(half_bits(0));
#elif KIND == Q4
  Words(scales).v[block] = pair();
#elif KIND == K4
  const uvec2 both = six_bits(part);
  Words first = Words(scales + 20ul * (block / 8));
  if (part == 0) first.v[0] = half_bits(0) | half_bits(2) << 16;
  Halves(uint64_t(first) + 4).v[part] = uint16_t(both.x | both.y << 8);
#elif KIND == W8
  Floats2(scales).v[block] = wide().xz;
#else
  Floats4(scales).v[block] = wide();
#endif
}
