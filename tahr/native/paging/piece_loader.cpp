#include "piece_loader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace tahr {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int MOST_GIVEN_UP = 8;  // threads at once that hang in the system: each keeps its memory
constexpr int64_t SECTOR = 4096;  // what reads past the system's cache are aligned to

int64_t round_down(int64_t n) { return n / SECTOR * SECTOR; }
int64_t round_up(int64_t n) { return round_down(n + SECTOR - 1); }

struct Freed {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Staging = std::unique_ptr<std::byte, Freed>;

struct OpenedFile {
  int plain = -1, direct = -1;
  std::string label;
  PieceLoader::Source source;
};

// The same file once more, without the system's cache; -1 where the file system has no such reads.
int reopen_direct([[maybe_unused]] int descriptor) {
#if defined(__linux__) && defined(O_DIRECT)
  return open(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
#elif defined(F_NOCACHE)
  fcntl(descriptor, F_NOCACHE, 1);  // the same descriptor then reads past the cache, at any offset
  return -1;
#else
  return -1;
#endif
}

int64_t read_some(const OpenedFile& file, int descriptor, std::byte* to, int64_t n_bytes, int64_t offset) {
  if (file.source) return file.source(to, n_bytes, offset);
  for (;;) {
    const ssize_t n = pread(descriptor, to, size_t(n_bytes), off_t(offset));
    if (n >= 0 || errno != EINTR) return n >= 0 ? int64_t(n) : -int64_t(errno);
  }
}

// Reads until `wanted` bytes are there, asking for up to `n_bytes`; returns an errno, -1 past the end, or 0.
int read_all(const OpenedFile& file, int descriptor, std::byte* to, int64_t n_bytes, int64_t wanted, int64_t offset) {
  for (int64_t done = 0; done < wanted;) {
    const int64_t n = read_some(file, descriptor, to + done, n_bytes - done, offset + done);
    if (n <= 0) return n == 0 ? -1 : int(-n);
    if (n > n_bytes - done) return EIO;  // a source that wrote too much
    done += n;
    if (descriptor == file.direct && descriptor >= 0 && done < wanted && done % SECTOR) return -1;  // only at the end
  }
  return 0;
}

ReadFailure failure_of(int error, const OpenedFile& file) {
  if (error == 0) return {};
  if (error < 0) return {ReadError::END, "The file " + file.label + " ends before the weights that it should hold"};
  return {ReadError::FAILED, "The file " + file.label + " could not be read: " + std::strerror(error)};
}

}  // namespace

// A reading thread; one that hangs is given up, and says nothing when it comes back.
struct Reader {
  Staging staging;
  bool is_reading = false, is_given_up = false;
  FileRead read{};
  Clock::time_point began{};
  std::thread thread;
};

struct PieceLoader::Shared {
  int64_t most_bytes;
  Sink sink;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<FileRead> waiting;
  std::deque<OpenedFile> files;  // addresses stay
  std::vector<std::shared_ptr<Reader>> readers;
  int n_given_up = 0;  // those that have not come back
  bool closing = false;

  ~Shared() {
    for (const OpenedFile& file : files)
      for (const int descriptor : {file.plain, file.direct})
        if (descriptor >= 0) close(descriptor);
  }

  std::byte* fetch(Reader& reader, OpenedFile& file, ReadFailure* failure);
  void work(const std::shared_ptr<Reader>& reader);
};

// The bytes of a read, somewhere in the reader's memory; null where it failed.
std::byte* PieceLoader::Shared::fetch(Reader& reader, OpenedFile& file, ReadFailure* failure) {
  const FileRead read = reader.read;
  if (file.direct >= 0) {
    const int64_t begin = round_down(read.offset), end = read.offset + read.n_bytes;
    const int error = read_all(file, file.direct, reader.staging.get(), round_up(end) - begin, end - begin, begin);
    if (error != EINVAL) {
      *failure = failure_of(error, file);
      return error ? nullptr : reader.staging.get() + (read.offset - begin);
    }
  }  // EINVAL: the file was opened so, but cannot be read so
  const int error = read_all(file, file.plain, reader.staging.get(), read.n_bytes, read.n_bytes, read.offset);
  *failure = failure_of(error, file);
#if defined(POSIX_FADV_DONTNEED)
  if (file.plain >= 0) posix_fadvise(file.plain, off_t(round_down(read.offset)), off_t(round_up(read.n_bytes) + SECTOR), POSIX_FADV_DONTNEED);
#endif
  return error ? nullptr : reader.staging.get();
}

void PieceLoader::Shared::work(const std::shared_ptr<Reader>& reader) {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    wake.wait(lock, [&] { return closing || !waiting.empty(); });
    if (closing) return;
    reader->read = waiting.front();
    waiting.pop_front();
    OpenedFile& file = files[size_t(reader->read.file)];
    reader->is_reading = true;
    reader->began = Clock::now();
    lock.unlock();
    ReadFailure failure;
    const std::byte* bytes = fetch(*reader, file, &failure);
    lock.lock();
    if (reader->is_given_up) {  // somebody else reads it, and the loader may be gone
      n_given_up--;
      return;
    }
    reader->is_reading = false;
    const FileRead read = reader->read;
    lock.unlock();
    sink(read, bytes, failure);
    lock.lock();
  }
}

