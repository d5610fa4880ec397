// The one place that chooses which compiled kernels run on this processor.
#pragma once

#include <vector>

#include "kernels.h"
#include "matmul.h"
#include "sampling.h"

namespace tahr {

struct Isa {
  const char* name;
  bool (*available)();
  const RowKernels* rows;
  const MatmulKernels* matmul;
  const SamplingKernels* sampling;
};

// All that were compiled in, the fastest first; the last, "scalar", is always available.
const std::vector<Isa>& isas();

}  // namespace tahr
