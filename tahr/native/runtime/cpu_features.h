// What this processor can do.
#pragma once

#include <string>
#include <vector>

namespace tahr {

bool has_avx2();          // with fma and f16c
bool has_avx512vnni();    // with avx512 f, bw, dq, vl
bool has_amx();           // tiles of int8, with avx512vnni
bool has_neon_dotprod();  // with fp16 arithmetic
bool has_neon_i8mm();

// The names of the features found, out of those any kernel looks for.
std::vector<std::string> cpu_features();

}  // namespace tahr
