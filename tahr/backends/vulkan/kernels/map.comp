// Ops that make each number of a row from a few others.
#include "common.glsl"
layout(constant_id = 1) const uint OP = 0;
layout(push_constant) uniform Push {
  Ints n_rows;
  Floats x;
  Floats y;  // a second operand; positions or row numbers for ops that read those
  Floats out_;
  uint width;    // of a row of out
  uint x_width;
  uint y_width;
  uint begin;    // of columns; of an attention scaling: the period
  uint offset;
  float a;
  float act;
};
#include "activation.glsl"

const uint ADD = 0, SCALE = 1, SOFTCAP = 2, CLIP = 3, COLUMNS = 4, GATE = 5, GATHER = 6, SCALE_QUERIES = 7, JOIN = 8,
           ACTIVATE = 9, ACTIVATE_UP = 10, COS_SIN = 11;

// (cos, sin) of an angle of any size: reduced by quarter turns in three parts of few bits, because
// drivers may round between the product and the sum of an `fma`; then polynomials.
vec2 cos_sin(float angle) {
  precise const float turns = roundEven(angle * 0.636619772);
  precise float r = fma(-turns, 1.5703125, angle);
  r = fma(-turns, 4.837512969970703125e-4, r);
  r = fma(-turns, 7.54978995489188216e-8, r);
  precise const float r2 = r * r;
  precise float s = fma(r2, -1.95152959e-4, 8.33216087e-3);
  s = fma(s, r2, -1.66666546e-1);
  s = fma(s * r2, r, r);
  precise float c = fma(r2, 2.44331571e-5, -1.38873162e-3);
  c = fma(c, r2, 4.16666456e-2);
  c = fma(c * r2, r2, fma(r2, -0.5, 1.0));
  const int quarter = int(turns) & 3;
  const vec2 found = (quarter & 1) == 0 ? vec2(c, s) : vec2(s, c);
  return vec2(quarter == 1 || quarter == 2 ? -found.x : found.x, quarter >= 2 ? -found.y : found.y);
}

float cos_or_sin(uint row, uint i) {
  const uint n_freqs = width / 2;
  const float position = float(Ints(uint64_t(y)).v[row]);
  precise const float angle = position * x.v[i % n_freqs];
  const vec2 both = cos_sin(angle);
  return a * (i < n_freqs ? both.x : both.y);
}

float query_scale(uint row) {
  const int n_periods = (Ints(uint64_t(y)).v[row] + int(offset)) / int(begin);
  return 1 + a * log(1 + float(n_periods));
}

void main() {
  const uint row = gl_WorkGroupID.y;
  const uint i = gl_GlobalInvocationID.x;
  if (row >= uint(n_rows.v[0]) || i >= width) return;
  const uint from = OP == GATHER ? uint(Ints(uint64_t(y)).v[row]) : row;
  Floats xs = Floats(uint64_t(x) + 4ul * from * x_width);
  Floats ys = Floats(uint64_t(y) + 4ul * row * y_width);
  float found = 0;
  if (OP == ADD) {
    precise const float scaled = a * ys.v[i];
    precise const float sum = xs.v[i] + scaled;
    found = sum;
  } else if (OP == SCALE) {
    found = a * xs.v[i];
  } else if (OP == SOFTCAP) {
    found = a * tanh_of(xs.v[i] / a);
  } else if (OP == CLIP) {
    found = clamp(xs.v[i], -a, a);
  } else if (OP == COLUMNS) {
    found = xs.v[begin + i];
  } else if (OP == GATE) {
    found = xs.v[i] / (1 + exp(-ys.v[0]));
  } else if (OP == GATHER) {
    found = xs.v[i];
  } else if (OP == SCALE_QUERIES) {
    found = xs.v[i] * query_scale(row);
  } else if (OP == JOIN) {
    const uint head = i / (begin + offset), at = i % (begin + offset);
    found = at < begin ? xs.v[head * begin + at] : ys.v[head * offset + at - begin];
  } else if (OP == ACTIVATE) {
    found = activated(uint(act), xs.v[i]);
  } else if (OP == ACTIVATE_UP) {
    found = activated_with(uint(act), xs.v[i], ys.v[i]);
  } else if (OP == COS_SIN) {
    found = cos_or_sin(row, i);
  }
  Floats(uint64_t(out_) + 4ul * row * width).v[i] = found;
}
