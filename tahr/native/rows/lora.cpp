#include "lora.h"

#include <algorithm>
#include <type_traits>

#include "kv_types.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int ROWS = 4;   // rows that meet the same numbers of an adapter
constexpr int RANKS = 2;  // rows of a that meet them at a time
constexpr int LINE = 64;

template <class Function>
TAHR_INLINE void with_lora_type(LoraType type, Function f) {
  switch (type) {
    case LoraType::f32: return f(static_cast<const float*>(nullptr));
    case LoraType::f16: return f(static_cast<const F16*>(nullptr));
    case LoraType::bf16: return f(static_cast<const BF16*>(nullptr));
  }
}

int64_t bytes_of(LoraType type) { return type == LoraType::f32 ? sizeof(float) : sizeof(uint16_t); }

int64_t stride_of(const LoraOp& op) { return (op.n_cols + LORA_PANEL - 1) / LORA_PANEL * LORA_PANEL; }

// Calls f(block of n entries) for the entries of a tile, ROWS at a time. A result never depends on how many there are.
template <class Function>
TAHR_INLINE void for_entries(const LoraTile& tile, Function f) {
  int64_t at = tile.first;
  const int64_t end = at + tile.n;
  for (; at + ROWS <= end; at += ROWS) f(at, std::integral_constant<int, ROWS>{});
  for (; at < end; at++) f(at, std::integral_constant<int, 1>{});
}

// A walk through the tiles of an op, round after round.
struct Tiles {
  const LoraOp* op;
  int round = 0, index = 0;

  explicit Tiles(const LoraOp& of) : op(&of) { skip_empty(); }
  bool done() const { return round == LORA_ROUNDS; }
  const LoraTile& tile() const { return op->tiles[round * op->most + index]; }
  const LoraSlot& slot(int target) const { return op->targets[target].slots[tile().slot]; }
  void next() { index++, skip_empty(); }
  void skip_empty() {
    while (round < LORA_ROUNDS && index == op->n_tiles[round]) round++, index = 0;
  }
};

// ---- low = scale * a x ----

// A walk through all factors a of an op, RANKS of their rows at a time.
struct RankBlocks {
  Tiles at;
  int target = 0;
  int64_t block = 0;

  explicit RankBlocks(const LoraOp& op) : at(op) { skip(0); }
  bool done() const { return at.done(); }
  const LoraSlot& slot() const { return at.slot(target); }
  int first() const { return int(block * RANKS); }
  const std::byte* begin() const {
    return static_cast<const std::byte*>(slot().a) + first() * stride_of(*at.op) * bytes_of(slot().type);
  }
  static int64_t n_blocks(const LoraSlot& slot) { return (slot.rank + RANKS - 1) / RANKS; }
  // Past `n` blocks, and past what has none left.
  void skip(int64_t n) {
    block += n;
    while (!done() && block >= n_blocks(slot())) {
      block -= n_blocks(slot());
      if (++target == at.op->n_targets) target = 0, at.next();
    }
  }
};

