#include "pack.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "quants.h"
#include "threads.h"

namespace tahr {

bool find_format(const char* name, Format* format) {
  for (int i = 0; i < N_FORMATS; i++)
    if (strcmp(FORMAT_ROWS[i].name, name) == 0) {
      *format = Format(i);
      return true;
    }
  return false;
}

const char* format_name(Format format) { return row_of(format).name; }
int64_t block_cols(Format format) { return row_of(format).block_cols; }
int64_t block_bytes(Format format) { return row_of(format).block_bytes; }
int64_t file_row_bytes(Format format, int64_t cols) { return cols / block_cols(format) * block_bytes(format); }

namespace {

constexpr int64_t ALIGNMENT = 64;
constexpr int64_t HUGE_PAGE = int64_t{1} << 21;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

using Memory = std::shared_ptr<std::byte[]>;

// Decoding reads every byte once per token, and page walks would show: so all matrices ask for huge pages.
Memory huge_pages(int64_t n_bytes) {
  void* p = std::aligned_alloc(size_t(HUGE_PAGE), size_t(round_up(n_bytes, HUGE_PAGE)));
  if (!p) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  madvise(p, size_t(n_bytes), MADV_HUGEPAGE);
#endif
  return Memory(static_cast<std::byte*>(p), [](std::byte* bytes) { std::free(bytes); });
}

// Small matrices lie side by side in chunks, in the order they come. A chunk is freed with the last of them; pages of it that
// none has reached cost nothing.
class Chunks {
 public:
  Memory take(int64_t n_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Memory chunk = newest_.lock();
    if (!chunk || taken_ + n_bytes > CHUNK_BYTES) newest_ = chunk = huge_pages(CHUNK_BYTES), taken_ = 0;
    std::byte* begin = chunk.get() + taken_;
    taken_ += round_up(n_bytes, ALIGNMENT);
    return Memory(std::move(chunk), begin);
  }

