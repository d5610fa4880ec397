#include "pager.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

namespace tahr {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds LOOK_AGAIN{100};

int64_t panels_per_slot(const PackedMatrix& matrix) { return matrix.places.panels_each; }

// Of the rows of a slot: hardly any format takes more in files than in panels.
int64_t most_read_bytes(const PagerSettings& settings) { return settings.slot_bytes + settings.slot_bytes / 4; }

}  // namespace

void Pager::Unmap::operator()(std::byte* memory) const { munmap(memory, n_bytes); }

Pager::Mapped Pager::map_arena(int64_t n_bytes) {
  void* memory = mmap(nullptr, size_t(n_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(memory, size_t(n_bytes), MADV_HUGEPAGE);
#endif
  return Mapped(static_cast<std::byte*>(memory), Unmap{size_t(n_bytes)});
}

Pager::Pager(const PagerSettings& settings)
    : settings_(settings), arena_(map_arena(settings.slot_bytes * settings.n_slots)), blank_(size_t(settings.slot_bytes + 64)) {
  for (int64_t slot = settings.n_slots; slot-- > 0;) free_.push_back(slot);
  const auto sink = [this](const FileRead& read, const std::byte* bytes, const ReadFailure& failure) { arrived(read, bytes, failure); };
  loader_ = std::make_unique<PieceLoader>(settings.n_readers, most_read_bytes(settings), sink);
}

Pager::~Pager() = default;

template <class Do>
void Pager::each(const std::vector<PieceRange>& ranges, Do f) {
  for (const PieceRange& range : ranges)
    for (int64_t i = 0; i < range.n; i++)
      if (!range.starts || range.starts[i] < range.starts[i + 1]) f(range.first + i);
}

// ---- pieces and slots ----

bool Pager::takes(const PackedMatrix& matrix) const {
  const int64_t panels = settings_.slot_bytes / matrix.panel_bytes;
  return panels > 0 && panels * matrix.panel_rows * file_row_bytes(matrix.format, matrix.cols) <= most_read_bytes(settings_);
}

int64_t Pager::add(PackedMatrix& matrix, PanelLayout layout, const std::vector<Extent>& extents) {
  const Lock lock(mutex_);
  const int64_t panels_each = settings_.slot_bytes / matrix.panel_bytes, first = int64_t(pieces_.size());
  const int64_t n_slots = (matrix.n_panels + panels_each - 1) / panels_each;
  constexpr int64_t BEYOND = 4;  // kernels fetch panels past the last
  const int64_t n_places = matrix.n_stack * n_slots + BEYOND;
  matrix.places = {std::shared_ptr<const std::byte*[]>(new const std::byte*[size_t(n_places)]), panels_each, n_slots};
  std::fill_n(matrix.places.at.get(), n_places, blank());
  matrices_.push_back(matrix);
  for (int64_t i = 0; i < matrix.n_stack; i++) {
    pieces_.push_back({&matrices_.back(), layout, i, extents[size_t(i)], n_slots, {}, State::ABSENT, false, 0, 0, {}});
    cycle_.add();
  }
  return first;
}

const std::byte* Pager::blank() const {
  return blank_.data() + (64 - reinterpret_cast<uintptr_t>(blank_.data()) % 64) % 64;
}

void Pager::place(const Piece& piece) {
  const std::byte** places = piece.matrix->places.at.get() + piece.index * piece.slots_needed;
  for (int64_t i = 0; i < piece.slots_needed; i++)
    places[i] = piece.state == State::READY ? arena_.get() + piece.slots[size_t(i)] * settings_.slot_bytes : blank();
}

int64_t Pager::victim() const {
  int64_t found = -1;
  for (const int64_t number : present_) {
    const Piece& piece = pieces_[size_t(number)];
    if (piece.n_pins > 0 || piece.state != State::READY) continue;
    if (found < 0 || goes_first(settings_.policy, piece.use, pieces_[size_t(found)].use)) found = number;
  }
  return found;
}

void Pager::evict(int64_t number) {
  Piece& piece = pieces_[size_t(number)];
  free_.insert(free_.end(), piece.slots.begin(), piece.slots.end());
  piece.slots.clear();
  piece.state = State::ABSENT;
  place(piece);
  present_.erase(std::find(present_.begin(), present_.end(), number));
}

bool Pager::may_go(const Piece& piece, const Piece& wanted, bool ahead) const {
  if (piece.n_pins > 0 || piece.state != State::READY) return false;
  return !ahead || may_replace(settings_.policy, wanted.use, piece.use);
}

int64_t Pager::n_can_be_free(const Piece& wanted, bool ahead) const {
  int64_t n = int64_t(free_.size());
  for (const int64_t number : present_)
    if (may_go(pieces_[size_t(number)], wanted, ahead)) n += pieces_[size_t(number)].slots_needed;
  return n;
}

// Evicts as many pieces as it takes, or none where all of them are too few. Those that may go are the first to go.
bool Pager::free_slots(int64_t n, const Piece& wanted, bool ahead) {
  if (int64_t(free_.size()) >= n) return true;
  if (n_can_be_free(wanted, ahead) < n) return false;
  while (int64_t(free_.size()) < n) {
    evict(victim());
    counts_.n_evictions++;
  }
  return true;
}

// Has an absent piece read; false while there are no slots for it.
bool Pager::start(int64_t number, bool ahead) {
  Piece& piece = pieces_[size_t(number)];
  if (!free_slots(piece.slots_needed, piece, ahead)) return false;
  const std::vector<FileRead> reads = reads_of(number);
  present_.reserve(present_.size() + 1);
  piece.slots.assign(free_.end() - piece.slots_needed, free_.end());
  loader_->post(reads, !ahead);  // the last that may throw: what arrives waits for the lock
  free_.resize(free_.size() - size_t(piece.slots_needed));
  piece.state = State::READING;
  piece.is_void = false;
  piece.use.n_misses++;
  present_.push_back(number);
  piece.reads_left = int64_t(reads.size());
  return true;
}

// ---- reading ----

// One read for every slot: the rows of its panels.
std::vector<FileRead> Pager::reads_of(int64_t number) const {
  const Piece& piece = pieces_[size_t(number)];
  const PackedMatrix& m = *piece.matrix;
  const int64_t row_bytes = file_row_bytes(m.format, m.cols), rows_each = panels_per_slot(m) * m.panel_rows;
  std::vector<FileRead> reads;
  for (int64_t i = 0; i < piece.slots_needed; i++) {
    const int64_t begin = i * rows_each, end = std::min(m.rows, begin + rows_each);
    const int64_t offset = piece.extent.offset + begin * row_bytes;
    reads.push_back({piece.extent.file, offset, (end - begin) * row_bytes, number << 32 | i});
  }
  return reads;
}

// Called by a reading thread. Nobody else touches the slots of a piece that is being read.
void Pager::arrived(const FileRead& read, const std::byte* bytes, const ReadFailure& failure) {
  const int64_t number = read.token >> 32, index = read.token & 0xffffffff;
  Lock lock(mutex_);
  const PackedMatrix* matrix = pieces_[size_t(number)].matrix;
  const PanelLayout layout = pieces_[size_t(number)].layout;
  std::byte* slot = arena_.get() + pieces_[size_t(number)].slots[size_t(index)] * settings_.slot_bytes;
  lock.unlock();
  if (bytes) {
    const int64_t begin = index * panels_per_slot(*matrix), end = std::min(matrix->n_panels, begin + panels_per_slot(*matrix));
    fill_slot(*matrix, layout, begin, end, bytes, slot);
  }
  lock.lock();
  Piece& piece = pieces_[size_t(number)];
  n_arrived_++;
  counts_.n_bytes_read += read.n_bytes;
  if (!bytes) {
    piece.is_void = true;
    if (piece.n_pins > 0) fail(failure);  // what nobody waits for is tried again when somebody does
  }
  if (--piece.reads_left == 0) {
    piece.state = State::READY;
    if (piece.is_void) evict(number);
    else place(piece);
    changed_.notify_all();
  }
}

void Pager::fail(ReadFailure failure) {
  if (failure_.kind == ReadError::NONE) failure_ = std::move(failure);
  changed_.notify_all();
}

void Pager::read_ahead(int64_t piece) {
  for (int i = 0; i < settings_.n_ahead && settings_.policy == SlotPolicy::CYCLE; i++) {
    piece = cycle_.after(piece);
    if (pieces_[size_t(piece)].state == State::ABSENT && !start(piece, true)) return;
  }
}

// ---- what ops call ----

// Starts what is absent; true: something still is, as all slots are taken for now.
bool Pager::start_all(const std::vector<PieceRange>& ranges) {
  bool lacks = false;
  each(ranges, [&](int64_t number) {
    if (pieces_[size_t(number)].state == State::ABSENT && !lacks) lacks = !start(number, false);
  });
  return lacks;
}

void Pager::wait_for(const std::vector<PieceRange>& ranges, Lock& lock) {
  const auto is_missing = [&] {
    bool missing = false;
    each(ranges, [&](int64_t number) { missing |= pieces_[size_t(number)].state != State::READY; });
    return missing;
  };
  auto moved = Clock::now();
  for (int64_t seen = n_arrived_; failure_.kind == ReadError::NONE && is_missing();) {
    start_all(ranges);
    changed_.wait_for(lock, LOOK_AGAIN);
    if (std::exchange(seen, n_arrived_) != n_arrived_) moved = Clock::now();
    std::string label;
    const bool is_late = std::chrono::duration<double>(Clock::now() - moved).count() > settings_.stall_s;
    if (loader_->replace_stalled(settings_.stall_s, &label) || is_late)
      fail({ReadError::STALLED, "Reading " + (label.empty() ? "weights" : "the file " + label) + " took more than " + std::to_string(int(settings_.stall_s)) + " s"});
  }
}

// Returns the last of them; -1: there is none.
int64_t Pager::pin(const std::vector<PieceRange>& ranges) {
  turn_++;
  int64_t last = -1;
  each(ranges, [&](int64_t number) {
    Piece& piece = pieces_[size_t(number)];
    if (piece.n_pins++ == 0) n_pinned_ += piece.slots_needed;
    piece.use.last = turn_;
    (piece.state == State::READY ? counts_.n_hits : counts_.n_misses)++;
    cycle_.used(last = number);
  });
  return last;
}

bool Pager::await_pinned(const std::vector<PieceRange>& ranges, int64_t last, Lock& lock) {
  if (n_pinned_ > settings_.n_slots)
    fail({ReadError::NO_ROOM, "One part of a step reads " + std::to_string(n_pinned_) + " slots of weights, and there is memory for " +
                                  std::to_string(settings_.n_slots)});
  if (failure_.kind != ReadError::NONE) return false;
  const auto began = Clock::now();
  start_all(ranges);
  if (last >= 0) read_ahead(last);
  wait_for(ranges, lock);
  counts_.wait_s += std::chrono::duration<double>(Clock::now() - began).count();
  return failure_.kind == ReadError::NONE;
}

bool Pager::await(const std::vector<PieceRange>& ranges) {
  Lock lock(mutex_);
  const int64_t last = pin(ranges);
  try {
    return await_pinned(ranges, last, lock);
  } catch (const std::exception&) {
    fail({ReadError::FAILED, "Out of memory"});  // short, so that it takes none
    return false;
  }
}

void Pager::release(const std::vector<PieceRange>& ranges) {
  const Lock lock(mutex_);
  int64_t last = -1;
  each(ranges, [&](int64_t number) {
    Piece& piece = pieces_[size_t(last = number)];
    if (--piece.n_pins == 0) n_pinned_ -= piece.slots_needed;
  });
  changed_.notify_all();
  if (last < 0 || failure_.kind != ReadError::NONE) return;
  try {
    read_ahead(last);
  } catch (const std::exception&) {  // it is read when it is needed
  }
}

void Pager::expect(const std::vector<PieceRange>& ranges) {
  const Lock lock(mutex_);
  try {
    each(ranges, [&](int64_t number) {
      Piece& piece = pieces_[size_t(number)];
      piece.use.last = turn_;
      if (piece.state == State::ABSENT) start(number, true);
    });
  } catch (const std::exception&) {  // they are read when they are needed
  }
}

void Pager::forget() {
  const Lock lock(mutex_);
  for (const int64_t number : std::vector<int64_t>(present_)) {
    Piece& piece = pieces_[size_t(number)];
    if (piece.state == State::READING) piece.is_void = true;
    else if (piece.n_pins == 0) evict(number);
  }
}

ReadFailure Pager::take_failure() {
  const Lock lock(mutex_);
  return std::exchange(failure_, {});
}

PagerCounts Pager::counts() const {
  const Lock lock(mutex_);
  return counts_;
}

void await_pieces(const AwaitOp& op, Worker worker) {
  if (worker.thread != 0) return;
  if (op.pager->await(op.ranges) && !op.soon.empty()) op.pager->expect(op.soon);
}

void release_pieces(const AwaitOp& op, Worker worker) {
  if (worker.thread == 0) op.pager->release(op.ranges);
}

}  // namespace tahr
