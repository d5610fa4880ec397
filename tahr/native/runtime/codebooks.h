// The codewords of IQ1, IQ2 and IQ3: rows of eight or four values, the first in the lowest byte.
#pragma once

#include <cstdint>

namespace tahr {

struct alignas(64) Codebooks {
  uint64_t iq1[4096];  // in eighths: the codewords moved up by one of them, then the same moved down
  uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024];  // without signs, as those of IQ3
  uint32_t iq3_xxs[256], iq3_s[512];
};

extern const Codebooks CODEBOOKS;

}  // namespace tahr
