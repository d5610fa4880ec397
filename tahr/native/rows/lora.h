// Low-rank adapters: out[row] += b (a x[row]) for the rows of a step that have one, tile by tile.
#pragma once

#include <cstdint>

#include "worker.h"

namespace tahr {

constexpr int LORA_PANEL = 16;       // rows of b that lie together; columns of a are padded to a multiple of it
constexpr int MAX_LORA_TARGETS = 4;  // linears of the same rows
constexpr int LORA_ROUNDS = 4;       // adapters of one row

enum class LoraType : int32_t { f32, f16, bf16 };

// The part of an adapter in one linear, as Python writes it. Rank 0: it does not change this linear.
struct LoraSlot {
  const void* a;  // [rank][columns, padded]
  const void* b;  // [panel][rank][LORA_PANEL]
  int32_t rank;
  LoraType type;
  float scale;
  int32_t unused;
};
static_assert(sizeof(LoraSlot) == 32);

struct LoraTarget {
  const LoraSlot* slots;
  float* out;  // [n][n_out]
  int64_t n_out;
};

struct LoraTile {
  int32_t slot, first, n;
};

// Both halves of the op: `shrink` makes `low` = scale * a x, `expand` adds b low to `out`. In round k, tile t says that
// entries first .. first + n - 1 of rows[k] meet the adapter in `slot`. No row stands in a round twice.
struct LoraOp {
  const int32_t* n_tiles;  // [LORA_ROUNDS]
  const LoraTile* tiles;   // [LORA_ROUNDS][most]
  const int32_t* rows;     // [LORA_ROUNDS][most]
  const float* scales;     // [LORA_ROUNDS][most]
  int64_t most;
  int64_t n_cols;
  const float* x;
  float* low;         // [LORA_ROUNDS][most][n_targets][most_rank]
  int64_t most_rank;  // of all adapters in the slots
  int32_t n_targets;
  LoraTarget targets[MAX_LORA_TARGETS];

  float* low_of(int round, int64_t entry, int target) const {
    return low + ((round * most + entry) * n_targets + target) * most_rank;
  }
};

}  // namespace tahr
