#include "dispatch.h"

#include "cpu_features.h"

namespace tahr {

namespace {

bool always() { return true; }

}  // namespace

const std::vector<Isa>& isas() {
  static const std::vector<Isa> table = {
#if defined(__x86_64__)
      {"amx", has_amx, &avx512vnni::row_kernels, &amx::matmul_kernels, &avx512vnni::sampling_kernels},
      {"avx512vnni", has_avx512vnni, &avx512vnni::row_kernels, &avx512vnni::matmul_kernels, &avx512vnni::sampling_kernels},
      {"avx2", has_avx2, &avx2::row_kernels, &avx2::matmul_kernels, &avx2::sampling_kernels},
#elif defined(__aarch64__)
      {"neon_i8mm", has_neon_i8mm, &neon_i8mm::row_kernels, &neon_i8mm::matmul_kernels, &neon_i8mm::sampling_kernels},
      {"neon_dotprod", has_neon_dotprod, &neon_dotprod::row_kernels, &neon_dotprod::matmul_kernels, &neon_dotprod::sampling_kernels},
#endif
#if defined(TAHR_AMX_MODEL) && !defined(__x86_64__)
      {"amx", always, &scalar::row_kernels, &amx::matmul_kernels, &scalar::sampling_kernels},
#endif
      {"scalar", always, &scalar::row_kernels, &scalar::matmul_kernels, &scalar::sampling_kernels},
  };
  return table;
}

}  // namespace tahr
