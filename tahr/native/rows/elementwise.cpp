#include "elementwise.h"

#include <cmath>

#include "simd_tail.h"
#include "quantised_out.h"
#include "vecmath.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int64_t PIECE = 64;    // numbers; whole cache lines, so that two threads never write the same one
constexpr int64_t CHUNK = 2048;  // numbers that are still in the nearest cache when they are rounded

// This thread's share of the numbers: whole pieces, but for the last of all.
Range share_numbers(int64_t n_numbers, const Worker& worker) {
  const Range pieces = share((n_numbers + PIECE - 1) / PIECE, worker);
  const int64_t end = pieces.end * PIECE;
  return {pieces.begin * PIECE, end < n_numbers ? end : n_numbers};
}

// Calls `apply(i, n)` for the vectors of some numbers; n < LANES only for the last.
template <class Apply>
TAHR_INLINE void for_vectors(Range numbers, Apply apply) {
  int64_t i = numbers.begin;
  for (; i + LANES <= numbers.end; i += LANES) apply(i, LANES);
  if (i < numbers.end) apply(i, int(numbers.end - i));
}

// A number must come out the same wherever it stands, so the last few go through the same vector code as the rest.
template <class Function>
TAHR_INLINE void map(Range numbers, const float* x, float* out, Function f) {
  for_vectors(numbers, [&](int64_t i, int n) { store_some(out + i, f(load_some(x + i, n)), n); });
}

template <class Function>
TAHR_INLINE void map(Range numbers, const float* x, const float* y, float* out, Function f) {
  for_vectors(numbers, [&](int64_t i, int n) { store_some(out + i, f(load_some(x + i, n), load_some(y + i, n)), n); });
}

float sum_of_squares(const float* x, int64_t width) {
  Floats total = set1(0.0f);
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) total = fma(load(x + i), load(x + i), total);
  if (i < width) {
    const Floats last = load_part(x + i, int(width - i));
    total = fma(last, last, total);
  }
  return sum(total);
}

void norm_row(const float* x, const float* gain, float eps, int64_t width, float* out) {
  const float inverse = 1.0f / std::sqrt(sum_of_squares(x, width) / float(width) + eps);
  map({0, width}, x, gain, out, [=](Floats v, Floats gain) { return mul(mul(v, set1(inverse)), gain); });
}

float sum_of(const float* x, int64_t width) {
  Floats total = set1(0.0f);
  for_vectors({0, width}, [&](int64_t i, int n) { total = add(total, load_part(x + i, n)); });
  return sum(total);
}

// The numbers less their mean go to `out` first, so that their squares are summed without cancellation.
void layer_norm_row(const LayerNormOp& op, const float* x, const float* gain, float* out) {
  const Floats mean = set1(sum_of(x, op.width) / float(op.width));
  map({0, op.width}, x, out, [=](Floats v) { return sub(v, mean); });
  const Floats inverse = set1(1.0f / std::sqrt(sum_of_squares(out, op.width) / float(op.width) + op.eps));
  map({0, op.width}, out, gain, out, [=](Floats v, Floats gain) { return mul(mul(v, inverse), gain); });
  if (op.bias) map({0, op.width}, out, op.bias, out, [](Floats v, Floats bias) { return add(v, bias); });
}

Floats silu(Floats x) { return mul(x, sigmoid(x)); }

// x * (1 + tanh(u)) / 2 = x * sigmoid(2u) for u = sqrt(2 / pi) * (x + 0.044715 x^3)
Floats gelu_tanh(Floats x) {
  const Floats inner = fma(mul(mul(x, x), set1(0.044715f)), x, x);
  return mul(x, sigmoid(mul(set1(1.5957691216f), inner)));
}

// x * (1 + erf(x / sqrt(2))) / 2 = max(x, 0) - |x| * erfc(|x| / sqrt(2)) / 2
Floats gelu(Floats x) {
  const Floats size = max(x, sub(set1(0.0f), x));
  return fnma(mul(set1(0.5f), size), erfc_over_sqrt2(size), max(x, set1(0.0f)));
}

