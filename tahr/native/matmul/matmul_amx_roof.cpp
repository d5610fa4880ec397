// The roof of tile instructions; that of everything else is that of the vectors beside them.
#include "amx_tiles.h"
#include "matmul_ops.h"

namespace tahr::TAHR_ISA {

namespace {

#if defined(__x86_64__)
const MatmulKernels& vectors = avx512vnni::matmul_kernels;
#else
const MatmulKernels& vectors = scalar::matmul_kernels;
#endif

constexpr int CHAINS = 4;  // products under way at once

// Full tiles, 16 x 64 by 64 x 16, from registers: twice the columns that formats with a scale per 32 can use.
void multiply_tiles(const RoofOp& op) {
  tiles::Shape shape;
  for (int t = 0; t < CHAINS + 2; t++) shape.set(t, tiles::MAX_ROWS, tiles::ROW_BYTES);
  tiles::configure(shape);
  tiles::load<4>(op.data, 0);
  tiles::load<5>(op.data, 0);
  tiles::zero<0>(), tiles::zero<1>(), tiles::zero<2>(), tiles::zero<3>();
  for (int64_t i = 0; i < op.n_repeats; i++)
    tiles::dot<0, 4, 5>(), tiles::dot<1, 4, 5>(), tiles::dot<2, 4, 5>(), tiles::dot<3, 4, 5>();
  tiles::release();
}

}  // namespace

void roof(const RoofOp& op, Worker worker) {
  if (op.kind == Roof::INTS) return multiply_tiles(op);
  vectors.roof(op, worker);
}

int64_t roof_work(Roof kind) {
  constexpr int64_t ints = int64_t{CHAINS} * 16 * 16 * 64;
  return kind == Roof::INTS ? 2 * ints : vectors.roof_work(kind);
}

}  // namespace tahr::TAHR_ISA
