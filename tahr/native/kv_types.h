// Keys and values as they are stored. `load` and `store` turn LANES of them into f32 and back.
#pragma once

#include "place.h"
#include "simd.h"

namespace tahr::TAHR_ISA {

struct F16 {
  uint16_t bits;
};

struct BF16 {
  uint16_t bits;
};

TAHR_INLINE Floats load(const F16* p) { return load_f16(&p->bits); }
TAHR_INLINE Floats load(const BF16* p) { return load_bf16(&p->bits); }
TAHR_INLINE void store(F16* p, Floats v) { store_f16(&p->bits, v); }
TAHR_INLINE void store(BF16* p, Floats v) { store_bf16(&p->bits, v); }

// The first n (< LANES) at p, the rest zero.
template <class T>
TAHR_INLINE Floats load_few(const T* p, int n) {
  T lanes[LANES] = {};
  memcpy(lanes, p, size_t(n) * sizeof(T));
  return load(lanes);
}

// out[i] = x[i] for n numbers, in either direction.
template <class To, class From>
TAHR_INLINE void convert(To* out, const From* x, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(out + i, load(x + i));
  if (i == n) return;
  To lanes[LANES];
  store(lanes, load_few(x + i, int(n - i)));
  memcpy(out + i, lanes, size_t(n - i) * sizeof(To));
}

// Calls `f` with a number of the stored type, for the sake of its type.
template <class Function>
TAHR_INLINE void with_type(KvType type, Function f) {
  switch (type) {
    case KvType::f32: return f(float{});
    case KvType::f16: return f(F16{});
    case KvType::bf16: return f(BF16{});
  }
}

}  // namespace tahr::TAHR_ISA
