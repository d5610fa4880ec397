// Threads that read stretches of files, several at once, past the system's cache where the file system allows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tahr {

struct FileRead {
  int file;  // as `add_file` numbered it
  int64_t offset, n_bytes;
  int64_t token;  // the caller's own
};

enum class ReadError : uint8_t { NONE, END, FAILED, STALLED, NO_ROOM };

struct ReadFailure {
  ReadError kind = ReadError::NONE;
  std::string text;
};

class PieceLoader {
 public:
  // Called by a reading thread: the bytes stay until it returns; null where they could not be read.
  using Sink = std::function<void(const FileRead&, const std::byte* bytes, const ReadFailure&)>;
  // A source other than a file: bytes read, 0 past its end, or an errno below 0. May be called by several threads.
  using Source = std::function<int64_t(std::byte* to, int64_t n_bytes, int64_t offset)>;

  // Reads are at most so many bytes long. `sink` must be callable until the loader is gone.
  PieceLoader(int n_readers, int64_t most_bytes, Sink sink);
  ~PieceLoader();
  PieceLoader(const PieceLoader&) = delete;
  PieceLoader& operator=(const PieceLoader&) = delete;

  int add_file(int descriptor, const std::string& label);  // keeps a descriptor of its own; -1: there is no such file
  int add_source(Source source, const std::string& label);

  void post(const std::vector<FileRead>& reads, bool first);  // first: before all that wait
  // Whether threads have had no answer for so long. Others go on in their place, if they can be made and not too many
  // wait for the system already; what those read that are left is answered whenever the system answers.
  bool replace_stalled(double limit_s, std::string* label);
  int64_t staging_bytes() const;
  bool is_direct(int file) const;  // whether reads of a file pass the system's cache by

 private:
  struct Shared;
  void start_reader();
  void end_readers();
  void replace(size_t i);
  std::shared_ptr<Shared> shared_;  // threads that hang in the system outlive the loader
};

}  // namespace tahr
