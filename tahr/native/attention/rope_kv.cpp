#include "rope_kv.h"

#include <cmath>

#include "hadamard.h"
#include "kv_types.h"

namespace tahr::TAHR_ISA {

namespace {

void norm_head(const float* x, const float* gain, float eps, int dim, float* out) {
  Floats total = set1(0.0f);
  int i = 0;
  for (; i + LANES <= dim; i += LANES) total = fma(load(x + i), load(x + i), total);
  if (i < dim) {
    const Floats last = load_part(x + i, dim - i);
    total = fma(last, last, total);
  }
  const float inverse = 1.0f / std::sqrt(sum(total) / float(dim) + eps);
  for (int j = 0; j < dim; j += LANES) {
    const int n = dim - j < LANES ? dim - j : LANES;
    store_some(out + j, mul(mul(load_some(x + j, n), set1(inverse)), load_some(gain + j, n)), n);
  }
}

struct Pair {
  Floats a, b;
};

TAHR_INLINE Pair turn(Floats a, Floats b, Floats cosine, Floats sine) {
  return {sub(mul(a, cosine), mul(b, sine)), add(mul(b, cosine), mul(a, sine))};
}

// The pairs that turn together are (i, i + n).
void rotate_halves(const float* cosines, const float* sines, int n, float* x) {
  for (int i = 0; i < n; i += LANES) {
    const int some = n - i < LANES ? n - i : LANES;
    float *low = x + i, *high = x + n + i;
    const Pair turned = turn(load_some(low, some), load_some(high, some), load_some(cosines + i, some), load_some(sines + i, some));
    store_some(low, turned.a, some);
    store_some(high, turned.b, some);
  }
}

// The pairs are (2i, 2i + 1).
void rotate_pairs(const float* cosines, const float* sines, int n, float* x) {
  for (int i = 0; i < n; i++) {
    float &a = x[2 * i], &b = x[2 * i + 1];
    const float turned = a * cosines[i] - b * sines[i];
    b = b * cosines[i] + a * sines[i];
    a = turned;
  }
}

// Numbers past the last pair stay as they are.
void rotate(const RopeCacheOp& op, const float* cos_sin, float* x) {
  const auto turn_all = op.style == RopeStyle::pairs ? rotate_pairs : rotate_halves;
  turn_all(cos_sin, cos_sin + op.n_freqs, op.n_freqs, x);
}

void norm_and_rope(const RopeCacheOp& op, int64_t token, const float* x, const float* gain, float* out) {
  if (gain)
    norm_head(x, gain, op.eps, op.kv.head_dim, out);
  else
    memcpy(out, x, size_t(op.kv.head_dim) * sizeof(float));
  rotate(op, op.cos_sin + token * 2 * op.n_freqs, out);
}

void keep(const RopeCacheOp& op, int64_t token, int64_t head, std::byte* scratch) {
  const KvLayer& kv = op.kv;
  const int64_t from = (token * kv.n_heads + head) * kv.head_dim;
  const int64_t page = op.slots[token] / kv.page_size, offset = op.slots[token] % kv.page_size;
  float* x = reinterpret_cast<float*>(scratch);
  std::byte* rest = scratch + size_t(kv.head_dim) * sizeof(float);
  norm_and_rope(op, token, op.k + from, op.k_gain, x);
  if (kv.key_type == KvType::q8_0) {
    if (op.key_mean)
      for (int i = 0; i < kv.head_dim; i++) x[i] -= op.key_mean[head * kv.head_dim + i];
    hadamard(x, kv.head_dim);
  }
  with_type(kv.key_type, [&](auto stored) { stored.write_key(kv, kv.keys_at(page, head), offset, x, rest); });
  if (!op.v) return;
  const float* value = op.v + from;
  if (kv.value_type == KvType::q8_0) {
    memcpy(x, value, size_t(kv.head_dim) * sizeof(float));
    hadamard(x, kv.head_dim);
    value = x;
  }
  with_type(kv.value_type, [&](auto stored) { stored.write_value(kv, kv.values_at(page, head), offset, value); });
}

}  // namespace

// Work is shared out by key heads, which cost most, each with the query heads that read it.
void rope_and_cache(const RopeCacheOp& op, Worker worker) {
  const int64_t n_heads = op.kv.n_heads, group = op.n_q_heads / n_heads;
  const Range heads = share(*op.n_rows * n_heads, worker);
  for (int64_t i = heads.begin; i < heads.end; i++) {
    const int64_t token = i / n_heads;
    for (int64_t q = i * group; q < (i + 1) * group; q++) {
      float* out = op.out + q * op.kv.head_dim;
      norm_and_rope(op, token, op.q + q * op.kv.head_dim, op.q_gain, out);
      if (op.kv.key_type == KvType::q8_0) hadamard(out, op.kv.head_dim);
    }
    if (op.k) keep(op, token, i % n_heads, worker.scratch);
  }
}

}  // namespace tahr::TAHR_ISA
