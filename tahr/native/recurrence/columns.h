// The columns of a head's matrix by vectors: several at once where there are as many, so that they share what a row is
// multiplied by, then one at a time. A column's sums have the same order either way.
#pragma once

#include "simd_tail.h"

namespace tahr::TAHR_ISA {

constexpr int COLUMN_VECTORS = 4;

// V vectors of columns; a single one may have fewer numbers than lanes.
template <int V>
struct Columns {
  int n;  // numbers of a single vector

  void load_all(const float* p, Floats (&out)[V]) const {
    for (int v = 0; v < V; v++) out[v] = V > 1 ? load(p + v * LANES) : load_some(p, n);
  }

  void store_all(float* p, const Floats (&x)[V]) const {
    for (int v = 0; v < V; v++) V > 1 ? store(p + v * LANES, x[v]) : store_some(p, x[v], n);
  }
};

// Calls `use(columns, col)` until all `dim` columns have had their turn.
template <class Use>
TAHR_INLINE void for_columns(int dim, Use use) {
  int col = 0;
  for (; col + COLUMN_VECTORS * LANES <= dim; col += COLUMN_VECTORS * LANES) use(Columns<COLUMN_VECTORS>{LANES}, col);
  for (; col < dim; col += LANES) use(Columns<1>{dim - col < LANES ? dim - col : LANES}, col);
}

}  // namespace tahr::TAHR_ISA
