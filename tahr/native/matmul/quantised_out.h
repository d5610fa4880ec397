// Ops whose rows mostly meet quantised matrices leave them as int8 too: that spares a pass over them and a barrier.
#pragma once

#include "matmul_ops.h"

namespace tahr::TAHR_ISA {

// Numbers [begin, end) of some rows, which are whole blocks, to their place among the quantised rows, if anybody wants
// those. `out` is null or points at their address, which is null until somebody asks for them.
static inline void quantise_part(std::byte* const* out, const float* rows, int64_t begin, int64_t end) {
  if (!out || !*out) return;
  const int32_t one = 1;
  const Worker alone{0, 1, nullptr, nullptr};
  quantise({rows + begin, *out + quantised_row_bytes(begin), end - begin, &one}, alone);
}

}  // namespace tahr::TAHR_ISA
