// The innermost loop of prefill with sdot: four rows times a panel that was unpacked.
//
// Written out instruction by instruction because the order counts. A Neoverse N1 looks for instructions that can run among a few
// dozen, so codes are loaded one step before they are needed, no sum is added to twice in a row, and what would be copied from
// register to register is loaded again: loads are free here, copies are not. The compiler's order takes a third longer.
//
//   v0-v7    dot products, two registers to a row      v16-v23  columns of the rows, then products
//   v8-v15   sums                                      v24-v27  codes, then factors of the rows
#pragma once

#include "neon_dot.h"

namespace tahr::TAHR_ISA {

// What scales the dot products of a group of columns: `minus_base` is scale * -DOT_BASE, `minus_min` the minimum, negative.
struct GroupScales {
  UnitFloats scale, minus_base, minus_min;
};

// Adds `n` pieces: codes of 32 columns lie `w_step` bytes apart, their scales `s_step`, and four rows side by side at x.
template <int Groups, bool Min>
void add_four_rows(const uint8_t* w, int64_t w_step, const GroupScales* s, int64_t s_step, const RowTile<4>* x, int64_t n,
                   UnitFloats* sums);

#if !defined(TAHR_ISA_neon_i8mm)

#define TAHR_DOT(lo, hi, w, u, x, lane)                                 \
  "sdot v" #lo ".4s, v" #w ".16b, v" #x ".4b[" #lane "]\n"              \
  "sdot v" #hi ".4s, v" #u ".16b, v" #x ".4b[" #lane "]\n"
#define TAHR_DOTS(w, u, a, b, c, d, lane) \
  TAHR_DOT(0, 1, w, u, a, lane) TAHR_DOT(2, 3, w, u, b, lane) TAHR_DOT(4, 5, w, u, c, lane) TAHR_DOT(6, 7, w, u, d, lane)
#define TAHR_CODES(w, u, at) "ldp q" #w ", q" #u ", [%[w], #" #at "]\n"
// Sixteen columns, of which the first four codes are loaded already.
#define TAHR_HALF(a, b, c, d, at1, at2, at3, next)                      \
  TAHR_CODES(26, 27, at1) TAHR_DOTS(24, 25, a, b, c, d, 0)              \
  TAHR_CODES(24, 25, at2) TAHR_DOTS(26, 27, a, b, c, d, 1)              \
  TAHR_CODES(26, 27, at3) TAHR_DOTS(24, 25, a, b, c, d, 2)              \
  next TAHR_DOTS(26, 27, a, b, c, d, 3)
#define TAHR_FIRST_HALF(next) TAHR_HALF(16, 18, 20, 22, 32, 64, 96, next)
#define TAHR_SECOND_HALF TAHR_HALF(17, 19, 21, 23, 160, 192, 224, "")
#define TAHR_BASES                                                                                      \
  "ldp q0, q1, [%[base]]\n" "ldp q2, q3, [%[base]]\n" "ldp q4, q5, [%[base]]\n" "ldp q6, q7, [%[base]]\n"
#define TAHR_COLUMNS                                                    \
  "ldp q16, q17, [%[x]]\n" "ldp q18, q19, [%[x], #32]\n"                \
  "ldp q20, q21, [%[x], #64]\n" "ldp q22, q23, [%[x], #96]\n"
#define TAHR_FMA2(lo, hi, a, b, by) \
  "fmla v" #lo ".4s, v" #a ".4s, " by "\n" "fmla v" #hi ".4s, v" #b ".4s, " by "\n"
#define TAHR_SCALE(lo, hi, a, b) \
  "fmla v" #lo ".4s, v" #a ".4s, v30.4s\n" "fmla v" #hi ".4s, v" #b ".4s, v31.4s\n"
#define TAHR_NEXT                                                       \
  "add %[w], %[w], %[w_step]\n" "add %[s], %[s], %[s_step]\n"           \
  "add %[x], %[x], #192\n" "subs %[n], %[n], #1\n" "b.ne 1b\n"
#define TAHR_FACTORS                                                    \
  "ldp q24, q25, [%[x], #128]\n" "ldp q26, q27, [%[x], #160]\n"
#define TAHR_MIN                                                        \
  "ldp q28, q29, [%[s], #64]\n"                                         \
  TAHR_FMA2(8, 9, 28, 29, "v24.s[1]") TAHR_FMA2(10, 11, 28, 29, "v25.s[1]") \
  TAHR_FMA2(12, 13, 28, 29, "v26.s[1]") TAHR_FMA2(14, 15, 28, 29, "v27.s[1]")
// 32 columns with one scale.
#define TAHR_PIECE(min)                                                                                     \
  TAHR_CODES(24, 25, 0) TAHR_COLUMNS TAHR_BASES TAHR_FIRST_HALF(TAHR_CODES(24, 25, 128)) TAHR_SECOND_HALF   \
  "ldp q30, q31, [%[s]]\n" TAHR_FACTORS min                                                                 \
  "ldp q16, q17, [%[s], #32]\n" "ldp q18, q19, [%[s], #32]\n" "ldp q20, q21, [%[s], #32]\n" "ldp q22, q23, [%[s], #32]\n" \
  TAHR_SCALE(16, 17, 0, 1) TAHR_SCALE(18, 19, 2, 3) TAHR_SCALE(20, 21, 4, 5) TAHR_SCALE(22, 23, 6, 7)       \
  TAHR_FMA2(8, 9, 16, 17, "v24.s[0]") TAHR_FMA2(10, 11, 18, 19, "v25.s[0]")                                 \
  TAHR_FMA2(12, 13, 20, 21, "v26.s[0]") TAHR_FMA2(14, 15, 22, 23, "v27.s[0]")
// One row's end of a group of sixteen columns: t and u are free registers.
#define TAHR_ROW_END(lo, hi, a, b, t, u, f, base, factors)                          \
  "ldr q" #t ", [%[s], #" #base "]\n" "ldr q" #u ", [%[s], #" #base " + 16]\n"      \
  "ldr q" #f ", [%[x], #" #factors "]\n"                                            \
  TAHR_SCALE(t, u, a, b) TAHR_FMA2(lo, hi, t, u, "v" #f ".s[0]")
// 32 columns with two scales.
#define TAHR_TWO_GROUPS                                                                             \
  TAHR_CODES(24, 25, 0) TAHR_COLUMNS TAHR_BASES TAHR_FIRST_HALF("") "ldp q30, q31, [%[s]]\n"        \
  TAHR_ROW_END(8, 9, 0, 1, 16, 24, 28, 32, 128) TAHR_ROW_END(10, 11, 2, 3, 18, 25, 29, 32, 144)     \
  TAHR_ROW_END(12, 13, 4, 5, 20, 26, 28, 32, 160) TAHR_ROW_END(14, 15, 6, 7, 22, 27, 29, 32, 176)   \
  TAHR_CODES(24, 25, 128) TAHR_BASES TAHR_SECOND_HALF "ldp q30, q31, [%[s], #96]\n"                 \
  TAHR_ROW_END(8, 9, 0, 1, 16, 17, 28, 128, 128) TAHR_ROW_END(10, 11, 2, 3, 18, 19, 29, 128, 144)   \
  TAHR_ROW_END(12, 13, 4, 5, 20, 21, 28, 128, 160) TAHR_ROW_END(14, 15, 6, 7, 22, 23, 29, 128, 176)

#define TAHR_TILE(piece)                                                                                          \
  asm volatile(                                                                                                   \
      "ldp q8, q9, [%[sums]]\n" "ldp q10, q11, [%[sums], #32]\n" "ldp q12, q13, [%[sums], #64]\n"                 \
      "ldp q14, q15, [%[sums], #96]\n"                                                                            \
      "1:\n" piece TAHR_NEXT                                                                                      \
      "stp q8, q9, [%[sums]]\n" "stp q10, q11, [%[sums], #32]\n" "stp q12, q13, [%[sums], #64]\n"                 \
      "stp q14, q15, [%[sums], #96]\n"                                                                            \
      : [w] "+r"(w), [s] "+r"(s), [x] "+r"(x), [n] "+r"(n)                                                        \
      : [w_step] "r"(w_step), [s_step] "r"(s_step), [sums] "r"(sums), [base] "r"(DOT_BASES)                       \
      : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", \
        "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory")

template <int Groups, bool Min>
void add_four_rows(const uint8_t* w, int64_t w_step, const GroupScales* s, int64_t s_step, const RowTile<4>* x, int64_t n,
                   UnitFloats* sums) {
  static_assert(sizeof(RowTile<4>) == 192 && sizeof(GroupScales) == 96 && !(Groups == 2 && Min));
  if constexpr (Groups == 2) TAHR_TILE(TAHR_TWO_GROUPS);
  else if constexpr (Min) TAHR_TILE(TAHR_PIECE(TAHR_MIN));
  else TAHR_TILE(TAHR_PIECE(""));
}

#undef TAHR_DOT
#undef TAHR_DOTS
#undef TAHR_CODES
#undef TAHR_HALF
#undef TAHR_FIRST_HALF
#undef TAHR_SECOND_HALF
#undef TAHR_BASES
#undef TAHR_COLUMNS
#undef TAHR_FMA2
#undef TAHR_SCALE
#undef TAHR_NEXT
#undef TAHR_FACTORS
#undef TAHR_MIN
#undef TAHR_PIECE
#undef TAHR_ROW_END
#undef TAHR_TWO_GROUPS
#undef TAHR_TILE

#endif

}  // namespace tahr::TAHR_ISA