Floats quick_gelu(Floats x) { return mul(x, sigmoid(mul(x, set1(1.702f)))); }

// In this order NaN stays NaN.
Floats relu2(Floats x) { return mul(max(set1(0.0f), x), max(set1(0.0f), x)); }

// g * sigmoid(1.702 g) * (u + 1) for g = min(gate, 7) and u = up held within +-7; in this order NaN stays NaN.
Floats clamped_swiglu(Floats gate, Floats up) {
  const Floats g = min(set1(7.0f), gate), u = max(set1(-7.0f), min(set1(7.0f), up));
  return mul(mul(g, sigmoid(mul(g, set1(1.702f)))), add(u, set1(1.0f)));
}

}  // namespace

void norm(const NormOp& op, Worker worker) {
  const Floats scale = set1(op.scale);
  const Range rows = share(*op.n_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    const int64_t at = row * op.width;
    if (op.y)
      map({at, at + op.width}, op.x, op.y, op.sum, [=](Floats x, Floats y) { return add(x, mul(scale, y)); });
    norm_row((op.y ? op.sum : op.x) + at, op.gain, op.eps, op.width, op.out + at);
    quantise_part(op.quantised_out, op.out, at, at + op.width);
  }
}

void head_norm(const HeadNormOp& op, Worker worker) {
  const Range heads = share(*op.n_rows * op.n_heads, worker);
  for (int64_t i = heads.begin; i < heads.end; i++) norm_row(op.x + i * op.dim, op.gain, op.eps, op.dim, op.out + i * op.dim);
}

void columns(const ColumnsOp& op, Worker worker) {
  const Range rows = share(*op.n_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; row++)
    memcpy(op.out + row * op.width, op.x + row * op.x_width + op.begin, size_t(op.width) * sizeof(float));
}

void join_heads(const JoinHeadsOp& op, Worker worker) {
  const Range heads = share(*op.n_rows * op.n_heads, worker);
  for (int64_t head = heads.begin; head < heads.end; head++) {
    float* out = op.out + head * (op.x_dim + op.y_dim);
    memcpy(out, op.x + head * op.x_dim, size_t(op.x_dim) * sizeof(float));
    memcpy(out + op.x_dim, op.y + head * op.y_dim, size_t(op.y_dim) * sizeof(float));
  }
}

void layer_norm(const LayerNormOp& op, Worker worker) {
  const Floats scale = set1(op.scale);
  const Range rows = share(*op.n_rows * op.n_heads, worker);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    const int64_t at = row * op.width;
    if (op.y)
      map({at, at + op.width}, op.x, op.y, op.sum, [=](Floats x, Floats y) { return add(x, mul(scale, y)); });
    layer_norm_row(op, (op.y ? op.sum : op.x) + at, op.gain + row % op.n_heads * op.width, op.out + at);
    quantise_part(op.quantised_out, op.out, at, at + op.width);
  }
}

void add(const AddOp& op, Worker worker) {
  const Range mine = share_numbers(*op.n_rows * op.width, worker);
  const Floats scale = set1(op.scale);
  if (op.y)
    map(mine, op.x, op.y, op.out, [=](Floats x, Floats y) { return add(x, mul(scale, y)); });
  else
    map(mine, op.x, op.out, [=](Floats x) { return mul(scale, x); });
}