PieceLoader::PieceLoader(int n_readers, int64_t most_bytes, Sink sink) : shared_(std::make_shared<Shared>()) {
  shared_->most_bytes = most_bytes;
  shared_->sink = std::move(sink);
  try {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    for (int i = 0; i < n_readers; i++) start_reader();
  } catch (...) {
    end_readers();
    throw;
  }
}

PieceLoader::~PieceLoader() { end_readers(); }

void PieceLoader::end_readers() {
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->closing = true;
    for (const auto& reader : shared_->readers) reader->is_given_up = reader->is_reading;  // the system may never answer
  }
  shared_->wake.notify_all();
  for (const auto& reader : shared_->readers) reader->is_given_up ? reader->thread.detach() : reader->thread.join();
}

void PieceLoader::start_reader() {
  auto reader = std::make_shared<Reader>();
  const size_t n_bytes = size_t(round_up(shared_->most_bytes) + SECTOR);
  reader->staging.reset(static_cast<std::byte*>(std::aligned_alloc(SECTOR, n_bytes)));
  if (!reader->staging) throw std::bad_alloc();
  shared_->readers.reserve(shared_->readers.size() + 1);  // nothing may fail once the thread is there
  reader->thread = std::thread([shared = shared_, reader] { shared->work(reader); });
  shared_->readers.push_back(reader);
}

int PieceLoader::add_file(int descriptor, const std::string& label) {
  const int plain = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (plain < 0) return -1;
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->files.push_back({plain, reopen_direct(plain), label, nullptr});
  return int(shared_->files.size()) - 1;
}

int PieceLoader::add_source(Source source, const std::string& label) {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->files.push_back({-1, -1, label, std::move(source)});
  return int(shared_->files.size()) - 1;
}

void PieceLoader::post(const std::vector<FileRead>& reads, bool first) {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  auto& waiting = shared_->waiting;
  waiting.insert(first ? waiting.begin() : waiting.end(), reads.begin(), reads.end());
  shared_->wake.notify_all();
}

// Has another thread read what the i-th does; where there is no memory or thread for that, it stays.
void PieceLoader::replace(size_t i) {
  const std::shared_ptr<Reader> reader = shared_->readers[i];
  bool is_waiting = false;
  try {
    shared_->waiting.push_front(reader->read);
    is_waiting = true;
    start_reader();
  } catch (const std::exception&) {
    if (is_waiting) shared_->waiting.pop_front();
    return;
  }
  reader->is_given_up = true;
  shared_->n_given_up++;
  reader->thread.detach();
  shared_->readers.erase(shared_->readers.begin() + int64_t(i));
}

bool PieceLoader::replace_stalled(double limit_s, std::string* label) {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  const auto now = Clock::now();
  bool found = false;
  auto& readers = shared_->readers;
  for (size_t i = readers.size(); i-- > 0;) {
    const std::shared_ptr<Reader> reader = readers[i];
    if (!reader->is_reading || std::chrono::duration<double>(now - reader->began).count() < limit_s) continue;
    found = true;
    *label = shared_->files[size_t(reader->read.file)].label;
    if (shared_->n_given_up < MOST_GIVEN_UP) replace(i);
  }
  if (found) shared_->wake.notify_all();
  return found;
}

int64_t PieceLoader::staging_bytes() const {
  return int64_t(shared_->readers.size()) * (round_up(shared_->most_bytes) + SECTOR);
}

bool PieceLoader::is_direct(int file) const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->files[size_t(file)].direct >= 0;
}

}  // namespace tahr