 private:
  static constexpr int64_t CHUNK_BYTES = 16 * HUGE_PAGE;
  std::mutex mutex_;
  std::weak_ptr<std::byte[]> newest_;
  int64_t taken_ = 0;
};

Memory allocate(int64_t n_bytes) {
  static Chunks chunks;
  return n_bytes < 4 * HUGE_PAGE ? chunks.take(n_bytes) : huge_pages(n_bytes);
}

// One panel to fill with `rows` rows of the file; it may be short of a full panel.
struct PanelJob {
  const uint8_t* source;
  int64_t row_bytes, rows, cols;
  PanelLayout layout;
  uint8_t* panel;
};

// Column by column, the numbers of all rows of the panel.
template <class Number>
void pack_dense(const PanelJob& job) {
  const int64_t size = sizeof(Number), step = job.layout.panel_rows * size;
  for (int64_t r = 0; r < job.rows; r++) {
    const uint8_t* from = job.source + r * job.row_bytes;
    uint8_t* to = job.panel + r * size;
    for (int64_t c = 0; c < job.cols; c++) memcpy(to + c * step, from + c * size, size);
  }
}

constexpr int MAX_PANEL_ROWS = 16;

// Eight vectors of codes, as the kernel will hold them after unpacking.
struct Vectors {
  uint32_t words[8 * MAX_PANEL_ROWS];
};

// Flipping the highest bit of a code takes its offset away, and leaves two's complement.
uint32_t flipped_bits(const FormatRow& row, const PanelLayout& layout) {
  return layout.signed_codes && (row.bits == 4 || row.bits == 6) ? uint32_t(row.offset) * quants::ONES : 0;
}

void put_words(const Piece& piece, const PanelLayout& layout, uint32_t flip, int64_t r, Vectors& vectors) {
  const int64_t n = layout.panel_rows;
  for (int g = 0; g < 8; g++) {
    const int64_t at = layout.octets ? g / 2 * 2 * n + 2 * r + g % 2 : g * n + r;
    vectors.words[at] = piece.words[g] ^ flip;
  }
}

// Word `at` of plane `plane`: `Width` bits, from bit `Low` up, of 8 / Width vectors of codes.
template <int Width, int Low>
uint32_t plane_word(const Vectors& vectors, int64_t n, int plane, int64_t at) {
  constexpr int count = 8 / Width;
  constexpr uint32_t mask = ((1u << Width) - 1) * quants::ONES;
  uint32_t word = 0;
  for (int i = 0; i < count; i++) {
    // Nibble planes pair vector v with v + 4; narrower planes take neighbours.
    const int v = Width == 4 ? plane + 4 * i : plane * count + i;
    word |= (vectors.words[v * n + at] >> Low & mask) << (Width * i);
  }
  return word;
}

template <int Width, int Low>
uint8_t* put_planes(const Vectors& vectors, int64_t n, uint8_t* out) {
  for (int plane = 0; plane < Width; plane++)
    for (int64_t at = 0; at < n; at++, out += 4) {
      const uint32_t word = plane_word<Width, Low>(vectors, n, plane, at);
      memcpy(out, &word, sizeof word);
    }
  return out;
}

// Four vectors of 6-bit codes in three: the first three codes in the upper bits of a byte, the fourth in what is left.
void put_triples(const Vectors& vectors, int64_t n, uint8_t* out) {
  for (int half = 0; half < 2; half++)
    for (int i = 0; i < 3; i++)
      for (int64_t at = 0; at < n; at++, out += 4) {
        const uint32_t* words = vectors.words + half * 4 * n + at;
        const uint32_t word = words[i * n] << 2 | (words[3 * n] >> (4 - 2 * i) & quants::PAIRS);
        memcpy(out, &word, sizeof word);
      }
}

template <int Bits>
void put_codes(const Vectors& vectors, const PanelLayout& layout, uint8_t* out) {
  const int64_t n = layout.panel_rows;
  if (Bits == 6 && layout.signed_codes) return put_triples(vectors, n, out);
  if constexpr (Bits == 8)
    for (int64_t at = 0; at < 8 * n; at++, out += 4) {
      const uint32_t word = vectors.words[at] ^ layout.q8_offset * quants::ONES;  // adds 128 to each byte, or nothing
      memcpy(out, &word, sizeof word);
    }
  if constexpr (Bits < 4) out = put_planes<2, 0>(vectors, n, out);
  if constexpr (Bits == 3) put_planes<1, 2>(vectors, n, out);
  if constexpr (Bits >= 4 && Bits < 8) out = put_planes<4, 0>(vectors, n, out);
  if constexpr (Bits == 5) put_planes<1, 4>(vectors, n, out);
  if constexpr (Bits == 6) put_planes<2, 4>(vectors, n, out);
}

// Which bytes of the eight vectors belong to negative columns, a bit each.
void put_signs(const Vectors& minus, int64_t n, uint8_t* out) {
  uint8_t bytes[32 * MAX_PANEL_ROWS];
  memcpy(bytes, minus.words, size_t(32 * n));
  for (int64_t i = 0; i < 4 * n; i++) {
    out[i] = 0;
    for (int bit = 0; bit < 8; bit++) out[i] |= uint8_t((bytes[8 * i + bit] & 1) << bit);
  }
}

// A byte for each column, 1 where it is negative.
Piece minus_bytes(uint32_t minus) {
  Piece piece;
  auto* bytes = reinterpret_cast<uint8_t*>(piece.words);
  for (int i = 0; i < 32; i++) bytes[i] = minus >> i & 1;
  return piece;
}

// The codewords of row r; the signs of all rows follow them, and are written by `put_signs`.
template <Format F>
void put_codewords(const Piece& piece, const PanelLayout& layout, int64_t r, uint8_t* out, Vectors& minus) {
  constexpr int count = n_codewords(F), high_bits = row_of(F).spelling.high_bits;
  const int64_t n = layout.panel_rows;
  uint32_t high = 0;
  for (int i = 0; i < count; i++) {
    out[i * n + r] = uint8_t(piece.index[i]);
    high |= uint32_t(piece.index[i] >> 8) << high_bits * i;
  }
  for (int i = 0; i < n_high_bytes(F); i++) out[(count + i) * n + r] = uint8_t(high >> 8 * i);
  if constexpr (row_of(F).spelling.has_signs) put_words(minus_bytes(piece.minus), layout, 0, r, minus);
}

// Writes the scales of row r; `unit` begins the scales of the 32 or 256 columns, of which this is piece `index`.
template <Format F>
void put_scales(const Piece& piece, int64_t n, int64_t r, int index, uint8_t* unit) {
  constexpr FormatRow row = row_of(F);
  constexpr int floats = has_min(row.scales) ? 4 : 2, n_groups = 32 / row.group;
  memcpy(unit + 2 * r, &piece.scale, 2);
  if constexpr (has_min(row.scales)) memcpy(unit + 2 * n + 2 * r, &piece.min, 2);
  uint8_t* subs = unit + floats * n;
  for (int i = 0; i < n_groups && has_super(row.scales); i++) {
    const int64_t group = index * n_groups + i;
    if constexpr (row.scales == Scales::SUPER) subs[group * n + r] = uint8_t(piece.sub_scale[i]);
    if constexpr (row.scales == Scales::SUPER_SHORT)
      subs[group * n + r] = uint8_t(piece.sub_scale[i] | piece.sub_min[i] << 4);
    if constexpr (row.scales == Scales::SUPER_MIN) {
      subs[2 * group * n + r] = uint8_t(piece.sub_scale[i]);
      subs[(2 * group + 1) * n + r] = uint8_t(piece.sub_min[i]);
    }
    if constexpr (row.scales == Scales::SUPER_ODD) {
      uint8_t& both = subs[group / 2 * n + r];
      both = uint8_t(group % 2 ? both | piece.sub_scale[i] >> 1 << 4 : piece.sub_scale[i] >> 1);
    }
  }
}

template <Format F>
void pack_quantised(const PanelJob& job) {
  constexpr FormatRow row = row_of(F);
  constexpr int pieces = row.block_cols / 32, unit_pieces = int(scale_cols(row.scales) / 32);
  const int64_t n = job.layout.panel_rows, n_pieces = job.cols / 32;
  uint8_t* scales = job.panel + n_pieces * piece_bytes(F, job.layout.panel_rows);
  Vectors vectors = {};  // of codes, or of signs
  for (int64_t p = 0; p < n_pieces; p++) {
    uint8_t* codes = job.panel + p * piece_bytes(F, job.layout.panel_rows);
    for (int64_t r = 0; r < job.rows; r++) {
      Piece piece;
      row.read(job.source + r * job.row_bytes + p / pieces * row.block_bytes, int(p % pieces), piece);
      if constexpr (is_spelt(F)) put_codewords<F>(piece, job.layout, r, codes, vectors);
      else put_words(piece, job.layout, flipped_bits(row, job.layout), r, vectors);
      put_scales<F>(piece, n, r, int(p % unit_pieces), scales + p / unit_pieces * scale_bytes(F, job.layout.panel_rows));
    }
    if constexpr (!is_spelt(F)) put_codes<row.bits>(vectors, job.layout, codes);
    else if constexpr (row.spelling.has_signs) put_signs(vectors, n, codes + (n_codewords(F) + n_high_bytes(F)) * n);
  }
}

template <Format F>
void pack_panel(const PanelJob& job) {
  if constexpr (F == Format::F32) pack_dense<uint32_t>(job);
  else if constexpr (is_dense(F)) pack_dense<uint16_t>(job);
  else pack_quantised<F>(job);
}

using PackPanel = void (*)(const PanelJob&);

template <size_t... I>
PackPanel pick_packer(Format format, std::index_sequence<I...>) {
  constexpr PackPanel table[] = {pack_panel<Format(I)>...};
  return table[int(format)];
}

void pack_one(const PackedMatrix& matrix, PanelLayout layout, const uint8_t* source, PackPanel packer, int64_t index, std::byte* to) {
  const int64_t rows = rows_before(matrix, index + 1) - rows_before(matrix, index);
  uint8_t* panel = reinterpret_cast<uint8_t*>(to);
  if (rows < layout.panel_rows) memset(panel, 0, size_t(matrix.panel_bytes));
  packer({source, file_row_bytes(matrix.format, matrix.cols), rows, matrix.cols, layout, panel});
}

}  // namespace

int64_t packed_panel_bytes(Format format, int64_t cols, int panel_rows) {
  if (is_dense(format)) return round_up(cols * panel_rows * row_of(format).bits / 8, ALIGNMENT);
  const int64_t codes = cols / 32 * piece_bytes(format, panel_rows);
  return round_up(codes + cols / scale_cols(row_of(format).scales) * scale_bytes(format, panel_rows), ALIGNMENT);
}

PackedMatrix shape_packed(Format format, PanelLayout layout, int64_t n_stack, int64_t rows, int64_t cols) {
  PackedMatrix matrix{format, layout.panel_rows, n_stack, rows, cols, 0, 0, 0, nullptr, {}};
  matrix.n_panels = round_up(rows, layout.panel_rows) / layout.panel_rows;
  matrix.panel_bytes = packed_panel_bytes(format, cols, layout.panel_rows);
  matrix.n_bytes = n_stack * matrix.n_panels * matrix.panel_bytes;
  return matrix;
}

PackedMatrix make_packed(Format format, PanelLayout layout, int64_t n_stack, int64_t rows, int64_t cols) {
  PackedMatrix matrix = shape_packed(format, layout, n_stack, rows, cols);
  matrix.data = allocate(matrix.n_bytes);
  return matrix;
}

int64_t rows_before(const PackedMatrix& matrix, int64_t panel) {
  return panel / matrix.n_panels * matrix.rows + panel % matrix.n_panels * matrix.panel_rows;
}

void fill_panels(PackedMatrix& matrix, PanelLayout layout, int64_t begin, int64_t end, const std::byte* source, Pool* pool) {
  const PackPanel packer = pick_packer(matrix.format, std::make_index_sequence<N_FORMATS>{});
  const int64_t row_bytes = file_row_bytes(matrix.format, matrix.cols), first = rows_before(matrix, begin);
  const auto* bytes = reinterpret_cast<const uint8_t*>(source);
  const auto some = [&](Range panels) {
    for (int64_t i = begin + panels.begin; i < begin + panels.end; i++)
      pack_one(matrix, layout, bytes + (rows_before(matrix, i) - first) * row_bytes, packer, i,
               matrix.data.get() + i * matrix.panel_bytes);
  };
  if (!pool) some({0, end - begin});
  else pool->run([&](const Worker& worker) { some(share(end - begin, worker)); });
}

void fill_slot(const PackedMatrix& matrix, PanelLayout layout, int64_t begin, int64_t end, const std::byte* source, std::byte* slot) {
  const PackPanel packer = pick_packer(matrix.format, std::make_index_sequence<N_FORMATS>{});
  const int64_t row_bytes = file_row_bytes(matrix.format, matrix.cols), first = rows_before(matrix, begin);
  const auto* bytes = reinterpret_cast<const uint8_t*>(source);
  for (int64_t i = begin; i < end; i++)
    pack_one(matrix, layout, bytes + (rows_before(matrix, i) - first) * row_bytes, packer, i, slot + (i - begin) * matrix.panel_bytes);
}

PackedMatrix pack(Format format, PanelLayout layout, int64_t n_stack, int64_t rows, int64_t cols, const std::byte* source,
                  Pool* pool) {
  PackedMatrix matrix = make_packed(format, layout, n_stack, rows, cols);
  fill_panels(matrix, layout, 0, n_stack * matrix.n_panels, source, pool);
  return matrix;
}

}  // namespace tahr
