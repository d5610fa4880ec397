// What the machine could do at best, for benchmarks: kernels are read as shares of these.
#include "matmul_ops.h"
#include "simd.h"

namespace tahr::TAHR_ISA {

namespace {

// Streams this thread's share of the bytes through the registers.
void read_bytes(const RoofOp& op, Worker worker) {
  constexpr int64_t size = 4 * LANES, step = 4 * size;
  const Range steps = share(op.n_bytes / step, worker);
  Codes seen[4] = {};
  for (int64_t i = steps.begin; i < steps.end; i++)
    for (int64_t j = 0; j < 4; j++)
      seen[j] = either(seen[j], load_codes(reinterpret_cast<const uint8_t*>(op.data) + i * step + j * size));
  memcpy(worker.scratch, seen, sizeof seen);
}

constexpr int INT_PANELS = LANES == 16 ? 3 : 1;          // or loading the rows would take longer than multiplying
constexpr int INT_ROWS = 4;                             // with the panels as many sums as hide the latency and fit the registers
constexpr int INT_STEP = OCTETS ? DOT_ROWS : INT_ROWS;  // smmla takes no more

// 32 columns of some panels times INT_ROWS rows, all in registers or in the nearest cache.
void multiply_ints(const RoofOp& op, Worker worker) {
  const auto* x = reinterpret_cast<const int8_t*>(op.data);
  Codes w[INT_PANELS][8];
  const Codes* panels[INT_PANELS];
  for (int p = 0; p < INT_PANELS; p++) {
    const auto* from = reinterpret_cast<const uint8_t*>(op.data) + p * 32;
    for (int v = 0; v < 8; v++) w[p][v] = field<0, 15>(load_codes(from + v * 4 * LANES));
    panels[p] = w[p];
  }
  Ints sums[INT_ROWS / INT_STEP][INT_PANELS][INT_STEP];
  for (auto& some : sums)
    for (auto& panel : some)
      for (auto& lanes : panel) lanes = set1(0);
  for (int64_t i = 0; i < op.n_repeats; i++, x = reinterpret_cast<const int8_t*>(op.data) + i % 16 * 32)
#pragma GCC unroll 8
    for (int r = 0; r < INT_ROWS; r += INT_STEP) {
      const int8_t* rows[INT_STEP];
      for (int j = 0; j < INT_STEP; j++) rows[j] = x + (r + j) * 32;
      dot_panels<0, 8, 15>(sums[r / INT_STEP], panels, rows);
    }
  memcpy(worker.scratch, sums, sizeof sums);
}

constexpr int FMA_CHAINS = 10;  // latency times throughput of the processors we know

void multiply_floats(const RoofOp& op, Worker worker) {
  Floats sums[FMA_CHAINS];
  // Not from `data`: as floats its bytes are so small that products are subnormal, which some processors multiply slowly.
  const Floats x = set1(float(op.n_repeats)), w = set1(1.0f / float(op.n_repeats));
#pragma GCC unroll 10
  for (int i = 0; i < FMA_CHAINS; i++) sums[i] = set1(float(i));  // chains alike would be one to the compiler
  for (int64_t i = 0; i < op.n_repeats; i++)
#pragma GCC unroll 10
    for (auto& lanes : sums) lanes = fma(x, w, lanes);
  Floats all = sums[0];  // not the array, or every round would store it
#pragma GCC unroll 10
  for (int i = 1; i < FMA_CHAINS; i++) all = add(all, sums[i]);
  memcpy(worker.scratch, &all, sizeof all);
}

}  // namespace

void roof(const RoofOp& op, Worker worker) {
  constexpr void (*kinds[])(const RoofOp&, Worker) = {read_bytes, multiply_ints, multiply_floats};
  kinds[int(op.kind)](op, worker);
}

int64_t roof_work(Roof kind) {
  constexpr int64_t ints = int64_t{32} * LANES * INT_PANELS * INT_ROWS, floats = int64_t{LANES} * FMA_CHAINS;
  return kind == Roof::INTS ? 2 * ints : kind == Roof::FLOATS ? 2 * floats : 0;
}

}  // namespace tahr::TAHR_ISA
