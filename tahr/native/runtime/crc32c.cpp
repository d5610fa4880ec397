#include "crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace tahr {

namespace {

constexpr uint32_t POLYNOMIAL = 0x82F63B78;  // reversed
constexpr int WORD = 8;

// Row k holds the sums of each byte with k zeros behind it, so that a word is eight lookups without a wait in between.
constexpr std::array<std::array<uint32_t, 256>, WORD> make_tables() {
  std::array<std::array<uint32_t, 256>, WORD> tables{};
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; bit++) sum = (sum >> 1) ^ (sum & 1 ? POLYNOMIAL : 0);
    tables[0][byte] = sum;
  }
  for (int row = 1; row < WORD; row++)
    for (int byte = 0; byte < 256; byte++)
      tables[row][byte] = (tables[row - 1][byte] >> 8) ^ tables[0][tables[row - 1][byte] & 0xFF];
  return tables;
}

constexpr auto TABLES = make_tables();

uint64_t word_at(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, WORD);
  return word;
}

struct ByTable {
  static uint32_t word(uint32_t sum, uint64_t word) {
    word ^= sum;
    sum = 0;
    for (int i = 0; i < WORD; i++) sum ^= TABLES[WORD - 1 - i][word >> (8 * i) & 0xFF];
    return sum;
  }
  static uint32_t byte(uint32_t sum, uint8_t byte) { return (sum >> 8) ^ TABLES[0][(sum ^ byte) & 0xFF]; }
};

template <class Step>
uint32_t sum_of(uint32_t sum, const std::byte* data, int64_t n_bytes) {
  const std::byte* end = data + n_bytes;
  for (; end - data >= WORD; data += WORD) sum = Step::word(sum, word_at(data));
  for (; data < end; data++) sum = Step::byte(sum, static_cast<uint8_t>(*data));
  return sum;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2,crc32"))) uint32_t by_instruction(uint32_t sum, const std::byte* data, int64_t n_bytes) {
  const std::byte* end = data + n_bytes;
  uint64_t wide = sum;
  for (; end - data >= WORD; data += WORD) wide = _mm_crc32_u64(wide, word_at(data));
  sum = static_cast<uint32_t>(wide);
  for (; data < end; data++) sum = _mm_crc32_u8(sum, static_cast<uint8_t>(*data));
  return sum;
}

bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }

#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)

struct ByInstruction {
  static uint32_t word(uint32_t sum, uint64_t word) { return __crc32cd(sum, word); }
  static uint32_t byte(uint32_t sum, uint8_t byte) { return __crc32cb(sum, byte); }
};

uint32_t by_instruction(uint32_t sum, const std::byte* data, int64_t n_bytes) {
  return sum_of<ByInstruction>(sum, data, n_bytes);
}

bool has_instruction() { return true; }

#else

uint32_t by_instruction(uint32_t sum, const std::byte* data, int64_t n_bytes) {
  return sum_of<ByTable>(sum, data, n_bytes);
}

bool has_instruction() { return false; }

#endif

}  // namespace

uint32_t crc32c_by_table(uint32_t before, const std::byte* data, int64_t n_bytes) {
  return ~sum_of<ByTable>(~before, data, n_bytes);
}

uint32_t crc32c(uint32_t before, const std::byte* data, int64_t n_bytes) {
  static const bool FAST = has_instruction();
  return FAST ? ~by_instruction(~before, data, n_bytes) : crc32c_by_table(before, data, n_bytes);
}

}  // namespace tahr
