// Attention of grouped heads over paged keys and values, with a running softmax over tiles of tokens.
//
// Whatever the chunking of a prompt, a query meets the same numbers in the same order: tiles lie at absolute multiples
// of KV_TILE positions, the running softmax starts anew at every multiple of KV_SPAN, and spans are merged in order.
// Spans exist so that a few queries over a long text can be shared by all threads.
#pragma once

#include <cstdint>

#include "worker.h"
#include "rope_kv.h"

namespace tahr {

constexpr int KV_TILE = 64;         // tokens whose keys and values are converted to f32 together
constexpr int KV_SPAN = 512;        // tokens between restarts of the running softmax
constexpr int MAX_QUERY_TILE = 64;  // query rows (tokens x grouped heads) that share a converted tile
constexpr int MAX_HEAD_DIM = 576;
constexpr int SPLIT_TOKENS = 16;    // steps of at most this many tokens are shared by span, larger ones by query

struct AttentionOp {
  const int32_t* counts;  // n_tokens, n_rows, n_seqs
  const int32_t* positions;
  const int32_t* starts;
  const int32_t* lengths;
  const int32_t* page_table;
  int32_t n_pages_per_seq;
  int32_t n_q_heads;
  int32_t group;  // query heads that one task works on; they share a key head
  const float* q;
  float* out;
  KvLayer kv;
  float scale;
  float softcap;   // 0: none
  int32_t window;  // 0: none
  bool chunked;    // the window begins at a multiple of itself
  float* partials;  // [SPLIT_TOKENS][n_q_heads][n_spans][value_dim + 2]: weighted values, then sum and maximum
  int32_t n_spans;  // of the longest sequence
  const float* sinks;   // [n_q_heads], or null: logits that take part in the softmax without a value
  const float* slopes;  // [n_q_heads], or null: added to a score per position between query and key
  bool causal;  // a query sees no later position; else it sees as far ahead as back, in its whole sequence
  std::byte* const* quantised_out;  // of `out`; see quantised_out.h
  bool plain = false;               // see plain_attention.h
};

}  // namespace tahr