void activate(const ActivateOp& op, Worker worker) {
  const Range mine = share_numbers(*op.n_rows * op.width, worker);
  const auto for_chunks = [&](auto apply) {
    for (int64_t at = mine.begin; at < mine.end; at += CHUNK) {
      const Range chunk{at, at + CHUNK < mine.end ? at + CHUNK : mine.end};
      apply(chunk);
      quantise_part(op.quantised_out, op.out, chunk.begin, chunk.end);
    }
  };
  const auto with = [&](auto act) {
    for_chunks([&](Range chunk) {
      if (op.up) map(chunk, op.gate, op.up, op.out, [act](Floats gate, Floats up) { return mul(act(gate), up); });
      else map(chunk, op.gate, op.out, act);
    });
  };
  switch (op.act) {
    case Activation::silu: return with([](Floats x) { return silu(x); });
    case Activation::gelu_tanh: return with([](Floats x) { return gelu_tanh(x); });
    case Activation::gelu: return with([](Floats x) { return gelu(x); });
    case Activation::sigmoid: return with([](Floats x) { return sigmoid(x); });
    case Activation::relu2: return with([](Floats x) { return relu2(x); });
    case Activation::quick_gelu: return with([](Floats x) { return quick_gelu(x); });
    case Activation::clamped_swiglu:
      return for_chunks([&](Range chunk) { map(chunk, op.gate, op.up, op.out, clamped_swiglu); });
  }
}

void softcap(const SoftcapOp& op, Worker worker) {
  const Floats cap = set1(op.cap);
  map(share_numbers(*op.n_rows * op.width, worker), op.x, op.out, [=](Floats x) { return mul(cap, tanh(div(x, cap))); });
}

void clip(const ClipOp& op, Worker worker) {
  const Floats most = set1(op.limit), least = set1(-op.limit);
  map(share_numbers(*op.n_rows * op.width, worker), op.x, op.out, [=](Floats x) { return max(least, min(most, x)); });  // NaN stays NaN
}

void temper(const TemperOp& op, Worker worker) {
  const Range rows = share(*op.n_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    const float n_periods = float((op.positions[row] + op.offset) / op.period);
    const Floats factor = set1(1.0f + op.beta * std::log(1.0f + n_periods));
    map({row * op.width, (row + 1) * op.width}, op.x, op.out, [=](Floats x) { return mul(x, factor); });
  }
}

void gather_rows(const GatherRowsOp& op, Worker worker) {
  const Range rows = share(*op.n_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; row++)
    memcpy(op.out + row * op.width, op.x + op.rows[row] * op.width, size_t(op.width) * sizeof(float));
}

void with_rows(const WithRowsOp& op, Worker worker) {
  const Range rows = share(*op.n_rows, worker);
  const size_t n_bytes = size_t(op.width) * sizeof(float);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    float* out = op.out + row * op.width;
    const float* x = op.x ? op.x + row * op.width : nullptr;
    const float* found = op.row_of[row] < 0 ? nullptr : op.buffer + op.row_of[row] * op.buffer_width + op.begin;
    if (found && x && op.add) map({0, op.width}, x, found, out, [](Floats a, Floats b) { return tahr::TAHR_ISA::add(a, b); });
    else if (found || x) memcpy(out, found ? found : x, n_bytes);
    else memset(out, 0, n_bytes);
  }
}

void store_rows(const StoreRowsOp& op, Worker worker) {
  const Range rows = share(*op.n_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    if (op.row_target[row] < 0) continue;
    float* target = op.buffer + op.row_target[row] * op.buffer_width + op.begin;
    memcpy(target, op.x + row * op.width, size_t(op.width) * sizeof(float));
  }
}

void cos_sin(const CosSinOp& op, Worker worker) {
  const Range rows = share(*op.n_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    float* cosines = op.out + row * 2 * op.n_freqs;
    float* sines = cosines + op.n_freqs;
    for (int64_t i = 0; i < op.n_freqs; i++) {
      const int64_t begin = op.axis_begins ? op.axis_begins[i] : 0;
      const float angle = float(op.positions[begin + row]) * op.inv_freq[i];
      cosines[i] = std::cos(angle) * op.scale;
      sines[i] = std::sin(angle) * op.scale;
    }
  }
}

}  // namespace tahr::TAHR_ISA
