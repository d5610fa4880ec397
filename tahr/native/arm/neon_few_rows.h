// A few rows times a panel: its codes are unpacked in registers, and each register meets all rows.
//
// Up to four or five rows take whole panels. With more the sums, dot products and columns of rows do not fit the registers: these go
// through half of a panel's rows, then through the other half, which the nearest cache holds by then.
#pragma once

#include "neon_panel.h"

namespace tahr::TAHR_ISA {

constexpr int64_t AHEAD = 1024;  // bytes of a panel that the nearest cache is asked for; the second one was asked FAR_AHEAD

// Rows from which halves are faster.
template <Format F>
constexpr int HALVES_FROM = row_of(F).bits == 8 ? 6 : 5;

TAHR_INLINE int8x16_t load_columns(const int8_t* codes) {
  return vreinterpretq_s8_f32(load_again(reinterpret_cast<const float*>(codes)));
}

TAHR_INLINE Ints row_dots(const UnitDots& d) {
  UnitFloats f;
  for (int i = 0; i < UNIT_VECTORS; i++) f.v[i] = vreinterpretq_f32_s32(d.v[i]);
  return as_ints(row_of_unit(f, 0));
}

template <Format F, int Group>
TAHR_INLINE Floats add_group(const UnitDots& dots, const ScaleMin& s, const Floats& base, const QuantBlock& x, Floats sum) {
  const Ints d = row_dots(dots);
  const float32x4_t factors = vld1q_f32(&x.scale);
  if constexpr (has_min(row_of(F).scales)) {
    float sums[2];
    group_sums<F>(x, sums);
    sum = fnma(s.min, set1(sums[Group]), sum);
  }
  sum.lo = vfmaq_laneq_f32(sum.lo, scaled<F>(d.lo, s.scale.lo, base.lo), factors, 0);
  sum.hi = vfmaq_laneq_f32(sum.hi, scaled<F>(d.hi, s.scale.hi, base.hi), factors, 0);
  return sum;
}

// Vectors [V, End) of the codes at p, each unpacked once for all rows. Sixteen columns of the rows are in registers at a time.
template <Format F, int V, int End, int Rows>
TAHR_INLINE void dot_rows(UnitDots (&dots)[Rows], const uint8_t* p, const QuantBlock* const (&x)[Rows], int64_t to_next,
                          int8x16_t (&columns)[Rows]) {
  const int8x16_t lo = vreinterpretq_s8_u8(code_vector<F, V>(p)), hi = vreinterpretq_s8_u8(code_vector<F, V>(p + 16));
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
    dots[r].v[0] = vdotq_laneq_s32(dots[r].v[0], lo, columns[r], V % 4);
    dots[r].v[1] = vdotq_laneq_s32(dots[r].v[1], hi, columns[r], V % 4);
    if constexpr (V == 3) columns[r] = load_columns(x[r]->codes + 16);
    if constexpr (V == 7) columns[r] = load_columns(x[r][to_next].codes);
  }
  if constexpr (V + 1 < End) dot_rows<F, V + 1, End>(dots, p, x, to_next, columns);
}

template <Format F, int Group, int Rows>
TAHR_INLINE void add_groups(const uint8_t* codes, const ScaleMin& s, const QuantBlock* const (&x)[Rows], int64_t p, int64_t to_next,
                            int8x16_t (&columns)[Rows], Floats (&sums)[Rows]) {
  constexpr int count = row_of(F).group / 4;
  UnitDots dots[Rows];
#pragma GCC unroll 8
  for (auto& d : dots) d = start_dots();
  if constexpr (Rows == 1) {
    dot_codes<F, Group * count, (Group + 1) * count>(dots[0], codes, columns_of(x[0][p]));
  } else {
    const QuantBlock* blocks[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++) blocks[r] = x[r] + p;
    dot_rows<F, Group * count, (Group + 1) * count>(dots, codes, blocks, to_next, columns);
  }
  const Floats base = minus_base(s.scale);
  alignas(16) float again[LANES];  // where it is loaded from for each of many rows: copying a register would take longer
  if constexpr (Rows > 4) store(again, base);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
    if constexpr (Rows > 4) sums[r] = add_group<F, Group>(dots[r], s, {load_again(again), load_again(again + 4)}, x[r][p], sums[r]);
    else sums[r] = add_group<F, Group>(dots[r], s, base, x[r][p], sums[r]);
  }
}

template <Format F, int Rows>
void few_rows(const std::byte* panel, int64_t cols, const QuantBlock* const (&x)[Rows], Floats (&found)[Rows]) {
  Floats sums[Rows];  // of its own: those of the caller would be stored again and again
  const PanelView<F> view(panel, cols);
  const uint8_t* next_scales = view.scales + view.n_bytes();
#pragma GCC unroll 8
  for (auto& sum : sums) sum = set1(0.0f);
  int8x16_t columns[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) columns[r] = load_columns(x[r]->codes);
  for_pieces(view, 0, view.n_pieces, [&](int64_t p, const uint8_t* codes, const auto& groups) __attribute__((always_inline)) {
    for (int64_t i = 0; i < view.SIZE; i += 64) {
      prefetch_far(codes + FAR_AHEAD + i);
      prefetch(codes + AHEAD + i);
    }
    prefetch(next_scales + p * view.UNIT_BYTES / view.UNIT_PIECES);
    const int64_t to_next = p + 1 < view.n_pieces;
    add_groups<F, 0>(codes, groups[0], x, p, to_next, columns, sums);
    if constexpr (Unpacked<F>::N_GROUPS == 2) add_groups<F, 1>(codes, groups[1], x, p, to_next, columns, sums);
  });
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) found[r] = sums[r];
}

