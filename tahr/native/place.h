// Rotated queries, and keys and values in their slots of the KV store.
#pragma once

#include <cstdint>

#include "lane.h"

namespace tahr {

enum class KvType : int32_t { f32, f16, bf16 };
enum class RopeStyle : int32_t { halves, pairs };

// One layer of the KV store. Values lie [n_pages][n_heads][page_size][head_dim]; keys [n_pages][n_heads][head_dim][page_size],
// so that a vector holds the same number of neighbouring tokens and scores need no sums across lanes.
struct KvLayer {
  std::byte* keys;
  std::byte* values;
  KvType type;
  int32_t n_heads;
  int32_t head_dim;
  int32_t page_size;

  // Index of the first number of a head's keys and values in a page.
  int64_t page_at(int64_t page, int64_t head) const { return (page * n_heads + head) * page_size * head_dim; }
};

struct PlaceOp {
  const int32_t* n_rows;
  int32_t n_q_heads;
  const float* q;
  const float* k;
  const float* v;
  const float* angles;  // [n][2 * n_freqs]: cos, then sin
  int32_t n_freqs;
  RopeStyle style;
  const float* q_gain;  // null: no norm of heads
  const float* k_gain;
  float eps;
  const int32_t* slots;
  KvLayer kv;
  float* out;  // rotated q
};

}  // namespace tahr
