#include "selftest_pager.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "pager.h"
#include "tape.h"

namespace tahr {

namespace {

constexpr int64_t ROWS = 250, COLS = 512, N_ROWS = 30;
constexpr int N_MATRICES = 6, N_AHEAD = 2;
constexpr Format FORMAT = Format::Q8_0;

// The rows of all matrices, as a file has them, and what reading it is like.
struct FakeFile {
  std::vector<std::byte> bytes;
  std::atomic<int> error{0};  // -1: the file ends
  std::atomic<bool> hangs{false};
  std::atomic<int> n_hanging{0};
};

int64_t matrix_bytes() { return ROWS * file_row_bytes(FORMAT, COLS); }

void fill(FakeFile& file) {
  std::mt19937 rng(3);
  file.bytes.resize(size_t(N_MATRICES * matrix_bytes()));
  for (size_t i = 0; i < file.bytes.size(); i++) file.bytes[i] = std::byte(rng());
  for (size_t at = 0; at < file.bytes.size(); at += size_t(block_bytes(FORMAT))) {
    const uint16_t scale = uint16_t(0x2000 + rng() % 1024);  // a small f16
    memcpy(&file.bytes[at], &scale, 2);
  }
}

int64_t read_fake(FakeFile& file, std::byte* to, int64_t n_bytes, int64_t offset) {
  file.n_hanging++;
  while (file.hangs) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  file.n_hanging--;
  if (file.error) return file.error < 0 ? 0 : -file.error;
  const int64_t n = n_bytes < 1000 ? n_bytes : n_bytes - 500;  // systems may give less than was asked for
  memcpy(to, &file.bytes[size_t(offset)], size_t(n));
  return n;
}

// Every matrix in turn times the same rows.
struct Steps {
  const Isa& isa;
  Pool& pool;
  std::vector<std::byte> x;
  int32_t n_rows = N_ROWS;

  Steps(const Isa& isa, Pool& pool) : isa(isa), pool(pool), x(size_t(N_ROWS * quantised_row_bytes(COLS))) {
    std::vector<float> rows(N_ROWS * COLS);
    for (size_t i = 0; i < rows.size(); i++) rows[i] = float(int(i * 37 % 101) - 50) / 50;
    Tape tape;
    tape.add(QuantiseOp{rows.data(), x.data(), COLS, &n_rows}, isa.matmul->quantise);
    tape.run(pool);
  }

  LinearOp linear(const PackedMatrix& matrix, std::vector<float>& out) const {
    LinearOp op{};
    out.assign(size_t(N_ROWS * ROWS), -1.0f);
    op.jobs[0] = {&matrix, out.data(), nullptr};
    op.n_jobs = 1;
    op.quantised = x.data();
    op.n_rows = &n_rows;
    return op;
  }
};

using Outs = std::vector<std::vector<float>>;

Outs resident(const Steps& steps, const FakeFile& file) {
  Outs outs(N_MATRICES);
  for (int i = 0; i < N_MATRICES; i++) {
    const PackedMatrix matrix = pack(FORMAT, steps.isa.matmul->layout, 1, ROWS, COLS, &file.bytes[size_t(i * matrix_bytes())], nullptr);
    Tape tape;
    tape.add(steps.linear(matrix, outs[size_t(i)]), steps.isa.matmul->linear);
    tape.run(steps.pool);
  }
  return outs;
}

struct Paged {
  Pager pager;
  std::vector<PackedMatrix> matrices;
  std::vector<int64_t> pieces;

  Paged(const Isa& isa, FakeFile& file, SlotPolicy policy, int64_t slot_bytes, int64_t n_slots, double stall_s)
      : pager({policy, slot_bytes, n_slots, 3, N_AHEAD, stall_s}) {
    const int number = pager.loader().add_source([&file](std::byte* to, int64_t n, int64_t at) { return read_fake(file, to, n, at); }, "fake");
    for (int i = 0; i < N_MATRICES; i++) {
      PackedMatrix matrix = shape_packed(FORMAT, isa.matmul->layout, 1, ROWS, COLS);
      pieces.push_back(pager.add(matrix, isa.matmul->layout, {{number, i * matrix_bytes()}}));
      matrices.push_back(matrix);
    }
  }

