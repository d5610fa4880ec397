// exp and its relatives on vectors, within about two units in the last place.
#pragma once

#include "simd.h"

namespace tahr::TAHR_ISA {

// exp(x) = power * (1 + rest), with power a power of two and |rest| < 0.42.
struct Exponential {
  Floats power, rest;
};

TAHR_INLINE Exponential split_exp(Floats x) {
  x = max(set1(-87.3f), min(set1(88.3f), x));  // in this order NaN stays NaN
  const Whole n = to_whole(mul(x, set1(1.44269504f)));
  // ln 2 in two parts: the first has few bits, so its product with n is exact.
  Floats r = fnma(n.floats, set1(0.693359375f), x);
  r = fma(n.floats, set1(2.12194440e-4f), r);
  // (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2, fitted at Chebyshev nodes.
  Floats p = set1(0.00139336882f);
  p = fma(p, r, set1(0.00836320501f));
  p = fma(p, r, set1(0.0416664630f));
  p = fma(p, r, set1(0.166665763f));
  p = fma(p, r, set1(0.5f));
  return {as_floats(shift_left<23>(add(n.ints, set1(127)))), fma(mul(r, r), p, r)};
}

// Never quite zero: what lies below -87.3 gives 1e-38.
TAHR_INLINE Floats exp(Floats x) {
  const Exponential e = split_exp(x);
  return fma(e.power, e.rest, e.power);
}

TAHR_INLINE Floats sigmoid(Floats x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(set1(0.0f), x)))); }

// By way of exp(2x) - 1, which keeps its precision near zero.
TAHR_INLINE Floats tanh(Floats x) {
  const Floats twice = max(set1(-20.0f), min(set1(20.0f), add(x, x)));
  const Exponential e = split_exp(twice);
  const Floats less_one = fma(e.power, e.rest, sub(e.power, set1(1.0f)));
  return div(less_one, add(less_one, set1(2.0f)));
}

// erfc(x / sqrt(2)) for x >= 0 as t * exp(p(t) - x^2 / 2) with t = 1 / (1 + x / sqrt(8)): p is smooth, fitted at
// Chebyshev nodes.
TAHR_INLINE Floats erfc_over_sqrt2(Floats x) {
  const Floats t = div(set1(1.0f), fma(x, set1(0.353553391f), set1(1.0f)));
  Floats p = set1(0.0856283754f);
  p = fma(p, t, set1(-0.589286625f));
  p = fma(p, t, set1(1.54556024f));
  p = fma(p, t, set1(-1.86218226f));
  p = fma(p, t, set1(0.907374442f));
  p = fma(p, t, set1(-0.259143591f));
  p = fma(p, t, set1(0.444995254f));
  p = fma(p, t, set1(0.992203116f));
  p = fma(p, t, set1(-1.26514912f));
  return mul(t, exp(fnma(mul(x, set1(0.5f)), x, p)));
}

}  // namespace tahr::TAHR_ISA