// ---- five to eight rows ----

TAHR_INLINE void store_now(float* p, float32x4_t v) {
  asm volatile("str %q1, %0" : "=m"(*reinterpret_cast<float32x4_t*>(p)) : "w"(v));
}

template <int Half>
TAHR_INLINE float32x4_t half_of(const Floats& f) { return Half ? f.hi : f.lo; }

// Eight rows and a minimum leave no register for what is loaded ahead.
template <Format F, int Rows>
constexpr bool LOADS_AHEAD = Rows < 8 || !has_min(row_of(F).scales);

// Vectors [V, End) of the codes at p. Columns are loaded as soon as there is room for them, those of the next piece too.
template <Format F, int V, int End, int Rows>
TAHR_INLINE void dot_half(int32x4_t (&dots)[Rows], const uint8_t* p, const QuantBlock* const (&x)[Rows], int64_t to_next,
                          int8x16_t (&columns)[Rows]) {
  if constexpr (!LOADS_AHEAD<F, Rows> && V % 4 == 0) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++) columns[r] = load_columns(x[r]->codes + 4 * V);
  }
  const int8x16_t codes = vreinterpretq_s8_u8(code_vector<F, V>(p));
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
    dots[r] = vdotq_laneq_s32(dots[r], codes, columns[r], V % 4);
    if constexpr (LOADS_AHEAD<F, Rows> && V == 3) columns[r] = load_columns(x[r]->codes + 16);
    if constexpr (LOADS_AHEAD<F, Rows> && V == 7) columns[r] = load_columns(x[r][to_next].codes);
  }
  if constexpr (V + 1 < End) dot_half<F, V + 1, End>(dots, p, x, to_next, columns);
}

template <Format F, int Group, int Half, int Rows>
TAHR_INLINE void add_half_group(const uint8_t* codes, const ScaleMin& s, const QuantBlock* const (&x)[Rows], int64_t p,
                                int64_t to_next, int8x16_t (&columns)[Rows], float32x4_t (&sums)[Rows]) {
  constexpr int count = row_of(F).group / 4;
  const QuantBlock* blocks[Rows];
  int32x4_t dots[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
    blocks[r] = x[r] + p;
    dots[r] = vreinterpretq_s32_f32(load_again(DOT_BASES));
  }
  float32x4_t scale = half_of<Half>(s.scale), min = scale;
  if constexpr (has_min(row_of(F).scales)) min = half_of<Half>(s.min);
  alignas(16) float base[4];
  store_now(base, vmulq_f32(scale, vdupq_n_f32(-DOT_BASE)));
  // Now: what the rows wait for at the end is begun before their dot products.
  if constexpr (LOADS_AHEAD<F, Rows>) asm volatile("" : "+w"(scale));
  if constexpr (LOADS_AHEAD<F, Rows> && has_min(row_of(F).scales)) asm volatile("" : "+w"(min));
  dot_half<F, Group * count, (Group + 1) * count>(dots, codes + 16 * Half, blocks, to_next, columns);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
    const float32x4_t factors = vld1q_f32(&blocks[r]->scale);
    if constexpr (has_min(row_of(F).scales)) {
      float group[2];
      group_sums<F>(*blocks[r], group);
      sums[r] = vfmsq_f32(sums[r], min, vdupq_n_f32(group[Group]));
    }
    sums[r] = vfmaq_laneq_f32(sums[r], scaled<F>(dots[r], scale, load_again(base)), factors, 0);
  }
}

template <Format F, int Half, int Rows>
void half_rows(const PanelView<F>& view, const QuantBlock* const (&x)[Rows], float32x4_t (&found)[Rows]) {
  float32x4_t sums[Rows];  // of its own: those of the caller would be stored again and again
  const int64_t to_next_panel = view.n_bytes();
#pragma GCC unroll 8
  for (auto& sum : sums) sum = vdupq_n_f32(0.0f);
  int8x16_t columns[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) columns[r] = load_columns(x[r]->codes);
  for_pieces(view, 0, view.n_pieces, [&](int64_t p, const uint8_t* codes, const auto& groups) __attribute__((always_inline)) {
    for (int64_t i = 0; i < view.SIZE; i += 64) {
      if constexpr (Half == 0) prefetch_far(codes + to_next_panel + i);
      else prefetch(codes + to_next_panel + i);
    }
    if constexpr (Half == 1) prefetch(view.scales + to_next_panel + p * view.UNIT_BYTES / view.UNIT_PIECES);
    const int64_t to_next = p + 1 < view.n_pieces;
    add_half_group<F, 0, Half>(codes, groups[0], x, p, to_next, columns, sums);
    if constexpr (Unpacked<F>::N_GROUPS == 2) add_half_group<F, 1, Half>(codes, groups[1], x, p, to_next, columns, sums);
  });
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) found[r] = sums[r];
}

template <Format F, int Rows>
void halves_of_rows(const std::byte* panel, int64_t cols, const QuantBlock* const (&x)[Rows], Floats (&sums)[Rows]) {
  const PanelView<F> view(panel, cols);
  float32x4_t lo[Rows], hi[Rows];
  half_rows<F, 0>(view, x, lo);
  half_rows<F, 1>(view, x, hi);
  for (int r = 0; r < Rows; r++) sums[r] = {lo[r], hi[r]};
}

}  // namespace tahr::TAHR_ISA