  Outs step(const Steps& steps) {
    Outs outs(N_MATRICES);
    Tape tape;
    for (size_t i = 0; i < N_MATRICES; i++) {
      const AwaitOp op{&pager, {{pieces[i], 1, nullptr}}, {}};
      tape.add(op, await_pieces);
      tape.add(steps.linear(matrices[i], outs[i]), steps.isa.matmul->linear);
      tape.add(op, release_pieces);
    }
    tape.run(steps.pool);
    return outs;
  }
};

int64_t slots_of_one(const Isa& isa, int64_t slot_bytes) {
  const PackedMatrix shape = shape_packed(FORMAT, isa.matmul->layout, 1, ROWS, COLS);
  const int64_t each = slot_bytes / shape.panel_bytes;
  return (shape.n_panels + each - 1) / each;
}

// Pieces are given up for one that can have their place, not for one that cannot.
bool keeps_what_is_in_vain(const Isa& isa, FakeFile& file, int64_t slot_bytes, int64_t n_each) {
  Paged paged(isa, file, SlotPolicy::USAGE, slot_bytes, 2 * n_each, 10);
  const int number = paged.pager.loader().add_source([&file](std::byte* to, int64_t n, int64_t at) { return read_fake(file, to, n, at); }, "fake");
  PackedMatrix large = shape_packed(FORMAT, isa.matmul->layout, 1, 2 * ROWS, COLS);
  const int64_t piece = paged.pager.add(large, isa.matmul->layout, {{number, 0}});
  const std::vector<PieceRange> first{{paged.pieces[0], 1, nullptr}}, second{{paged.pieces[1], 1, nullptr}};
  bool ok = paged.pager.await(first) && paged.pager.await(second);
  paged.pager.release(second);
  paged.pager.expect({{piece, 1, nullptr}});  // the first one stays, and the place of the second is too small
  ok = ok && paged.pager.counts().n_evictions == 0;
  paged.pager.release(first);
  paged.pager.expect({{piece, 1, nullptr}});
  return ok && paged.pager.counts().n_evictions == 2;
}

}  // namespace

int check_pager(const Isa& isa, Pool& pool) {
  int n_failed = 0;
  const auto check = [&](bool ok, const char* what) {
    if (!ok) printf("FAIL %s %s\n", isa.name, what);
    n_failed += !ok;
  };
  FakeFile file;
  fill(file);
  const Steps steps(isa, pool);
  const Outs want = resident(steps, file);
  constexpr int64_t SLOT_BYTES = 32768;
  const int64_t each = slots_of_one(isa, SLOT_BYTES);
  for (auto policy : {SlotPolicy::CYCLE, SlotPolicy::USAGE})
    for (int n_matrices : {1, 2, 5, N_MATRICES}) {
      Paged paged(isa, file, policy, SLOT_BYTES, each * n_matrices, 10);
      for (int i = 0; i < 4; i++) check(paged.step(steps) == want, "a step of paged matrices");
      const PagerCounts counts = paged.pager.counts();
      check(paged.pager.take_failure().kind == ReadError::NONE, "a step without failure");
      check((counts.n_evictions == 0) == (n_matrices == N_MATRICES), "what fits stays");
      // Those that pass need a place, and those that are read ahead, for the step after the last too; the others stay.
      const int n_stay = n_matrices == N_MATRICES ? n_matrices : std::max(0, n_matrices - 1 - N_AHEAD);
      const int64_t most = (4 * (N_MATRICES - n_stay) + n_stay + N_AHEAD) * matrix_bytes();
      check(policy == SlotPolicy::USAGE || counts.n_bytes_read <= most, "the bytes of a cycle");
    }
  check(keeps_what_is_in_vain(isa, file, SLOT_BYTES, each), "pieces that go in vain");
  Paged narrow(isa, file, SlotPolicy::CYCLE, SLOT_BYTES, each - 1, 10);
  const auto began = std::chrono::steady_clock::now();
  narrow.step(steps);
  check(narrow.pager.take_failure().kind == ReadError::NO_ROOM, "a matrix larger than all slots");
  check(std::chrono::steady_clock::now() - began < std::chrono::seconds(5), "such a matrix is not waited for");
  Paged paged(isa, file, SlotPolicy::CYCLE, SLOT_BYTES, each * 2, 0.2);
  const auto fails = [&](ReadError kind, const char* what) {
    paged.step(steps);
    check(paged.pager.take_failure().kind == kind, what);
  };
  file.error = -1;
  fails(ReadError::END, "a file that ends");
  file.error = EIO;
  fails(ReadError::FAILED, "a disk that fails");
  file.error = 0;
  check(paged.step(steps) == want && paged.pager.take_failure().kind == ReadError::NONE, "a step after failures");
  file.hangs = true;
  for (int i = 0; i < 6; i++) fails(ReadError::STALLED, "a disk that never answers");
  check(file.n_hanging <= 3 + 8, "the number of threads that hang");
  file.hangs = false;
  while (file.n_hanging > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  check(paged.step(steps) == want && paged.pager.take_failure().kind == ReadError::NONE, "a step after a stall");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // threads that were given up end while their file is there
  return n_failed;
}

}  // namespace tahr
