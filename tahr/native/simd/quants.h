// Block formats: where a file keeps the codes and scales of 32 columns, and what they mean.
//
//   value = scale * sub_scale * (code - offset) - min * sub_min        or, with a table, scale * sub_scale * table[code]
//
// Codewords of IQ1 to IQ3 are four or eight whole values: unit * scale * sub_scale * value, with the sign of each where they have some.
//
// One table drives packing, embedding and the matmul kernels. Internal linkage throughout, as in half.h.
#pragma once

#include "codebooks.h"
#include "half.h"
#include "pack.h"

namespace tahr {

// How scales lie beside the codes of a panel of P rows.
enum class Scales : uint8_t {
  NONE,         // dense
  PLAIN,        // per 32 columns: f16 scale[P]
  BRAIN,        // per 32 columns: bf16 scale[P]
  WIDE,         // per 256 columns: f16 scale[P]
  PLAIN_MIN,    // per 32 columns: f16 scale[P], f16 min[P]
  SUPER,        // per 256 columns: f16 scale[P], then per group: i8 sub_scale[P]
  SUPER_MIN,    // per 256 columns: f16 scale[P], f16 min[P], then per group: u8 sub_scale[P], u8 sub_min[P]
  SUPER_SHORT,  // the same with both in a byte: sub_scale in the low four bits
  SUPER_ODD,    // per 256 columns: f16 scale[P], then per two groups a byte for each row: sub_scale = 2 n + 1 of n in four bits
};

// 32 columns of one row, as read from a file.
struct Piece {
  uint32_t words[8];       // codes, a byte each, four columns to a word
  uint16_t scale, min;     // bits of f16 (bf16 for BRAIN)
  int8_t sub_scale[2], sub_min[2];  // one per group: 16-column groups have two in a piece
  uint16_t index[8];       // of codewords: four of eight columns, or eight of four; `words` are what they spell
  uint32_t minus;          // bit j: column j of the codewords is negative
};

using ReadPiece = void (*)(const uint8_t* block, int index, Piece& piece);

namespace quants {

constexpr uint32_t NIBBLES = 0x0f0f0f0f, PAIRS = 0x03030303, ONES = 0x01010101;

static inline uint32_t word(const uint8_t* p) {
  uint32_t w;
  memcpy(&w, p, sizeof w);
  return w;
}

static inline uint16_t half(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

static inline void unit_scales(Piece& piece, const uint8_t* scale) {
  piece.scale = half(scale);
  piece.sub_scale[0] = piece.sub_min[0] = 1;
}

// 16 bytes: the low nibbles are columns 0 to 15, the high ones 16 to 31.
static inline void split_nibbles(Piece& piece, const uint8_t* codes) {
  for (int i = 0; i < 4; i++) {
    const uint32_t w = word(codes + 4 * i);
    piece.words[i] = w & NIBBLES;
    piece.words[i + 4] = w >> 4 & NIBBLES;
  }
}

// Bit j of `bits` becomes bit 4 of column j.
static inline void fifth_bits(Piece& piece, uint32_t bits) {
  for (int i = 0; i < 8; i++) {
    const uint32_t four = bits >> 4 * i & 15;
    piece.words[i] |= ((four & 1) | (four & 2) << 7 | (four & 4) << 14 | (four & 8) << 21) << 4;
  }
}

static inline void read_q8_0(const uint8_t* block, int, Piece& piece) {
  unit_scales(piece, block);
  memcpy(piece.words, block + 2, 32);
}

static inline void read_q4_0(const uint8_t* block, int, Piece& piece) {
  unit_scales(piece, block);
  split_nibbles(piece, block + 2);
}

// The file adds its minimum, the formula above subtracts it.
static inline void read_q4_1(const uint8_t* block, int, Piece& piece) {
  unit_scales(piece, block);
  piece.min = half(block + 2) ^ 0x8000;
  split_nibbles(piece, block + 4);
}

static inline void read_q5_0(const uint8_t* block, int, Piece& piece) {
  unit_scales(piece, block);
  split_nibbles(piece, block + 6);
  fifth_bits(piece, word(block + 2));
}

static inline void read_q5_1(const uint8_t* block, int, Piece& piece) {
  unit_scales(piece, block);
  piece.min = half(block + 2) ^ 0x8000;
  split_nibbles(piece, block + 8);
  fifth_bits(piece, word(block + 4));
}

// The scale 2^(e - 128) in bits of bf16; the two smallest are subnormal.
static inline void read_mxfp4(const uint8_t* block, int, Piece& piece) {
  const int e = block[0];
  piece.scale = uint16_t(e < 2 ? 0x20 << e : (e - 1) << 7);
  piece.sub_scale[0] = 1;
  split_nibbles(piece, block + 1);
}

// Two bits of column j of piece i: bits 2 (i % 4) of byte 32 (i / 4) + j.
static inline uint32_t crumbs(const uint8_t* codes, int index, int at) {
  return word(codes + 32 * (index / 4) + 4 * at) >> 2 * (index % 4) & PAIRS;
}

static inline void read_q2_k(const uint8_t* block, int index, Piece& piece) {
  piece.scale = half(block + 80);
  piece.min = half(block + 82);
  for (int i = 0; i < 2; i++) {
    piece.sub_scale[i] = block[2 * index + i] & 15;
    piece.sub_min[i] = int8_t(block[2 * index + i] >> 4);
  }
  for (int i = 0; i < 8; i++) piece.words[i] = crumbs(block + 16, index, i);
}

static inline void read_q3_k(const uint8_t* block, int index, Piece& piece) {
  const uint8_t *high_bits = block, *scales = block + 96;
  piece.scale = half(block + 108);
  for (int i = 0; i < 2; i++) {
    const int at = 2 * index + i;  // four bits of it lie among the first 8 bytes, two among the last 4
    const int low = scales[at % 8] >> 4 * (at / 8) & 15, high = scales[8 + at % 4] >> 2 * (at / 4) & 3;
    piece.sub_scale[i] = int8_t((low | high << 4) - 32);
  }
  for (int i = 0; i < 8; i++)
    piece.words[i] = crumbs(block + 32, index, i) | (word(high_bits + 4 * i) >> index & ONES) << 2;
}

// Six-bit scales and minima of eight pieces in twelve bytes.
static inline void super_scales(const uint8_t* block, int index, Piece& piece) {
  const uint8_t* p = block + 4;
  piece.scale = half(block);
  piece.min = half(block + 2);
  piece.sub_scale[0] = int8_t(index < 4 ? p[index] & 63 : (p[index + 4] & 15) | p[index - 4] >> 6 << 4);
  piece.sub_min[0] = int8_t(index < 4 ? p[index + 4] & 63 : p[index + 4] >> 4 | p[index] >> 6 << 4);
}

// Even pieces are the low nibbles of 32 bytes, the odd ones after them the high nibbles.
static inline uint32_t nibbles(const uint8_t* codes, int index, int at) {
  return word(codes + 32 * (index / 2) + 4 * at) >> 4 * (index % 2) & NIBBLES;
}

static inline void read_q4_k(const uint8_t* block, int index, Piece& piece) {
  super_scales(block, index, piece);
  for (int i = 0; i < 8; i++) piece.words[i] = nibbles(block + 16, index, i);
}

static inline void read_q5_k(const uint8_t* block, int index, Piece& piece) {
  super_scales(block, index, piece);
  for (int i = 0; i < 8; i++)
    piece.words[i] = nibbles(block + 48, index, i) | (word(block + 16 + 4 * i) >> index & ONES) << 4;
}

static inline void read_q6_k(const uint8_t* block, int index, Piece& piece) {
  const uint8_t* low = block + 64 * (index / 4) + 32 * (index % 2);
  piece.scale = half(block + 208);
  for (int i = 0; i < 2; i++) piece.sub_scale[i] = int8_t(block[192 + 2 * index + i]);
  for (int i = 0; i < 8; i++)
    piece.words[i] = (word(low + 4 * i) >> (index % 4 < 2 ? 0 : 4) & NIBBLES) | crumbs(block + 128, index, i) << 4;
}

static inline void read_iq4_xs(const uint8_t* block, int index, Piece& piece) {
  piece.scale = half(block);
  const int low = block[4 + index / 2] >> 4 * (index % 2) & 15, high = half(block + 2) >> 2 * index & 3;
  piece.sub_scale[0] = int8_t((low | high << 4) - 32);
  split_nibbles(piece, block + 8 + 16 * index);
}

static inline void read_tq2_0(const uint8_t* block, int index, Piece& piece) {
  unit_scales(piece, block + 64);
  for (int i = 0; i < 8; i++) piece.words[i] = crumbs(block, index, i);
}

// A byte is a fraction of 256 in base 3: multiplying (modulo 256) by 3^k brings digit k to the front.
static inline uint8_t trit(uint8_t byte, int k) {
  constexpr uint8_t powers[5] = {1, 3, 9, 27, 81};
  return uint8_t(uint8_t(byte * powers[k]) * 3 >> 8);
}

// 32 bytes of five digits, 16 bytes of five, 4 bytes of four.
static inline uint8_t trit_of_column(const uint8_t* block, int column) {
  if (column < 160) return trit(block[column % 32], column / 32);
  if (column < 240) return trit(block[32 + column % 16], (column - 160) / 16);
  return trit(block[48 + column % 4], (column - 240) / 4);
}

static inline void read_tq1_0(const uint8_t* block, int index, Piece& piece) {
  unit_scales(piece, block + 52);
  uint8_t codes[32];
  for (int i = 0; i < 32; i++) codes[i] = trit_of_column(block, 32 * index + i);
  memcpy(piece.words, codes, sizeof codes);
}

// ---- codewords ----

static inline int8_t odd(int n) { return int8_t(2 * (n & 15) + 1); }

// Four times seven signs; the number of minuses among eight is even.
static inline uint32_t eighth_signs(uint32_t sevens) {
  uint32_t minus = 0;
  for (int i = 0; i < 4; i++) {
    const uint32_t seven = sevens >> 7 * i & 127;
    minus |= (seven | uint32_t(__builtin_parity(seven)) << 7) << 8 * i;
  }
  return minus;
}

// The codewords' values, with their signs, as bytes.
template <int Width, class Word>
static inline void spell(Piece& piece, const Word* book) {
  auto* out = reinterpret_cast<uint8_t*>(piece.words);
  for (int i = 0; i < 32 / Width; i++) memcpy(out + i * Width, &book[piece.index[i]], Width);
  for (int i = 0; i < 32; i++)
    if (piece.minus >> i & 1) out[i] = uint8_t(-out[i]);
}

static inline void two_odd_scales(Piece& piece, int both) {
  piece.sub_scale[0] = odd(both);
  piece.sub_scale[1] = odd(both >> 4);
}

static inline void read_iq2_xxs(const uint8_t* block, int index, Piece& piece) {
  const uint8_t* part = block + 2 + 8 * index;
  piece.scale = half(block);
  piece.sub_scale[0] = odd(int(word(part + 4) >> 28));
  piece.minus = eighth_signs(word(part + 4));
  for (int i = 0; i < 4; i++) piece.index[i] = part[i];
  spell<8>(piece, CODEBOOKS.iq2_xxs);
}

static inline void read_iq2_xs(const uint8_t* block, int index, Piece& piece) {
  piece.scale = half(block);
  two_odd_scales(piece, block[66 + index]);
  uint32_t sevens = 0;
  for (int i = 0; i < 4; i++) {
    const uint16_t both = half(block + 2 + 8 * index + 2 * i);
    piece.index[i] = both & 511;
    sevens |= uint32_t(both >> 9) << 7 * i;
  }
  piece.minus = eighth_signs(sevens);
  spell<8>(piece, CODEBOOKS.iq2_xs);
}

static inline void read_iq2_s(const uint8_t* block, int index, Piece& piece) {
  piece.scale = half(block);
  two_odd_scales(piece, block[74 + index]);
  piece.minus = word(block + 34 + 4 * index);
  for (int i = 0; i < 4; i++) piece.index[i] = uint16_t(block[2 + 4 * index + i] | (block[66 + index] >> 2 * i & 3) << 8);
  spell<8>(piece, CODEBOOKS.iq2_s);
}

static inline void read_iq3_xxs(const uint8_t* block, int index, Piece& piece) {
  const uint32_t signs = word(block + 66 + 4 * index);
  piece.scale = half(block);
  piece.sub_scale[0] = odd(int(signs >> 28));
  piece.minus = eighth_signs(signs);
  for (int i = 0; i < 8; i++) piece.index[i] = block[2 + 8 * index + i];
  spell<4>(piece, CODEBOOKS.iq3_xxs);
}

static inline void read_iq3_s(const uint8_t* block, int index, Piece& piece) {
  piece.scale = half(block);
  piece.sub_scale[0] = odd(block[106 + index / 2] >> 4 * (index % 2));
  piece.minus = word(block + 74 + 4 * index);
  for (int i = 0; i < 8; i++) piece.index[i] = uint16_t(block[2 + 8 * index + i] | (block[66 + index] >> i & 1) << 8);
  spell<4>(piece, CODEBOOKS.iq3_s);
}

// Sixteen bits: four times three upper bits of an index, a scale, and whether the codewords move down.
static inline void read_iq1_s(const uint8_t* block, int index, Piece& piece) {
  const int high = half(block + 34 + 2 * index);
  piece.scale = half(block);
  piece.sub_scale[0] = odd(high >> 12 & 7);
  piece.minus = 0;
  for (int i = 0; i < 4; i++)
    piece.index[i] = uint16_t(block[2 + 4 * index + i] | (high >> 3 * i & 7) << 8 | high >> 15 << 11);
  spell<8>(piece, CODEBOOKS.iq1);
}

// The f16 scale is spread over the top four bits of four words, which else hold four scales of three bits each.
static inline void read_iq1_m(const uint8_t* block, int index, Piece& piece) {
  const uint8_t* scales = block + 48;
  const int four = half(scales + index / 2 * 2) >> 6 * (index % 2);
  piece.scale = 0;
  for (int i = 0; i < 4; i++) piece.scale |= uint16_t(half(scales + 2 * i) >> 12 << 4 * i);
  piece.sub_scale[0] = odd(four & 7);
  piece.sub_scale[1] = odd(four >> 3 & 7);
  piece.minus = 0;
  for (int i = 0; i < 4; i++) {
    const int high = block[32 + 2 * index + i / 2] >> 4 * (i % 2) & 15;  // the highest bit: the codeword moves down
    piece.index[i] = uint16_t(block[4 * index + i] | high << 8);
  }
  spell<8>(piece, CODEBOOKS.iq1);
}

constexpr int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t FP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // halves

}  // namespace quants

// How codewords lie in a panel of P rows, for 32 columns: the lower eight bits of the first index of all rows, of the second and so
// on; then bytes of what is above these, the first index lowest; then a bit for each column that is negative, as vectors have them.
struct Spelling {
  int width = 0;      // values of a codeword, 0: there are none
  int high_bits = 0;  // of an index, above eight
  bool has_signs = false;
};

struct FormatRow {
  const char* name;
  int block_cols, block_bytes;
  int bits;             // of a code, of one value that codewords spell; of a number for dense formats
  int group;            // columns that share a scale
  Scales scales;
  int offset;           // 0 for signed codes (8 bits) and tables
  const int8_t* table;  // or null
  ReadPiece read;
  Spelling spelling = {};
  float unit = 1;  // of the scale
};

constexpr FormatRow FORMAT_ROWS[N_FORMATS] = {
    {"F32", 1, 4, 32, 0, Scales::NONE, 0, nullptr, nullptr},
    {"F16", 1, 2, 16, 0, Scales::NONE, 0, nullptr, nullptr},
    {"BF16", 1, 2, 16, 0, Scales::NONE, 0, nullptr, nullptr},
    {"Q8_0", 32, 34, 8, 32, Scales::PLAIN, 0, nullptr, quants::read_q8_0},
    {"Q4_0", 32, 18, 4, 32, Scales::PLAIN, 8, nullptr, quants::read_q4_0},
    {"Q4_1", 32, 20, 4, 32, Scales::PLAIN_MIN, 0, nullptr, quants::read_q4_1},
    {"Q5_0", 32, 22, 5, 32, Scales::PLAIN, 16, nullptr, quants::read_q5_0},
    {"Q5_1", 32, 24, 5, 32, Scales::PLAIN_MIN, 0, nullptr, quants::read_q5_1},
    {"Q2_K", 256, 84, 2, 16, Scales::SUPER_SHORT, 0, nullptr, quants::read_q2_k},
    {"Q3_K", 256, 110, 3, 16, Scales::SUPER, 4, nullptr, quants::read_q3_k},
    {"Q4_K", 256, 144, 4, 32, Scales::SUPER_MIN, 0, nullptr, quants::read_q4_k},
    {"Q5_K", 256, 176, 5, 32, Scales::SUPER_MIN, 0, nullptr, quants::read_q5_k},
    {"Q6_K", 256, 210, 6, 16, Scales::SUPER, 32, nullptr, quants::read_q6_k},
    {"IQ4_NL", 32, 18, 4, 32, Scales::PLAIN, 0, quants::IQ4_VALUES, quants::read_q4_0},
    {"IQ4_XS", 256, 136, 4, 32, Scales::SUPER, 0, quants::IQ4_VALUES, quants::read_iq4_xs},
    {"MXFP4", 32, 17, 4, 32, Scales::BRAIN, 0, quants::FP4_VALUES, quants::read_mxfp4},
    {"TQ1_0", 256, 54, 2, 32, Scales::WIDE, 1, nullptr, quants::read_tq1_0},
    {"TQ2_0", 256, 66, 2, 32, Scales::WIDE, 1, nullptr, quants::read_tq2_0},
    {"IQ1_S", 256, 50, 8, 32, Scales::SUPER_ODD, 0, nullptr, quants::read_iq1_s, {8, 4, false}, 0.125f},
    {"IQ1_M", 256, 56, 8, 16, Scales::SUPER_ODD, 0, nullptr, quants::read_iq1_m, {8, 4, false}, 0.125f},
    {"IQ2_XXS", 256, 66, 8, 32, Scales::SUPER_ODD, 0, nullptr, quants::read_iq2_xxs, {8, 0, true}, 0.125f},
    {"IQ2_XS", 256, 74, 8, 16, Scales::SUPER_ODD, 0, nullptr, quants::read_iq2_xs, {8, 1, true}, 0.125f},
    {"IQ2_S", 256, 82, 8, 16, Scales::SUPER_ODD, 0, nullptr, quants::read_iq2_s, {8, 2, true}, 0.125f},
    {"IQ3_XXS", 256, 98, 8, 32, Scales::SUPER_ODD, 0, nullptr, quants::read_iq3_xxs, {4, 0, true}, 0.25f},
    {"IQ3_S", 256, 110, 8, 32, Scales::SUPER_ODD, 0, nullptr, quants::read_iq3_s, {4, 1, true}},
};

constexpr const FormatRow& row_of(Format format) { return FORMAT_ROWS[int(format)]; }

constexpr bool has_min(Scales s) {
  return s == Scales::PLAIN_MIN || s == Scales::SUPER_MIN || s == Scales::SUPER_SHORT;
}
constexpr bool has_super(Scales s) {
  return s == Scales::SUPER || s == Scales::SUPER_MIN || s == Scales::SUPER_SHORT || s == Scales::SUPER_ODD;
}

// Codes are codewords.
constexpr bool is_spelt(Format format) { return row_of(format).spelling.width != 0; }
constexpr int n_codewords(Format format) { return 32 / row_of(format).spelling.width; }
constexpr int n_high_bytes(Format format) { return (n_codewords(format) * row_of(format).spelling.high_bits + 7) / 8; }

// ---- a panel of P rows: all codes, then all scales ----

constexpr int64_t PIECE_COLS = 32;

// 32 columns of codes are `bits` vectors of 4 P bytes: four of nibbles (columns 4 v .. in the low ones, 16 + 4 v .. in
// the high ones), then two of bit pairs or one of single bits for what nibbles cannot hold.
constexpr int64_t piece_bytes(Format format, int panel_rows) {
  if (!is_spelt(format)) return int64_t(row_of(format).bits) * 4 * panel_rows;
  return int64_t(n_codewords(format) + n_high_bytes(format) + 4 * row_of(format).spelling.has_signs) * panel_rows;
}

constexpr int64_t scale_cols(Scales s) { return has_super(s) || s == Scales::WIDE ? 256 : PIECE_COLS; }

// Bytes of scales per scale_cols columns.
constexpr int64_t scale_bytes(Format format, int panel_rows) {
  const FormatRow& row = row_of(format);
  const int64_t floats = has_min(row.scales) ? 4 : 2;
  const int64_t n_groups = has_super(row.scales) ? 256 / row.group : 0;
  const int64_t subs = row.scales == Scales::SUPER_MIN ? 2 * n_groups : row.scales == Scales::SUPER_ODD ? n_groups / 2 : n_groups;
  return (floats + subs) * panel_rows;
}

}  // namespace tahr
