// The ops on rows, every instruction set against the plain one.
#include "selftest_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "tape.h"

namespace tahr {

namespace {

using Vector = std::vector<float>;

Vector random_rows(int64_t n, unsigned seed, float size) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> gauss(0, size);
  Vector x(static_cast<size_t>(n));
  for (auto& v : x) v = gauss(rng);
  return x;
}

template <class Op>
void run(Pool& pool, const Op& op, void (*kernel)(const Op&, Worker)) {
  Tape tape;
  tape.add(op, kernel);
  tape.run(pool);
}

Vector activations(const RowKernels& k, Pool& pool, Activation act) {
  const int32_t n = 3;
  const Vector gate = random_rows(n * 77, 1, 8), up = random_rows(n * 77, 2, 1);
  Vector out(gate.size());
  run(pool, ActivateOp{&n, 77, gate.data(), up.data(), out.data(), act, nullptr}, k.activate);
  return out;
}

Vector plain_ops(const RowKernels& k, Pool& pool) {
  const int32_t n = 5;
  const Vector x = random_rows(n * 75, 3, 3), y = random_rows(n * 75, 4, 3), gain = random_rows(75, 5, 1);
  Vector sum(x.size()), normed(x.size()), capped(x.size()), added(x.size());
  run(pool, NormOp{&n, 75, x.data(), y.data(), gain.data(), sum.data(), normed.data(), 1e-5f, 0.5f, nullptr},
      k.norm);
  run(pool, SoftcapOp{&n, 75, x.data(), capped.data(), 2}, k.softcap);
  run(pool, AddOp{&n, 75, x.data(), y.data(), added.data(), -3}, k.add);
  for (const Vector* more : {&normed, &capped, &added}) sum.insert(sum.end(), more->begin(), more->end());
  return sum;
}

// Keys and values of one sequence go into scattered pages of 8 tokens, then the last `n_new` tokens look at them.
Vector attend(const RowKernels& k, Pool& pool, KvType key_type, KvType value_type, int dim, int window, int32_t n_new) {
  constexpr int32_t n_all = 600, page = 8, n_pages = 80, n_q_heads = 6, n_kv_heads = 2, n_spans = 2;
  std::vector<int32_t> positions(n_all), slots(n_all), pages(n_pages);
  for (int i = 0; i < n_pages; i++) pages[size_t(i)] = i * 7 % n_pages;
  for (int i = 0; i < n_all; i++) {
    positions[size_t(i)] = i;
    slots[size_t(i)] = pages[size_t(i / page)] * page + i % page;
  }
  std::vector<float> keys(size_t(n_pages * page * n_kv_heads * dim)), values(keys.size());
  const KvLayer kv{reinterpret_cast<std::byte*>(keys.data()), reinterpret_cast<std::byte*>(values.data()), key_type, value_type,
                   n_kv_heads, dim, page, 0};
  const Vector q = random_rows(n_all * n_q_heads * dim, 6, 1), key = random_rows(n_all * n_kv_heads * dim, 7, 1);
  const Vector value = random_rows(n_all * n_kv_heads * dim, 8, 1), gain(size_t(dim), 1.25f);
  const Vector cos_sin = random_rows(n_all * dim, 9, 1), mean = random_rows(n_kv_heads * dim, 12, 1);
  Vector turned(q.size()), out(size_t(n_new * n_q_heads * dim));
  run(pool, RopeCacheOp{&n_all, n_q_heads, q.data(), key.data(), value.data(), cos_sin.data(), dim / 2, RopeStyle::halves,
                    gain.data(), gain.data(), 1e-6f, mean.data(), slots.data(), kv, turned.data()}, k.rope_and_cache);

  const int32_t counts[] = {n_new, 1, 1}, starts[] = {0, n_new};
  const int64_t first = n_all - n_new;
  Vector partials(size_t(SPLIT_TOKENS * n_q_heads * n_spans * (dim + 2)), NAN);
  const AttentionOp op{counts, positions.data() + first, starts, &n_all, pages.data(), n_pages, n_q_heads, n_q_heads / n_kv_heads,
                       turned.data() + first * n_q_heads * dim, out.data(), kv, 0.1f, 0, window, false, partials.data(), n_spans,
                       nullptr, nullptr, true, nullptr};
  run(pool, op, k.attention);
  run(pool, op, k.merge_spans);
  return out;
}

// Random numbers as a factor of an adapter stores them.
std::vector<std::byte> factor(int64_t n, unsigned seed, LoraType type) {
  const Vector x = random_rows(n, seed, 1);
  std::vector<std::byte> bytes(x.size() * (type == LoraType::f32 ? 4 : 2));
  for (size_t i = 0; i < x.size(); i++) {
    if (type == LoraType::f32) memcpy(&bytes[4 * i], &x[i], 4);
    else memcpy(&bytes[2 * i], reinterpret_cast<const std::byte*>(&x[i]) + 2, 2);  // the upper half is a bf16
  }
  return bytes;
}

// Three adapters of different ranks, of which one leaves a linear alone; rows with two of them, one, and none. `only` >= 0: that
// row alone.
struct Adapters {
  static constexpr int64_t N_ROWS = 12, N_COLS = 75, STRIDE = 80, N_OUT[] = {70, 16, 37};
  std::vector<std::vector<std::byte>> kept;
  std::vector<LoraSlot> slots[3];
  int32_t n_tiles[LORA_ROUNDS] = {};
  std::vector<LoraTile> tiles = std::vector<LoraTile>(LORA_ROUNDS * N_ROWS);
  std::vector<int32_t> rows = std::vector<int32_t>(LORA_ROUNDS * N_ROWS);
  const Vector scales = Vector(LORA_ROUNDS * N_ROWS, 0.75f), x = random_rows(N_ROWS * N_COLS, 90, 1);
  Vector low = Vector(LORA_ROUNDS * N_ROWS * 3 * 16), out = Vector(size_t(N_ROWS * (70 + 16 + 37)), 1.0f);
  LoraOp op{n_tiles, tiles.data(), rows.data(), scales.data(), N_ROWS, N_COLS, x.data(), low.data(), 16, 3, {}};

