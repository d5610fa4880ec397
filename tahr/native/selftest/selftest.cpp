// Checks every instruction set this machine has against the formats' definition, without Python:
// packed products against dequantised ones, rows alone against rows in a batch, one thread against several.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "dispatch.h"
#include "quants.h"
#include "selftest_pager.h"
#include "selftest_rows.h"
#include "threads.h"

using namespace tahr;

namespace {

int n_failed = 0;

void check(bool ok, const std::string& what) {
  if (ok) return;
  n_failed++;
  printf("FAIL %s\n", what.c_str());
}

std::mt19937 rng(7);
float gauss() { return std::normal_distribution<float>()(rng); }

std::vector<float> gauss_rows(int64_t n) {
  std::vector<float> x(n);
  for (auto& v : x) v = gauss();
  return x;
}

// Where a block keeps its 16-bit scales, so that random bytes can be given sane ones.
std::vector<int> scale_offsets(Format format) {
  switch (format) {
    case Format::F16: return {0};
    case Format::BF16: case Format::F32: case Format::MXFP4: return {};
    case Format::Q4_1: case Format::Q5_1: case Format::Q4_K: case Format::Q5_K: return {0, 2};
    case Format::Q2_K: return {80, 82};
    case Format::Q3_K: return {108};
    case Format::Q6_K: return {208};
    case Format::TQ1_0: return {52};
    case Format::TQ2_0: return {64};
    case Format::IQ1_M: return {};
    default: return {0};
  }
}

// Random codes with scales near 1/100.
std::vector<uint8_t> random_file(Format format, int64_t rows, int64_t cols) {
  std::vector<uint8_t> bytes(size_t(rows * file_row_bytes(format, cols)));
  for (auto& b : bytes) b = uint8_t(rng());
  const int64_t size = block_bytes(format);
  for (size_t at = 0; at < bytes.size(); at += size_t(size)) {
    const float value = gauss() / 100;
    const uint16_t bf16 = bf16_of_float(value);
    for (int offset : scale_offsets(format)) {
      const uint16_t f16 = f16_of_float(gauss() / 100);
      memcpy(&bytes[at + size_t(offset)], &f16, 2);
    }
    if (format == Format::F32) memcpy(&bytes[at], &value, 4);
    if (format == Format::BF16) memcpy(&bytes[at], &bf16, 2);
    if (format == Format::MXFP4) bytes[at] = uint8_t(118 + rng() % 4);
    if (format == Format::IQ1_M) bytes[at + 55] = uint8_t(0x20 | (bytes[at + 55] & 0x8f));  // the top of its f16 scale
  }
  return bytes;
}

template <class Op>
void run(Pool& pool, const Op& op, void (*f)(const Op&, Worker)) {
  pool.run([&](const Worker& worker) { f(op, worker); });
}

// What a test case needs on any instruction set.
struct Case {
  Format format;
  int64_t rows, cols;
  int32_t n;
  std::vector<uint8_t> file;
  std::vector<float> x, bias;

