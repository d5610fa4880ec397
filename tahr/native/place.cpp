#include "place.h"

#include <cmath>

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
  for (int j = 0; j < dim; j++) out[j] = x[j] * inverse * gain[j];
}

// The pairs that turn together are (i, i + n) or (2i, 2i + 1); numbers past the last pair stay as they are.
void rotate(const PlaceOp& op, const float* angles, float* x) {
  const float *cosines = angles, *sines = angles + op.n_freqs;
  const int step = op.style == RopeStyle::pairs ? 2 : 1, apart = op.style == RopeStyle::pairs ? 1 : op.n_freqs;
  for (int i = 0; i < op.n_freqs; i++) {
    float &a = x[i * step], &b = x[i * step + apart];
    const float turned = a * cosines[i] - b * sines[i];
    b = b * cosines[i] + a * sines[i];
    a = turned;
  }
}

void norm_and_rotate(const PlaceOp& op, int64_t token, const float* x, const float* gain, float* out) {
  if (gain)
    norm_head(x, gain, op.eps, op.kv.head_dim, out);
  else
    memcpy(out, x, size_t(op.kv.head_dim) * sizeof(float));
  rotate(op, op.angles + token * 2 * op.n_freqs, out);
}

void keep(const PlaceOp& op, int64_t token, int64_t head, std::byte* scratch) {
  const KvLayer& kv = op.kv;
  const int64_t from = (token * kv.n_heads + head) * kv.head_dim;
  const int64_t page = op.slots[token] / kv.page_size, offset = op.slots[token] % kv.page_size;
  const int64_t at = kv.page_at(page, head);
  float* key = reinterpret_cast<float*>(scratch);
  std::byte* rest = scratch + size_t(kv.head_dim) * sizeof(float);
  norm_and_rotate(op, token, op.k + from, op.k_gain, key);
  with_type(kv.type, [&](auto stored) {
    stored.write_key(kv, kv.keys + at, offset, key, rest);
    stored.write_value(kv, kv.values + at, offset, op.v + from);
  });
}

}  // namespace

// Work is shared out by heads: the query heads and the key heads of a token, one after the other.
void place(const PlaceOp& op, Lane lane) {
  const int64_t n_heads = op.n_q_heads + op.kv.n_heads;
  const Range heads = share(*op.n_rows * n_heads, lane);
  for (int64_t i = heads.begin; i < heads.end; i++) {
    const int64_t token = i / n_heads, head = i % n_heads;
    const int64_t at = (token * op.n_q_heads + head) * op.kv.head_dim;
    if (head < op.n_q_heads)
      norm_and_rotate(op, token, op.q + at, op.q_gain, op.out + at);
    else
      keep(op, token, head - op.n_q_heads, lane.scratch);
  }
}

}  // namespace tahr::TAHR_ISA