  Adapters(LoraType type, int only) {
    constexpr int ranks[] = {5, 16, 2};
    for (int t = 0; t < 3; t++)
      for (int a = 0; a < 3; a++) {
        kept.push_back(factor(ranks[a] * STRIDE, unsigned(20 + 10 * t + a), type));
        kept.push_back(factor(ranks[a] * (N_OUT[t] + 15) / 16 * 16 + 16 * 16, unsigned(50 + 10 * t + a), type));
        const bool none = t == 1 && a == 2;
        slots[t].push_back({kept[kept.size() - 2].data(), kept.back().data(), none ? 0 : ranks[a], type, 0.5f, 0});
      }
    put_rows(only);
    float* next = out.data();
    for (int t = 0; t < 3; next += N_ROWS * N_OUT[t++]) op.targets[t] = {slots[t].data(), next, N_OUT[t]};
  }

  void put_rows(int only) {
    const std::vector<std::vector<int32_t>> with[LORA_ROUNDS] = {{{0, 2, 4, 6, 8}, {1}, {3, 5, 7, 9, 10}}, {{2, 3}, {}, {}}, {}, {}};
    for (int round = 0; round < LORA_ROUNDS; round++) {
      int32_t at = 0, slot = 0;
      for (const auto& of_slot : with[round]) {
        const int32_t first = at;
        for (int32_t row : of_slot)
          if (only < 0 || row == only) rows[size_t(round * N_ROWS + at++)] = row;
        if (at > first) tiles[size_t(round * N_ROWS + n_tiles[round]++)] = {slot, first, at - first};
        slot++;
      }
    }
  }
};

Vector adapt(const RowKernels& k, Pool& pool, LoraType type, int only) {
  Adapters adapters(type, only);
  run(pool, adapters.op, k.lora_shrink);
  run(pool, adapters.op, k.lora_expand);
  return adapters.out;
}

// Whether threads say that they read each factor once: those of the four tiles, ranks 5, 16, 2 and 5 again.
bool reads_factors_once(const RowKernels& k, LoraType type) {
  const Adapters adapters(type, -1);
  const int64_t size = type == LoraType::f32 ? 4 : 2, all_ranks = 5 + 16 + 2 + 5, without = 2;
  const int64_t wanted_a = (3 * all_ranks - without) * Adapters::STRIDE * size;
  const int64_t wanted_b = (all_ranks * (80 + 48) + (all_ranks - without) * 16) * size;
  for (int n_threads : {1, 2, 5, 64}) {
    int64_t n_a = 0, n_b = 0;
    for (int thread = 0; thread < n_threads; thread++) {
      const Worker worker{thread, n_threads, nullptr, nullptr};
      Stretch found{};
      for (int64_t i = 0; k.lora_shrink_reads(adapters.op, worker, i, found); i++) n_a += found.end - found.begin;
      for (int64_t i = 0; k.lora_expand_reads(adapters.op, worker, i, found); i++) n_b += found.end - found.begin;
    }
    if (n_a != wanted_a || n_b != wanted_b) return false;
  }
  return true;
}

// Whether every row of a batch is what it is alone.
bool adapts_rows_alone(const RowKernels& k, Pool& pool, LoraType type) {
  const Vector all = adapt(k, pool, type, -1);
  for (int row = 0; row < 12; row++) {
    const Vector one = adapt(k, pool, type, row);
    int64_t begin = 0;
    for (int64_t width : {70, 16, 37}) {
      const auto at = size_t(begin + row * width);
      if (!std::equal(one.begin() + int64_t(at), one.begin() + int64_t(at) + width, all.begin() + int64_t(at))) return false;
      begin += 12 * width;
    }
  }
  return true;
}

// What an op leaves as int8 must be what rounding its rows afterwards gives.
bool quantises_what_it_writes(const Isa& isa, Pool& pool) {
  const int32_t n = 5, width = 96;
  const Vector x = random_rows(n * width, 10, 3), gain = random_rows(width, 11, 1);
  const auto n_bytes = size_t(n * quantised_row_bytes(width));
  std::vector<std::byte> mine(n_bytes), after(n_bytes);
  std::byte* const address = mine.data();
  Vector out(x.size());
  const auto same = [&] {
    run(pool, QuantiseOp{out.data(), after.data(), width, &n}, isa.matmul->quantise);
    return mine == after;
  };
  run(pool, NormOp{&n, width, x.data(), nullptr, gain.data(), nullptr, out.data(), 1e-5f, 1, &address}, isa.rows->norm);
  if (!same()) return false;
  run(pool, ActivateOp{&n, width, x.data(), x.data(), out.data(), Activation::silu, &address}, isa.rows->activate);
  return same();
}

bool close(const Vector& have, const Vector& want, float tolerance) {
  float top = 0, off = 0;
  for (size_t i = 0; i < want.size(); i++) {
    top = std::fmax(top, std::fabs(want[i]));
    const float d = std::fabs(have[i] - want[i]);
    off = d <= off ? off : d;  // a NaN stays
  }
  return off <= tolerance * top;
}

}  // namespace

