// Weights rearranged at load into panels: a few rows side by side, so that one vector register holds the same columns
// of every row of the panel and a dot product needs no sum across its lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tahr {

class Pool;

enum class Format : uint8_t {
  F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
  TQ1_0, TQ2_0, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S
};
constexpr int N_FORMATS = 25;

// The format of that name ("Q4_K"), or false when there is no native kernel for it.
bool find_format(const char* name, Format* format);
const char* format_name(Format format);

// Dense formats meet f32 rows, the others quantised rows.
constexpr bool is_dense(Format format) { return format <= Format::BF16; }

// Columns of a row come in blocks of so many, and a block takes so many bytes in a file.
int64_t block_cols(Format format);
int64_t block_bytes(Format format);
int64_t file_row_bytes(Format format, int64_t cols);  // cols must be a multiple of block_cols

// How an instruction set wants its panels.
struct PanelLayout {
  int panel_rows;     // 8, or 16 where registers hold 16 numbers
  uint8_t q8_offset;  // added to signed 8-bit codes: 128 where the dot product takes unsigned weights, else 0
  bool octets;        // a row's columns lie together in eights, not fours: for 2 x 8 by 8 x 2 matrix instructions
  bool signed_codes;  // codes of 4 and 6 bits that have an offset are two's complement, and four of 6 bits lie in three bytes
};

// Where the panels of a matrix are that is not in one piece of memory: so many lie together, and `n_each` such places hold
// one matrix of a stack.
struct Places {
  std::shared_ptr<const std::byte*[]> at;
  int64_t panels_each = 0, n_each = 0;
};

// A matrix [rows, cols], or a stack of `n_stack` such, in panels. The last panel is padded with zero rows.
struct PackedMatrix {
  Format format;
  int panel_rows;
  int64_t n_stack, rows, cols;
  int64_t n_panels;     // of one matrix
  int64_t panel_bytes;  // a multiple of 64
  int64_t n_bytes;      // of all
  std::shared_ptr<std::byte[]> data;  // 64-byte aligned, this matrix's alone; null if it has places
  Places places = {};

  const std::byte* panel(int64_t matrix, int64_t index) const {
    if (places.at) return places.at[matrix * places.n_each + index / places.panels_each] + index % places.panels_each * panel_bytes;
    return data.get() + (matrix * n_panels + index) * panel_bytes;
  }

  // Whether `n` panels from `index` on lie one behind the other.
  bool are_together(int64_t index, int64_t n) const {
    return !places.at || index / places.panels_each == (index + n - 1) / places.panels_each;
  }
};

// Bytes of one panel.
int64_t packed_panel_bytes(Format format, int64_t cols, int panel_rows);

// One without memory.
PackedMatrix shape_packed(Format format, PanelLayout layout, int64_t n_stack, int64_t rows, int64_t cols);

// An empty one, to be filled panel by panel. Throws std::bad_alloc when memory is short.
PackedMatrix make_packed(Format format, PanelLayout layout, int64_t n_stack, int64_t rows, int64_t cols);

// Rows that lie before a panel, counted through the whole stack; for the number of all panels, the number of all rows.
int64_t rows_before(const PackedMatrix& matrix, int64_t panel);

// Fills panels [begin, end) from their rows in a file's layout at `source`, with all threads of the pool (or only the
// caller's when it is null).
void fill_panels(PackedMatrix& matrix, PanelLayout layout, int64_t begin, int64_t end, const std::byte* source, Pool* pool);

// Fills panels [begin, end) of any matrix of the stack into other memory, at `slot`; for any thread.
void fill_slot(const PackedMatrix& matrix, PanelLayout layout, int64_t begin, int64_t end, const std::byte* source, std::byte* slot);

// Reads exactly n_stack * rows * file_row_bytes(format, cols) bytes at `source`, using all threads of the pool (or only the
// caller's when it is null). The caller has checked that the file holds them. Throws std::bad_alloc when memory is short.
PackedMatrix pack(Format format, PanelLayout layout, int64_t n_stack, int64_t rows, int64_t cols, const std::byte* source,
                  Pool* pool);

}  // namespace tahr
