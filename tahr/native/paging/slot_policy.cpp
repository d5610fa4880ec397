#include "slot_policy.h"

namespace tahr {

namespace {

constexpr int MISSES_TO_KEEP = 2;

bool is_kept(const PieceUse& use) { return use.n_misses >= MISSES_TO_KEEP; }

}  // namespace

bool goes_first(SlotPolicy policy, const PieceUse& one, const PieceUse& two) {
  if (policy == SlotPolicy::CYCLE) return one.last > two.last;
  if (is_kept(one) != is_kept(two)) return is_kept(two);
  return one.last < two.last;
}

bool may_replace(SlotPolicy policy, const PieceUse& ahead, const PieceUse& there) {
  return policy == SlotPolicy::USAGE || there.last > ahead.last;
}

void Cycle::used(int64_t piece) {
  if (before_ >= 0 && before_ != piece) next_[std::size_t(before_)] = piece;
  before_ = piece;
}

}  // namespace tahr
