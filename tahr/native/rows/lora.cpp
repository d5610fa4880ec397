#include "lora.h"

#include <type_traits>

#include "kv_types.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int ROWS = 4;   // rows that meet the same numbers of an adapter
constexpr int RANKS = 2;  // rows of a that meet them at a time
constexpr int VECTORS = LORA_PANEL / LANES;

template <class Function>
TAHR_INLINE void with_lora_type(LoraType type, Function f) {
  switch (type) {
    case LoraType::f32: return f(static_cast<const float*>(nullptr));
    case LoraType::f16: return f(static_cast<const F16*>(nullptr));
    case LoraType::bf16: return f(static_cast<const BF16*>(nullptr));
  }
}

// Calls f(block of n entries) for the entries of a tile, ROWS at a time. A result never depends on how many there are.
template <class Function>
TAHR_INLINE void for_entries(const LoraTile& tile, Function f) {
  int64_t at = tile.first;
  const int64_t end = at + tile.n;
  for (; at + ROWS <= end; at += ROWS) f(at, std::integral_constant<int, ROWS>{});
  for (; at < end; at++) f(at, std::integral_constant<int, 1>{});
}

// low = scale * a x for Count rows of a and N rows of x. Every sum goes through the columns in the same order.
template <int Count, class T, int N>
TAHR_INLINE void multiply(const T* a, int64_t stride, const float* const (&x)[N], int64_t n_cols, Floats (&sums)[N][Count]) {
#pragma GCC unroll 4
  for (int r = 0; r < N; r++)
#pragma GCC unroll 2
    for (int j = 0; j < Count; j++) sums[r][j] = set1(0.0f);
  int64_t i = 0;
  for (; i + LANES <= n_cols; i += LANES) {
    Floats w[Count];
#pragma GCC unroll 2
    for (int j = 0; j < Count; j++) w[j] = load(a + j * stride + i);
#pragma GCC unroll 4
    for (int r = 0; r < N; r++) {
      const Floats v = load(x[r] + i);
#pragma GCC unroll 2
      for (int j = 0; j < Count; j++) sums[r][j] = fma(v, w[j], sums[r][j]);
    }
  }
  if (i == n_cols) return;
#pragma GCC unroll 4
  for (int r = 0; r < N; r++) {
    const Floats v = load_part(x[r] + i, int(n_cols - i));
#pragma GCC unroll 2
    for (int j = 0; j < Count; j++) sums[r][j] = fma(v, load(a + j * stride + i), sums[r][j]);
  }
}

template <int Count, class T>
TAHR_INLINE void shrink_tile(const LoraOp& op, int round, const LoraTile& tile, int target, const LoraSlot& slot, int first,
                             const T*) {
  const int64_t stride = (op.n_cols + LORA_PANEL - 1) / LORA_PANEL * LORA_PANEL;
  const T* a = static_cast<const T*>(slot.a) + first * stride;
  const int32_t* rows = op.rows + round * op.most;
  const float* scales = op.scales + round * op.most;
  for_entries(tile, [&](int64_t at, auto n) {
    constexpr int N = decltype(n)::value;
    const float* x[N];
#pragma GCC unroll 4
    for (int r = 0; r < N; r++) x[r] = op.x + rows[at + r] * op.n_cols;
    Floats sums[N][Count];
    multiply<Count>(a, stride, x, op.n_cols, sums);
#pragma GCC unroll 4
    for (int r = 0; r < N; r++)
#pragma GCC unroll 2
      for (int j = 0; j < Count; j++)
        op.low_of(round, at + r, target)[first + j] = slot.scale * scales[at + r] * sum(sums[r][j]);
  });
}

