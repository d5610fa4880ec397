// Which pieces of a model stay in an arena that is smaller than all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tahr {

// CYCLE: layers, which steps use one after the other; the next use of the piece used last is the farthest, so that one
// goes. USAGE: experts; one that was missed a second time is worth keeping, the others go first, the oldest of them.
enum class SlotPolicy : uint8_t { CYCLE, USAGE };

struct PieceUse {
  int64_t last = 0;  // turn of its last use; 0: never used
  int n_misses = 0;  // 2: worth keeping
};

// Whether `one` is given up before `two`.
bool goes_first(SlotPolicy policy, const PieceUse& one, const PieceUse& two);

// Whether a piece that is read ahead may take the place of one that is there: not if that one is used before it.
bool may_replace(SlotPolicy policy, const PieceUse& ahead, const PieceUse& there);

// The order of a cycle, learnt from the last one; the first follows the numbers.
class Cycle {
 public:
  void add() { next_.push_back(int64_t(next_.size()) + 1); }
  void used(int64_t piece);
  int64_t after(int64_t piece) const { return next_[std::size_t(piece)] < int64_t(next_.size()) ? next_[std::size_t(piece)] : 0; }

 private:
  std::vector<int64_t> next_;
  int64_t before_ = -1;
};

}  // namespace tahr