// Products of Count rows of a and N rows of x. Every sum goes through the columns in the same order. `next` will be read next, as
// the rows of a are.
template <int Count, class T, int N>
TAHR_INLINE void multiply(const T* a, const std::byte* next, int64_t stride, const float* const (&x)[N], int64_t n_cols,
                          Floats (&sums)[N][Count]) {
#pragma GCC unroll 4
  for (int r = 0; r < N; r++)
#pragma GCC unroll 2
    for (int j = 0; j < Count; j++) sums[r][j] = set1(0.0f);
  int64_t i = 0;
  const auto step = [&]() __attribute__((always_inline)) {
    Floats w[Count];
#pragma GCC unroll 2
    for (int j = 0; j < Count; j++) w[j] = load(a + j * stride + i);
#pragma GCC unroll 4
    for (int r = 0; r < N; r++) {
      const Floats v = load(x[r] + i);
#pragma GCC unroll 2
      for (int j = 0; j < Count; j++) sums[r][j] = fma(v, w[j], sums[r][j]);
    }
    i += LANES;
    asm volatile("" ::: "memory");  // loads of later steps stay there: GCC would fetch so many first that sums leave the registers
  };
  constexpr int steps = LINE / (LANES * sizeof(T)) > 0 ? LINE / (LANES * sizeof(T)) : 1;
  while (i + steps * LANES <= n_cols) {
#pragma GCC unroll 2
    for (int j = 0; j < Count; j++) prefetch_far(next + (j * stride + i) * int64_t{sizeof(T)});
#pragma GCC unroll 4
    for (int s = 0; s < steps; s++) step();
  }
  while (i + LANES <= n_cols) step();
  if (i == n_cols) return;
#pragma GCC unroll 4
  for (int r = 0; r < N; r++) {
    const Floats v = load_part(x[r] + i, int(n_cols - i));
#pragma GCC unroll 2
    for (int j = 0; j < Count; j++) sums[r][j] = fma(v, load(a + j * stride + i), sums[r][j]);
  }
}

template <int Count, class T>
TAHR_INLINE void shrink_block(const RankBlocks& blocks, const std::byte* next, const T*) {
  const LoraOp& op = *blocks.at.op;
  const int round = blocks.at.round, first = blocks.first();
  const T* a = reinterpret_cast<const T*>(blocks.begin());
  const int32_t* rows = op.rows + round * op.most;
  const float* scales = op.scales + round * op.most;
  for_entries(blocks.at.tile(), [&](int64_t at, auto n) {
    constexpr int N = decltype(n)::value;
    const float* x[N];
#pragma GCC unroll 4
    for (int r = 0; r < N; r++) x[r] = op.x + rows[at + r] * op.n_cols;
    Floats sums[N][Count];
    multiply<Count>(a, next, stride_of(op), x, op.n_cols, sums);
#pragma GCC unroll 4
    for (int r = 0; r < N; r++)
#pragma GCC unroll 2
      for (int j = 0; j < Count; j++)
        op.low_of(round, at + r, blocks.target)[first + j] = blocks.slot().scale * scales[at + r] * sum(sums[r][j]);
  });
}

// ---- out += b low ----

constexpr int PANELS = LANES == 16 ? 2 : 1;  // that meet rows together: eight sums hide how long an addition takes
constexpr int64_t AHEAD = 4096, NEAR_AHEAD = 1024;  // bytes that the second-level and the first-level cache are asked for

// The columns of a linear that one thread adds to.
struct Columns {
  int target;
  Range panels;
};

// Vector v of some panels' rank j.
template <class T>
TAHR_INLINE Floats load_b(const T* b, int rank, int j, int v) {
  constexpr int per_panel = LORA_PANEL / LANES;
  return load(b + (v / per_panel * rank + j) * LORA_PANEL + v % per_panel * LANES);
}

// Ranks j + I to j + 3.
template <int Vectors, int I, class T, int N>
TAHR_INLINE void add_ranks(const T* b, int rank, int j, const Four (&low)[N], Floats (&sums)[N][Vectors]) {
#pragma GCC unroll 2
  for (int v = 0; v < Vectors; v++) {
    const Floats w = load_b(b, rank, j + I, v);
#pragma GCC unroll 4
    for (int r = 0; r < N; r++) sums[r][v] = fma_of<I>(w, low[r], sums[r][v]);
  }
  if constexpr (I < 3) add_ranks<Vectors, I + 1>(b, rank, j, low, sums);
}