  std::string name() const {
    return std::string(format_name(format)) + " " + std::to_string(rows) + "x" + std::to_string(cols) + " n=" + std::to_string(n);
  }
};

Case make_case(Format format, int64_t rows, int64_t cols, int32_t n) {
  return {format, rows, cols, n, random_file(format, rows, cols), gauss_rows(n * cols), gauss_rows(rows)};
}

std::vector<float> dense_rows(const Case& c, const MatmulKernels& k, Pool& pool) {
  std::vector<int32_t> ids(c.rows);
  for (int32_t i = 0; i < int32_t(c.rows); i++) ids[size_t(i)] = i;
  std::vector<float> out(size_t(c.rows * c.cols));
  const int32_t n = int32_t(c.rows);
  run(pool, EmbedOp{c.format, reinterpret_cast<const std::byte*>(c.file.data()), c.rows, c.cols, ids.data(), out.data(), 1, &n}, k.embed);
  return out;
}

std::vector<std::byte> quantised(const Case& c, const float* x, int32_t n, const MatmulKernels& k, Pool& pool) {
  if (is_dense(c.format)) return {};
  std::vector<std::byte> out(size_t(n * quantised_row_bytes(c.cols)));
  run(pool, QuantiseOp{x, out.data(), c.cols, &n}, k.quantise);
  return out;
}

PackedMatrix packed(const Case& c, const MatmulKernels& k, Pool& pool, int64_t n_stack = 1) {
  return pack(c.format, k.layout, n_stack, c.rows / n_stack, c.cols, reinterpret_cast<const std::byte*>(c.file.data()), &pool);
}

std::vector<float> product(const Case& c, const PackedMatrix& m, const float* x, int32_t n, const MatmulKernels& k, Pool& pool) {
  std::vector<float> out(size_t(n * c.rows), NAN);
  const auto q = quantised(c, x, n, k, pool);
  run(pool, LinearOp{{{&m, out.data(), c.bias.data()}}, 1, x, q.data(), &n}, k.linear);
  return out;
}

// The definition, in double: activations as they were rounded, weights as the format says.
void check_product(const Case& c, const MatmulKernels& k, Pool& pool, const std::vector<float>& got, const std::string& isa) {
  const auto w = dense_rows(c, k, pool);
  const auto q = quantised(c, c.x.data(), c.n, k, pool);
  const auto* blocks = reinterpret_cast<const QuantBlock*>(q.data());
  for (int64_t t = 0; t < c.n; t++)
    for (int64_t r = 0; r < c.rows; r++) {
      double want = c.bias[size_t(r)], size = std::fabs(want);
      for (int64_t i = 0; i < c.cols; i++) {
        const int64_t at = t * c.cols + i;
        const double x = is_dense(c.format) ? c.x[size_t(at)] : double(blocks[at / 32].scale) * blocks[at / 32].codes[at % 32];
        want += x * w[size_t(r * c.cols + i)];
        size += std::fabs(x * w[size_t(r * c.cols + i)]);
      }
      if (!(std::fabs(got[size_t(t * c.rows + r)] - want) <= 2e-6 * size))
        return check(false, isa + " " + c.name() + ": row " + std::to_string(t) + " output " + std::to_string(r));
    }
}

void check_alone(const Case& c, const PackedMatrix& m, const MatmulKernels& k, Pool& pool, const std::vector<float>& got, const std::string& isa) {
  for (int64_t t = 0; t < c.n; t++) {
    const auto alone = product(c, m, c.x.data() + t * c.cols, 1, k, pool);
    check(!memcmp(alone.data(), &got[size_t(t * c.rows)], size_t(c.rows) * 4), isa + " " + c.name() + ": a row differs when alone");
  }
}

void check_linear(const Isa& isa, const Case& c, Pool& one, Pool& many) {
  const MatmulKernels& k = *isa.matmul;
  const PackedMatrix m = packed(c, k, many);
  const auto got = product(c, m, c.x.data(), c.n, k, one);
  check_product(c, k, one, got, isa.name);
  check_alone(c, m, k, one, got, isa.name);
  const auto threaded = product(c, m, c.x.data(), c.n, k, many);
  check(!memcmp(got.data(), threaded.data(), got.size() * 4), isa.name + (" " + c.name()) + ": threads change the result");
}

// Embedding and quantising are exact, so every instruction set must agree to the bit.
void check_exact(const Isa& isa, const Case& c, Pool& one, Pool& many) {
  const MatmulKernels &k = *isa.matmul, &scalar = *isas().back().matmul;
  check(dense_rows(c, k, many) == dense_rows(c, scalar, one), isa.name + (" " + c.name()) + ": embedding differs from scalar");
  check(quantised(c, c.x.data(), c.n, k, many) == quantised(c, c.x.data(), c.n, scalar, one), isa.name + (" " + c.name()) + ": quantising differs from scalar");
}

// A stack of four matrices; each row meets two of them and must get what it gets from each alone.
void check_experts(const Isa& isa, Format format, Pool& pool) {
  const int n_experts = 4, n_active = 2;
  const int64_t rows = 19;
  const MatmulKernels& k = *isa.matmul;
  Case c = make_case(format, rows * n_experts, 256, 80);  // enough for experts to meet blocks of rows, and some rest
  const PackedMatrix stack = packed(c, k, pool, n_experts);
  std::vector<int32_t> chosen, starts(n_experts + 1), order(size_t(c.n * n_active));
  for (int i = 0; i < c.n; i++) {
    chosen.push_back(int32_t(rng() % 3));  // the last expert gets nobody, or the second place
    chosen.push_back(int32_t((chosen.back() + 1) % n_experts));
  }
  run(pool, GroupOp{chosen.data(), starts.data(), order.data(), n_experts, n_active, &c.n}, k.group);
  std::vector<float> out(size_t(c.n * n_active * rows), NAN);
  const auto q = quantised(c, c.x.data(), c.n, k, pool);
  const ExpertsOp op{{{&stack, out.data(), nullptr}}, 1, c.x.data(), q.data(), starts.data(), order.data(), n_experts, n_active};
  run(pool, op, k.experts);
  c.bias.assign(c.bias.size(), 0);
  for (int p = 0; p < c.n * n_active; p++) {
    Case e = c;
    e.rows = rows;
    const auto size = int64_t(c.file.size()) / n_experts;
    e.file.assign(c.file.begin() + chosen[size_t(p)] * size, c.file.begin() + (chosen[size_t(p)] + 1) * size);
    const PackedMatrix m = packed(e, k, pool);
    const auto want = product(e, m, c.x.data() + p / n_active * c.cols, 1, k, pool);
    for (int64_t r = 0; r < rows; r++)
      check(out[size_t(p * rows + r)] == want[size_t(r)], isa.name + std::string(" experts ") + format_name(format));
  }
}

// Extreme codes and activations: sums must not overflow on the way.
void check_extremes(const Isa& isa, Format format, Pool& pool) {
  for (uint8_t fill : {0x00, 0x7f, 0x80, 0xff}) {
    Case c = make_case(format, 17, 512, 2);
    const auto random = c.file;
    const int64_t size = block_bytes(format);
    c.file.assign(c.file.size(), fill);
    for (size_t at = 0; at < c.file.size(); at += size_t(size)) {
      for (int offset : scale_offsets(format)) memcpy(&c.file[at + size_t(offset)], &random[at + size_t(offset)], 2);
      if (format == Format::MXFP4) c.file[at] = random[at];
      if (format == Format::IQ1_M) c.file[at + 55] = random[at + 55];
    }
    for (size_t i = 0; i < c.x.size(); i++) c.x[i] = i % 512 < 256 ? 3.0f : -3.0f;
    const PackedMatrix m = packed(c, *isa.matmul, pool);
    check_product(c, *isa.matmul, pool, product(c, m, c.x.data(), c.n, *isa.matmul, pool), isa.name + std::string(" extremes"));
  }
}

void check_format(const Isa& isa, Format format, Pool& one, Pool& many) {
  for (int64_t rows : {1, 7, 8, 17, 33})
    for (int32_t n : {1, 2, 3, 4, 6, 7, 8, 9}) check_linear(isa, make_case(format, rows, is_dense(format) ? 97 : 256 * (1 + n % 2), n), one, many);
  if (block_cols(format) == 32)
    for (int64_t cols : {32, 96, 288})
      for (int32_t n : {13, 50}) check_linear(isa, make_case(format, 40, cols, n), one, many);  // 50: three tiles of rows, and some rest
  check_linear(isa, make_case(format, 200, 512, 70), one, many);
  if (is_dense(format)) check_linear(isa, make_case(format, 75, 1103, 77), one, many);  // rests of rows, panels and columns
  check_exact(isa, make_case(format, 5, 512, 3), one, many);
  check_experts(isa, format, many);
  if (!is_dense(format)) check_extremes(isa, format, many);
}

}  // namespace

int main(int argc, char** argv) {
  Pool one(1), many(3);
  int n_run = 0;
  for (const Isa& isa : isas()) {
    if ((argc > 1 && strcmp(argv[1], isa.name) != 0) || !isa.available()) continue;
    const int before = n_failed;
    for (int f = 0; f < N_FORMATS; f++) check_format(isa, Format(f), one, many);
    n_failed += check_rows(isa, many);
    n_failed += check_pager(isa, many);
    printf("%s %s: ops on rows, matrices in slots, %d formats\n", n_failed == before ? "PASS" : "FAIL", isa.name, N_FORMATS);
    n_run++;
  }
  if (!n_run) printf("FAIL no such instruction set here: %s\n", argc > 1 ? argv[1] : "any");
  return n_failed || !n_run ? EXIT_FAILURE : EXIT_SUCCESS;
}
