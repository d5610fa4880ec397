#include "meeting.h"

#include <algorithm>
#include <cstring>

namespace tahr {

namespace {

constexpr int64_t PIECE = 64;  // numbers; whole cache lines, so that two threads never write the same one
constexpr int64_t CHUNK = 1024;  // numbers that are summed while they are in the nearest cache

Range share_numbers(int64_t n, const Worker& worker) {
  const Range pieces = share((n + PIECE - 1) / PIECE, worker);
  return {pieces.begin * PIECE, std::min(pieces.end * PIECE, n)};
}

}  // namespace

bool Meeting::meet() {
  if (how_ != Waited::DONE) return false;
  turn_++;
  words_.set(first_word_ + rank_, turn_);
  for (int r = 0; r < n_ranks_ && how_ == Waited::DONE; r++)
    if (r != rank_) how_ = words_.wait(first_word_ + r, turn_, limit_s_);
  return how_ == Waited::DONE;
}

void hand_in(const HandInOp& op, Worker worker) {
  const Range mine = share_numbers(*op.n_rows * op.width, worker);
  if (mine.begin < mine.end) std::memcpy(op.meeting->mine() + mine.begin, op.x + mine.begin, size_t(mine.end - mine.begin) * 4);
}

void meet(const MeetOp& op, Worker worker) {
  if (worker.thread == 0) op.meeting->meet();
}

void sum_parts(const SumPartsOp& op, Worker worker) {
  const Meeting& meeting = *op.meeting;
  if (meeting.how() != Waited::DONE) return;
  const Range mine = share_numbers(*op.n_rows * op.width, worker);
  for (int64_t begin = mine.begin; begin < mine.end; begin += CHUNK) {
    const int64_t n = std::min(CHUNK, mine.end - begin);
    float* out = op.out + begin;
    std::memcpy(out, meeting.part(0) + begin, size_t(n) * 4);
    for (int r = 1; r < meeting.n_ranks(); r++) {
      const float* part = meeting.part(r) + begin;
      for (int64_t i = 0; i < n; i++) out[i] += part[i];
    }
  }
}

void join_parts(const JoinPartsOp& op, Worker worker) {
  const Meeting& meeting = *op.meeting;
  if (meeting.how() != Waited::DONE) return;
  int64_t width = 0, before = 0;
  for (const int64_t each : op.widths) width += each;
  for (int r = 0; r < meeting.n_ranks(); before += op.widths[size_t(r++)]) {
    const int64_t part_width = op.widths[size_t(r)];
    for (int64_t row = 0; row < *op.n_rows; row++) {
      const Range mine = share_numbers(part_width, worker);
      if (mine.begin >= mine.end) continue;
      std::memcpy(op.out + row * width + before + mine.begin, meeting.part(r) + row * part_width + mine.begin,
                  size_t(mine.end - mine.begin) * 4);
    }
  }
}

}  // namespace tahr
