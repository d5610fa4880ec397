#include <cassert>

#include "matmul_ops.h"
#include "quants.h"

namespace tahr::TAHR_ISA {

namespace {

void read_dense(Format format, const uint8_t* row, int64_t cols, float* out) {
  if (format == Format::F32) memcpy(out, row, size_t(cols) * sizeof(float));
  else if (format == Format::F16)
    for (int64_t c = 0; c < cols; c++) out[c] = float_of_f16(quants::half(row + 2 * c));
  else
    for (int64_t c = 0; c < cols; c++) out[c] = float_of_bf16(quants::half(row + 2 * c));
}

// The formula at the head of quants.h, for one group of columns.
void dequantise_group(const FormatRow& row, const Piece& piece, int group, float* out) {
  const float unit = row.scales == Scales::BRAIN ? float_of_bf16(piece.scale) : float_of_f16(piece.scale);
  const float scale = row.unit * unit * float(piece.sub_scale[group]);
  const auto* codes = reinterpret_cast<const uint8_t*>(piece.words) + group * row.group;
  const auto value = [&](uint8_t code) {
    return row.table ? row.table[code] : row.bits == 8 ? int8_t(code) : code - row.offset;
  };
  for (int i = 0; i < row.group; i++) out[i] = scale * float(value(codes[i]));
  if (!has_min(row.scales)) return;
  const float min = float_of_f16(piece.min) * float(piece.sub_min[group]);
  for (int i = 0; i < row.group; i++) out[i] -= min;
}

void read_quantised(const FormatRow& row, const uint8_t* bytes, int64_t cols, float* out) {
  const int pieces = row.block_cols / 32;
  for (int64_t p = 0; p < cols / 32; p++) {
    Piece piece;
    row.read(bytes + p / pieces * row.block_bytes, int(p % pieces), piece);
    for (int group = 0; group < 32 / row.group; group++)
      dequantise_group(row, piece, group, out + 32 * p + group * row.group);
  }
}

}  // namespace

void embed(const EmbedOp& op, Worker worker) {
  const FormatRow& row = row_of(op.format);
  const int64_t row_bytes = op.cols / row.block_cols * row.block_bytes;
  const Range rows = share(*op.n_rows, worker);
  for (int64_t t = rows.begin; t < rows.end; t++) {
    assert(op.ids[t] >= 0 && op.ids[t] < op.table_rows);
    const auto* bytes = reinterpret_cast<const uint8_t*>(op.table) + op.ids[t] * row_bytes;
    float* out = op.out + t * op.cols;
    if (is_dense(op.format)) read_dense(op.format, bytes, op.cols, out);
    else read_quantised(row, bytes, op.cols, out);
    for (int64_t c = 0; c < op.cols; c++) out[c] *= op.scale;
  }
}

}  // namespace tahr::TAHR_ISA
