// Matrices larger than the memory they may take: their panels are read into slots of a bounded arena as ops need them.
//
// A piece is what is read at once: a matrix, or one of a stack. It lies in as many slots as it needs, wherever they are,
// so that pieces of all sizes share an arena and nothing is left over between them. An op that reads pieces awaits them
// before and releases them after; what it has awaited stays where it is until then.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pack.h"
#include "piece_loader.h"
#include "slot_policy.h"
#include "worker.h"

namespace tahr {

struct PagerSettings {
  SlotPolicy policy;
  int64_t slot_bytes;  // a multiple of 4096, at least a panel of every matrix
  int64_t n_slots;
  int n_readers;
  int n_ahead;     // pieces read ahead in a cycle
  double stall_s;  // a read that takes longer fails the step
};

struct PagerCounts {
  int64_t n_hits = 0, n_misses = 0, n_evictions = 0, n_bytes_read = 0;
  double wait_s = 0;
};

// Where the rows of a piece begin, in the layout of the file.
struct Extent {
  int file;
  int64_t offset;
};

// Some pieces with numbers one after the other: those of a matrix. Of experts, the e-th is meant if starts[e] < starts[e + 1].
struct PieceRange {
  int64_t first, n;
  const int32_t* starts;  // null: all
};

class Pager {
 public:
  explicit Pager(const PagerSettings& settings);  // throws std::bad_alloc, or std::system_error where no thread can be made
  ~Pager();

  PieceLoader& loader() { return *loader_; }

  bool takes(const PackedMatrix& matrix) const;  // whether slots and reads are large enough for its panels

  // A matrix or stack whose rows are at the extents, one for each of the stack; returns the number of its first piece.
  // `matrix` has no data and is given places, which its copies share. Ops that read it must await it.
  int64_t add(PackedMatrix& matrix, PanelLayout layout, const std::vector<Extent>& extents);

  // False: they could not be read, or something of the same step could not. They must be released all the same.
  // None of these three throws: a thread that is one of a pool calls them.
  bool await(const std::vector<PieceRange>& ranges);
  void release(const std::vector<PieceRange>& ranges);
  void expect(const std::vector<PieceRange>& ranges);  // these are needed soon

  void forget();  // what has been read is read again: files were written to; no step may run

  ReadFailure take_failure();  // of the step that has ended; the next one begins without
  PagerCounts counts() const;
  int64_t arena_bytes() const { return settings_.slot_bytes * settings_.n_slots; }

 private:
  enum class State : uint8_t { ABSENT, READING, READY };
  struct Piece {
    const PackedMatrix* matrix;
    PanelLayout layout;
    int64_t index;  // in the stack
    Extent extent;
    int64_t slots_needed;
    std::vector<int64_t> slots;
    State state = State::ABSENT;
    bool is_void = false;  // what is being read of it will not do
    int n_pins = 0;
    int64_t reads_left = 0;
    PieceUse use;
  };
  using Lock = std::unique_lock<std::mutex>;

  template <class Do>
  void each(const std::vector<PieceRange>& ranges, Do f);
  bool start(int64_t number, bool ahead);
  bool may_go(const Piece& piece, const Piece& wanted, bool ahead) const;
  int64_t n_can_be_free(const Piece& wanted, bool ahead) const;
  bool free_slots(int64_t n, const Piece& wanted, bool ahead);
  int64_t victim() const;
  void evict(int64_t number);
  void place(const Piece& piece);
  const std::byte* blank() const;
  std::vector<FileRead> reads_of(int64_t number) const;
  void arrived(const FileRead& read, const std::byte* bytes, const ReadFailure& failure);
  void read_ahead(int64_t piece);
  int64_t pin(const std::vector<PieceRange>& ranges);
  bool await_pinned(const std::vector<PieceRange>& ranges, int64_t last, Lock& lock);
  bool start_all(const std::vector<PieceRange>& ranges);
  void wait_for(const std::vector<PieceRange>& ranges, Lock& lock);
  void fail(ReadFailure failure);

  struct Unmap {
    size_t n_bytes;
    void operator()(std::byte* memory) const;
  };
  using Mapped = std::unique_ptr<std::byte, Unmap>;
  static Mapped map_arena(int64_t n_bytes);

  const PagerSettings settings_;
  const Mapped arena_;
  std::vector<std::byte> blank_;  // where panels are that are not there: zeros, read only by steps that have failed
  std::vector<int64_t> free_;
  std::deque<PackedMatrix> matrices_;  // addresses stay
  std::vector<Piece> pieces_;
  std::vector<int64_t> present_;  // pieces with slots
  Cycle cycle_;
  int64_t turn_ = 0, n_arrived_ = 0;
  int64_t n_pinned_ = 0;  // slots that pinned pieces need
  PagerCounts counts_;
  ReadFailure failure_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<PieceLoader> loader_;  // last: its threads end before the rest goes
};

// Ops of a tape; one thread waits, the others at the barrier.
struct AwaitOp {
  Pager* pager;
  std::vector<PieceRange> ranges;
  std::vector<PieceRange> soon;
};
void await_pieces(const AwaitOp& op, Worker worker);
void release_pieces(const AwaitOp& op, Worker worker);

}  // namespace tahr