// The products of some panels, rank after rank, added to what `out` points to.
template <int Vectors, class T, int N>
TAHR_INLINE void add_panels(const T* b, int rank, const float* const (&low)[N], float* const (&out)[N], int64_t n_left) {
  Floats sums[N][Vectors];
#pragma GCC unroll 4
  for (auto& row : sums)
#pragma GCC unroll 2
    for (auto& lanes : row) lanes = set1(0.0f);
  int j = 0;
  for (; j + 4 <= rank; j += 4) {
    Four four[N];
#pragma GCC unroll 4
    for (int r = 0; r < N; r++) four[r] = load_four(low[r] + j);
    add_ranks<Vectors, 0>(b, rank, j, four, sums);
  }
  for (; j < rank; j++)
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; v++)
#pragma GCC unroll 4
      for (int r = 0; r < N; r++) sums[r][v] = fma(load_b(b, rank, j, v), set1(low[r][j]), sums[r][v]);
#pragma GCC unroll 2
  for (int v = 0; v < Vectors; v++) {
    const int64_t left = n_left - v * LANES;
    const int n = left < 0 ? 0 : left < LANES ? int(left) : LANES;
#pragma GCC unroll 4
    for (int r = 0; r < N; r++) store_some(out[r] + v * LANES, add(load_some(out[r] + v * LANES, n), sums[r][v]), n);
  }
}

// Asks for bytes AHEAD of where reading is, and past their end for those that are read next.
struct Fetching {
  const std::byte *begin, *next;
  int64_t n_bytes, wanted = AHEAD, at = AHEAD;

  void read(int64_t n) {
    for (wanted += n; at < wanted; at += LINE) {
      prefetch_far(at < n_bytes ? begin + at : next + (at - n_bytes));
      prefetch(begin + at - AHEAD + NEAR_AHEAD);
    }
  }
};

const std::byte* panels_of(const LoraSlot& slot, Range panels) {
  return static_cast<const std::byte*>(slot.b) + panels.begin * LORA_PANEL * slot.rank * bytes_of(slot.type);
}

// N entries of a tile meet the panels of b one after the other.
template <int N, class T>
void expand_entries(const Tiles& tiles, const Columns& mine, int64_t entry, const std::byte* next, const T*) {
  const LoraOp& op = *tiles.op;
  const LoraTarget& target = op.targets[mine.target];
  const LoraSlot& slot = tiles.slot(mine.target);
  const int64_t panel_size = LORA_PANEL * slot.rank, panel_bytes = panel_size * sizeof(T);
  Fetching fetching{panels_of(slot, mine.panels), next, (mine.panels.end - mine.panels.begin) * panel_bytes};
  const T* b = reinterpret_cast<const T*>(fetching.begin);
  const float* low[N];
  float* out[N];
  for (int r = 0; r < N; r++) {
    low[r] = op.low_of(tiles.round, entry + r, mine.target);
    out[r] = target.out + op.rows[tiles.round * op.most + entry + r] * target.n_out + mine.panels.begin * LORA_PANEL;
  }
  const auto add = [&](int64_t panel, auto n) __attribute__((always_inline)) {
    constexpr int n_panels = decltype(n)::value;
    fetching.read(n_panels * panel_bytes);
    add_panels<n_panels * LORA_PANEL / LANES>(b, slot.rank, low, out, target.n_out - panel * LORA_PANEL);
    for (int r = 0; r < N; r++) out[r] += n_panels * LORA_PANEL;
    b += n_panels * panel_size;
  };
  int64_t panel = mine.panels.begin;
  for (; panel + PANELS <= mine.panels.end; panel += PANELS) add(panel, std::integral_constant<int, PANELS>{});
  for (; panel < mine.panels.end; panel++) add(panel, std::integral_constant<int, 1>{});
}

void expand_columns(const LoraOp& op, const Columns& mine) {
  for (Tiles at(op); !at.done();) {
    Tiles after = at;
    after.next();
    const LoraSlot& slot = at.slot(mine.target);
    const std::byte* next = panels_of((after.done() ? at : after).slot(mine.target), mine.panels);
    if (slot.rank)
      with_lora_type(slot.type, [&](auto* type) {
        for_entries(at.tile(), [&](int64_t entry, auto n) { expand_entries<decltype(n)::value>(at, mine, entry, next, type); });
      });
    at = after;
  }
}

// ---- what a thread has of an op ----