// out += b low for one panel of a linear and the rows of a tile.
template <class T>
TAHR_INLINE void expand_tile(const LoraOp& op, int round, const LoraTile& tile, int t, const LoraSlot& slot, int64_t panel,
                             const T*) {
  const LoraTarget& target = op.targets[t];
  const int64_t column = panel * LORA_PANEL;
  const T* b = static_cast<const T*>(slot.b) + column * slot.rank;
  const int32_t* rows = op.rows + round * op.most;
  for_entries(tile, [&](int64_t at, auto n) {
    constexpr int N = decltype(n)::value;
    const float* low[N];
    Floats sums[N][VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < N; r++) {
      low[r] = op.low_of(round, at + r, t);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) sums[r][v] = set1(0.0f);
    }
    for (int j = 0; j < slot.rank; j++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) {
        const Floats w = load(b + j * LORA_PANEL + v * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < N; r++) sums[r][v] = fma(set1(low[r][j]), w, sums[r][v]);
      }
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) {
      const int64_t left = target.n_out - column - v * LANES;
      const int n_left = left < 0 ? 0 : left < LANES ? int(left) : LANES;
#pragma GCC unroll 4
      for (int r = 0; r < N; r++) {
        float* out = target.out + rows[at + r] * target.n_out + column + v * LANES;
        store_some(out, add(load_some(out, n_left), sums[r][v]), n_left);
      }
    }
  });
}

// Calls f(round, tile) for every tile, round after round.
template <class Function>
TAHR_INLINE void for_tiles(const LoraOp& op, Function f) {
  for (int round = 0; round < LORA_ROUNDS; round++)
    for (int i = 0; i < op.n_tiles[round]; i++) f(round, op.tiles[round * op.most + i]);
}

int64_t n_blocks(int rank) { return (rank + RANKS - 1) / RANKS; }

}  // namespace

// The threads share the rows of all factors a.
void lora_shrink(const LoraOp& op, Worker worker) {
  int64_t n_units = 0, at = 0;
  for_tiles(op, [&](int, const LoraTile& tile) {
    for (int t = 0; t < op.n_targets; t++) n_units += n_blocks(op.targets[t].slots[tile.slot].rank);
  });
  const Range mine = share(n_units, worker);
  for_tiles(op, [&](int round, const LoraTile& tile) {
    for (int t = 0; t < op.n_targets; t++) {
      const LoraSlot& slot = op.targets[t].slots[tile.slot];
      const int64_t before = at, n = n_blocks(slot.rank);
      at += n;
      const int64_t begin = mine.begin > before ? mine.begin - before : 0;
      const int64_t end = mine.end < at ? mine.end - before : n;
      if (begin >= end) continue;
      with_lora_type(slot.type, [&](auto* type) {
        for (int64_t block = begin; block < end; block++) {
          const int first = int(block * RANKS);
          if (first + RANKS <= slot.rank) shrink_tile<RANKS>(op, round, tile, t, slot, first, type);
          else shrink_tile<1>(op, round, tile, t, slot, first, type);
        }
      });
    }
  });
}

// The threads share the columns of all linears, so that one of them adds all rounds of a row, in order.
void lora_expand(const LoraOp& op, Worker worker) {
  int64_t n_panels = 0;
  for (int t = 0; t < op.n_targets; t++) n_panels += (op.targets[t].n_out + LORA_PANEL - 1) / LORA_PANEL;
  const Range mine = share(n_panels, worker);
  int64_t at = 0;
  for (int t = 0; t < op.n_targets; t++) {
    const int64_t before = at, n = (op.targets[t].n_out + LORA_PANEL - 1) / LORA_PANEL;
    at += n;
    const int64_t begin = mine.begin > before ? mine.begin - before : 0;
    const int64_t end = mine.end < at ? mine.end - before : n;
    for_tiles(op, [&](int round, const LoraTile& tile) {
      const LoraSlot& slot = op.targets[t].slots[tile.slot];
      if (!slot.rank) return;
      with_lora_type(slot.type, [&](auto* type) {
        for (int64_t panel = begin; panel < end; panel++) expand_tile(op, round, tile, t, slot, panel, type);
      });
    });
  }
}

}  // namespace tahr::TAHR_ISA
