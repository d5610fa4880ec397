#include "cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace tahr {

namespace {

struct Feature {
  const char* name;
  bool found;
};

#if defined(__x86_64__)

#if defined(TAHR_AMX_MODEL)

bool has_tiles() { return true; }

#else

// Tile registers are saved by the system only for a process that has asked for them.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // of the Linux x86 user ABI; old headers lack them
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return false;
#endif
}

// Not by __builtin_cpu_supports: compilers differ in whether they know these names.
bool has_tiles() {
  constexpr unsigned TILE = 1u << 24, INT8 = 1u << 25;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & TILE) && (d & INT8) && may_use_tiles();
}

#endif

// __builtin_cpu_supports takes a literal, hence the macro; it also checks that the system saves the registers.
#define FEATURE(name) Feature{name, __builtin_cpu_supports(name) != 0}
std::vector<Feature> find() {
  __builtin_cpu_init();
  return {FEATURE("avx2"),     FEATURE("fma"),      FEATURE("f16c"),     FEATURE("avx512f"),
          FEATURE("avx512bw"), FEATURE("avx512dq"), FEATURE("avx512vl"), FEATURE("avx512vnni"),
          {"amx", has_tiles()}};
}
#undef FEATURE

#elif defined(__aarch64__) && defined(__linux__)

// Bit numbers of the Linux arm64 user ABI, spelled out because old headers lack the newer ones.
std::vector<Feature> find() {
  const unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
  return {{"asimdhp", (cap >> 10 & 1) != 0}, {"asimddp", (cap >> 20 & 1) != 0}, {"i8mm", (cap2 >> 13 & 1) != 0}};
}

#elif defined(__aarch64__) && defined(__APPLE__)

bool sysctl_flag(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}

std::vector<Feature> find() {
  return {{"asimdhp", sysctl_flag("hw.optional.arm.FEAT_FP16")},
          {"asimddp", sysctl_flag("hw.optional.arm.FEAT_DotProd")},
          {"i8mm", sysctl_flag("hw.optional.arm.FEAT_I8MM")}};
}

#else

std::vector<Feature> find() { return {}; }

#endif

bool has(const std::vector<std::string>& wanted) {
  const auto found = cpu_features();
  for (const auto& name : wanted) {
    bool seen = false;
    for (const auto& feature : found) seen |= feature == name;
    if (!seen) return false;
  }
  return true;
}

}  // namespace

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
  for (const auto& feature : find())
    if (feature.found) names.push_back(feature.name);
  return names;
}

bool has_avx2() { return has({"avx2", "fma", "f16c"}); }
bool has_avx512vnni() { return has_avx2() && has({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"}); }
bool has_amx() { return has_avx512vnni() && has({"amx"}); }
bool has_neon_dotprod() { return has({"asimdhp", "asimddp"}); }
bool has_neon_i8mm() { return has_neon_dotprod() && has({"i8mm"}); }

}  // namespace tahr
