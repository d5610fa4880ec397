// Where the ranks of a model meet: each hands in rows, waits until all have, and takes what they are together.
//
// A rank has two places for its rows, which take turns. It writes to one again only two meetings later, and by then
// everybody has come to the meeting in between, and so has read it.
#pragma once

#include <cstdint>
#include <vector>

#include "shared_words.h"
#include "worker.h"

namespace tahr {

class Meeting {
 public:
  static constexpr int PLACES = 2;

  // Word `first_word` + r counts the meetings of rank r. `memory` holds n_ranks * PLACES places of so many bytes.
  Meeting(SharedWords& words, int first_word, std::byte* memory, int64_t place_bytes, int n_ranks, int rank, double limit_s)
      : words_(words), first_word_(first_word), memory_(memory), place_bytes_(place_bytes), n_ranks_(n_ranks), rank_(rank),
        limit_s_(limit_s), turn_(words.get(first_word + rank)) {}

  int n_ranks() const { return n_ranks_; }
  int rank() const { return rank_; }
  int64_t place_bytes() const { return place_bytes_; }
  Waited how() const { return how_; }  // what became of all meetings so far

  // Where this rank writes before it meets.
  float* mine() const { return place(rank_, turn_); }
  // What rank r has handed in at the last meeting.
  const float* part(int r) const { return place(r, turn_ - 1); }

  // One thread of each rank waits for all others. After a meeting that failed there are no more.
  bool meet();

 private:
  float* place(int r, uint32_t turn) const {
    return reinterpret_cast<float*>(memory_ + (int64_t(r) * PLACES + turn % PLACES) * place_bytes_);
  }

  SharedWords& words_;
  const int first_word_;
  std::byte* const memory_;
  const int64_t place_bytes_;
  const int n_ranks_, rank_;
  const double limit_s_;
  uint32_t turn_;
  Waited how_ = Waited::DONE;
};

// A meeting is three ops of a tape, between which all threads of a rank come together.
struct HandInOp {
  Meeting* meeting;
  const int32_t* n_rows;
  int64_t width;
  const float* x;
};

struct MeetOp {
  Meeting* meeting;
};

// out = part 0 + part 1 + ..., in f32 and in this order.
struct SumPartsOp {
  Meeting* meeting;
  const int32_t* n_rows;
  int64_t width;
  float* out;
};

// Row r of out is row r of part 0, then row r of part 1, ...
struct JoinPartsOp {
  Meeting* meeting;
  const int32_t* n_rows;
  std::vector<int64_t> widths;  // numbers of a row, by rank
  float* out;
};

void hand_in(const HandInOp& op, Worker worker);
void meet(const MeetOp& op, Worker worker);
void sum_parts(const SumPartsOp& op, Worker worker);
void join_parts(const JoinPartsOp& op, Worker worker);

}  // namespace tahr