int check_rows(const Isa& isa, Pool& pool) {
  const RowKernels &mine = *isa.rows, &plain = *isas().back().rows;
  int n_failed = 0;
  const auto check = [&](bool ok, const char* what) {
    if (!ok) printf("FAIL %s %s\n", isa.name, what);
    n_failed += !ok;
  };
  for (auto act : {Activation::silu, Activation::gelu_tanh, Activation::gelu, Activation::quick_gelu})
    check(close(activations(mine, pool, act), activations(plain, pool, act), 1e-6f), "activation");
  check(close(plain_ops(mine, pool), plain_ops(plain, pool), 1e-6f), "norm, softcap or add");
  check(quantises_what_it_writes(isa, pool), "rows left as int8");
  for (auto type : {LoraType::f32, LoraType::bf16}) {
    check(close(adapt(mine, pool, type, -1), adapt(plain, pool, type, -1), 1e-6f), "adapters");
    check(adapts_rows_alone(mine, pool, type), "adapters of a row alone");
    check(reads_factors_once(mine, type), "factors to fetch ahead");
  }
  constexpr KvType F32 = KvType::f32, F16 = KvType::f16, BF16 = KvType::bf16, Q8 = KvType::q8_0;
  constexpr KvType types[][2] = {{F32, F32}, {F16, F16}, {BF16, BF16}, {Q8, Q8}, {Q8, F16}, {F32, Q8}};
  for (auto [keys, values] : types)
    for (int dim : {24, 64})
      for (int window : {0, 100}) {
        if ((keys == Q8 || values == Q8) && dim % KV_BLOCK) continue;
        const Vector few = attend(mine, pool, keys, values, dim, window, 3);
        const Vector many = attend(mine, pool, keys, values, dim, window, 40);
        check(close(few, attend(plain, pool, keys, values, dim, window, 3), 2e-3f), "attention");
        check(Vector(many.end() - few.size(), many.end()) == few, "attention in chunks");
      }
  return n_failed;
}

}  // namespace tahr
