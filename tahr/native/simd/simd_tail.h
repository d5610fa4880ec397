// Vectors of fewer numbers than lanes, for numbers of any stored type that has a `load` and a `store`.
#pragma once

#include "simd.h"

namespace tahr::TAHR_ISA {

// The first n (<= LANES) numbers at p, the rest zero.
template <class T>
TAHR_INLINE Floats load_some(const T* p, int n) {
  if (n == LANES) return load(p);
  T lanes[LANES] = {};
  memcpy(lanes, p, size_t(n) * sizeof(T));
  return load(lanes);
}

template <class T>
TAHR_INLINE void store_some(T* p, Floats v, int n) {
  if (n == LANES) return store(p, v);
  T lanes[LANES];
  store(lanes, v);
  memcpy(p, lanes, size_t(n) * sizeof(T));
}

}  // namespace tahr::TAHR_ISA
