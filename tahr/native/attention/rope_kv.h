// Queries after rope, and keys and values in their slots of the KV store.
#pragma once

#include <cstdint>

#include "worker.h"

namespace tahr {

enum class KvType : int32_t { f32, f16, bf16, q8_0 };

constexpr int KV_BLOCK = 32;  // numbers of a q8_0 head that share a scale

// Bytes of one head of one token.
constexpr int64_t stored_head_bytes(KvType type, int64_t head_dim) {
  return type == KvType::f32 ? 4 * head_dim : type == KvType::q8_0 ? head_dim + head_dim / KV_BLOCK * 2 : 2 * head_dim;
}

enum class RopeStyle : int32_t { halves, pairs };

// One layer of the KV store. Values lie [n_pages][n_heads][page_size][head_dim]; keys [n_pages][n_heads][head_dim][page_size],
// so that a vector holds the same number of neighbouring tokens and scores need no sums across lanes. With q8_0 these are
// int8 codes, and each head's part of a page ends with f16 scales in the same order: [page_size][head_dim / KV_BLOCK] and
// [head_dim / KV_BLOCK][page_size]. What is stored as q8_0 is rotated first; see hadamard.h.
//
// A latent layer stores keys alone, never as q8_0: its values are the last `latent` numbers of the keys.
struct KvLayer {
  std::byte* keys;
  std::byte* values;  // null in a latent layer
  KvType key_type;
  KvType value_type;
  int32_t n_heads;
  int32_t head_dim;
  int32_t page_size;
  int32_t latent;  // 0: values are stored

  int32_t value_dim() const { return latent ? latent : head_dim; }

  // Bytes of a head's part of a page.
  int64_t key_part_bytes() const { return page_size * stored_head_bytes(key_type, head_dim); }
  int64_t value_part_bytes() const { return page_size * stored_head_bytes(value_type, head_dim); }

  // Where a head's part of a page begins.
  std::byte* keys_at(int64_t page, int64_t head) const { return keys + (page * n_heads + head) * key_part_bytes(); }
  std::byte* values_at(int64_t page, int64_t head) const { return values + (page * n_heads + head) * value_part_bytes(); }

  // Bytes of the codes in a head's part of a q8_0 page.
  int64_t codes_bytes() const { return int64_t{page_size} * head_dim; }
};

struct RopeCacheOp {
  const int32_t* n_rows;
  int32_t n_q_heads;
  const float* q;
  const float* k;  // null: queries alone, which read what another layer has kept
  const float* v;  // null in a latent layer
  const float* cos_sin;  // [n][2 * n_freqs]: cos, then sin
  int32_t n_freqs;
  RopeStyle style;
  const float* q_gain;  // null: no norm of heads
  const float* k_gain;
  float eps;
  const float* key_mean;  // [n_heads][head_dim], which q8_0 keys go without; null: none
  const int32_t* slots;
  KvLayer kv;
  float* out;  // q after rope; rotated like the keys where those are q8_0
};

}  // namespace tahr
