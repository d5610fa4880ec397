#pragma once

#include <cmath>

namespace tahr {

static inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

}  // namespace tahr
