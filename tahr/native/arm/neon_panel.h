// Panels as the kernels of Arm go through them: piece after piece of 32 columns, each with its scales.
#pragma once

#include "neon_dot.h"

namespace tahr::TAHR_ISA {

// Where the codes and scales of a panel lie.
template <Format F>
struct PanelView {
  static constexpr int64_t SIZE = piece_bytes(F, LANES);
  static constexpr int64_t UNIT_PIECES = scale_cols(row_of(F).scales) / 32;
  static constexpr int64_t UNIT_BYTES = scale_bytes(F, LANES);
  const uint8_t *codes, *scales;
  int64_t n_pieces;

  PanelView(const std::byte* panel, int64_t cols)
      : codes(reinterpret_cast<const uint8_t*>(panel)), scales(codes + cols / 32 * SIZE), n_pieces(cols / 32) {}

  // Where the next panel begins.
  int64_t n_bytes() const { return scales - codes + n_pieces * UNIT_BYTES / UNIT_PIECES; }
};

// Calls `use(p, codes, groups)` for the pieces [begin, end) of a panel; begin is a multiple of UNIT_PIECES.
template <Format F, class Use>
TAHR_INLINE void for_pieces(const PanelView<F>& panel, int64_t begin, int64_t end, Use use) {
  for (int64_t p = begin; p < end;) {
    const uint8_t* unit = panel.scales + p / panel.UNIT_PIECES * panel.UNIT_BYTES;
    const UnitScales<F> u = read_unit<F>(unit);
    for (int64_t i = 0; i < panel.UNIT_PIECES; i++, p++) {
      ScaleMin groups[Unpacked<F>::N_GROUPS];
      piece_scales<F>(u, unit, i, groups);
      use(p, panel.codes + p * panel.SIZE, groups);
    }
  }
}

// What a dot product that carries DOT_BASE begins with when it is scaled. MXFP4's scales may be too large for it.
template <Format F>
constexpr bool SUBTRACT_FIRST = row_of(F).scales == Scales::BRAIN;

template <Format F>
TAHR_INLINE float32x4_t scaled(int32x4_t dots, float32x4_t scale, float32x4_t minus_base) {
  const float32x4_t based = vreinterpretq_f32_s32(dots);
  if constexpr (SUBTRACT_FIRST<F>) return vmulq_f32(vsubq_f32(based, vdupq_n_f32(DOT_BASE)), scale);
  return vfmaq_f32(minus_base, based, scale);
}

TAHR_INLINE Floats minus_base(Floats scale) { return mul(scale, set1(-DOT_BASE)); }

// The sums of the codes per group of columns, times the scale.
template <Format F>
TAHR_INLINE void group_sums(const QuantBlock& x, float (&sums)[2]) {
  if constexpr (row_of(F).group == 32) {
    sums[0] = sums[1] = x.scaled_sum;
  } else {
    sums[0] = x.scale * float(-x.minus_half);
    sums[1] = x.scale * float(x.minus_half - x.minus_sum);
  }
}

}  // namespace tahr::TAHR_ISA