// The threads share the rows of all factors a.
Range rank_blocks_of(const LoraOp& op, const Worker& worker) {
  int64_t n_blocks = 0;
  for (Tiles at(op); !at.done(); at.next())
    for (int t = 0; t < op.n_targets; t++) n_blocks += RankBlocks::n_blocks(at.slot(t));
  return share(n_blocks, worker);
}

// The threads share the columns of all linears, so that one of them adds all rounds of a row, in order. Calls f(columns) for
// those of each linear, until it is true.
template <class Function>
bool any_columns(const LoraOp& op, const Worker& worker, Function f) {
  const auto panels_in = [&](int t) { return (op.targets[t].n_out + LORA_PANEL - 1) / LORA_PANEL; };
  int64_t n_panels = 0, before = 0;
  for (int t = 0; t < op.n_targets; t++) n_panels += panels_in(t);
  for (int t = 0; t < op.n_targets; before += panels_in(t++)) {
    const Columns mine{t, within(share(n_panels, worker), before, panels_in(t))};
    if (mine.panels.begin < mine.panels.end && f(mine)) return true;
  }
  return false;
}

}  // namespace

void lora_shrink(const LoraOp& op, Worker worker) {
  const Range mine = rank_blocks_of(op, worker);
  RankBlocks blocks(op), ahead(op);
  blocks.skip(mine.begin);
  ahead.skip(mine.begin + 2);
  for (int64_t i = mine.begin; i < mine.end; i++) {
    const std::byte* next = ahead.done() ? blocks.begin() : ahead.begin();
    with_lora_type(blocks.slot().type, [&](auto* type) {
      if (blocks.first() + RANKS <= blocks.slot().rank) shrink_block<RANKS>(blocks, next, type);
      else shrink_block<1>(blocks, next, type);
    });
    blocks.skip(1);
    if (!ahead.done()) ahead.skip(1);
  }
}

void lora_expand(const LoraOp& op, Worker worker) {
  any_columns(op, worker, [&](const Columns& mine) { return expand_columns(op, mine), false; });
}

// So many tiles have rows enough that reading is not what takes the time.
static bool has_many_tiles(const LoraOp& op) {
  constexpr int32_t many = 64;
  return std::any_of(op.n_tiles, op.n_tiles + LORA_ROUNDS, [](int32_t n) { return n >= many; });
}

// The i-th factor a, as far as it is this thread's.
bool lora_shrink_reads(const LoraOp& op, const Worker& worker, int64_t i, Stretch& found) {
  if (has_many_tiles(op)) return false;
  const Range mine = rank_blocks_of(op, worker);
  int64_t before = 0;
  for (Tiles at(op); !at.done(); at.next())
    for (int t = 0; t < op.n_targets; t++) {
      const LoraSlot& slot = at.slot(t);
      const int64_t n = RankBlocks::n_blocks(slot), row_bytes = stride_of(op) * bytes_of(slot.type);
      const Range blocks = within(mine, before, n);
      before += n;
      if (i-- > 0) continue;
      const auto* a = static_cast<const std::byte*>(slot.a);
      const auto row = [&](int64_t block) { return block * RANKS < slot.rank ? block * RANKS : slot.rank; };
      found = {a + row(blocks.begin) * row_bytes, a + row(blocks.end) * row_bytes};
      return true;
    }
  return false;
}

// This thread's columns of the i-th factor b.
bool lora_expand_reads(const LoraOp& op, const Worker& worker, int64_t i, Stretch& found) {
  if (has_many_tiles(op)) return false;
  return any_columns(op, worker, [&](const Columns& mine) {
    for (Tiles at(op); !at.done(); at.next()) {
      if (i-- > 0) continue;
      const LoraSlot& slot = at.slot(mine.target);
      found = {panels_of(slot, mine.panels), panels_of(slot, {mine.panels.end, mine.panels.end})};
      return true;
    }
    return false;
  });
}

}  // namespace tahr::TAHR_ISA
