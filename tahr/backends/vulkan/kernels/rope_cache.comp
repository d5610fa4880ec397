// Norms (if any) and rope of the heads of queries and keys; keys and values go to their slots. A workgroup has one head of
// one token: query heads first, then key heads, then value heads.
#include "common.glsl"
#include "groups.glsl"
#include "kv.glsl"
layout(constant_id = 1) const bool PAIRS = false;  // rope turns neighbours, not halves
layout(constant_id = 2) const bool NORMED = false;
layout(push_constant) uniform Push {
  Ints n_rows;
  Floats q;
  Floats k;
  Floats v;
  Floats turns;   // cos, then sin
  Floats q_gain;
  Floats k_gain;
  Ints slots;
  uint64_t keys;
  uint64_t values;
  Floats out_;
  uint n_q_heads;
  uint n_kv_heads;
  uint head_dim;
  uint n_freqs;
  uint page_size;
  float eps;
};
shared float numbers[512];

float turned(uint token, uint i) {
  if (i >= 2 * n_freqs) return numbers[i];
  const uint freq = PAIRS ? i / 2 : i % n_freqs;
  const bool is_second = PAIRS ? i % 2 == 1 : i >= n_freqs;
  const uint other = PAIRS ? i ^ 1u : is_second ? i - n_freqs : i + n_freqs;
  const float c = turns.v[token * 2 * n_freqs + freq], s = turns.v[token * 2 * n_freqs + n_freqs + freq];
  precise const float along = numbers[i] * c;
  precise const float across = numbers[other] * s;
  precise const float found = is_second ? along + across : along - across;
  return found;
}

void main() {
  const uint token = gl_WorkGroupID.y;
  if (token >= uint(n_rows.v[0])) return;
  const uint head = gl_WorkGroupID.x;
  const bool is_query = head < n_q_heads, is_value = head >= n_q_heads + n_kv_heads;
  const uint at = is_query ? head : is_value ? head - n_q_heads - n_kv_heads : head - n_q_heads;
  const uint width = (is_query ? n_q_heads : n_kv_heads) * head_dim;
  const uint64_t from = uint64_t(is_query ? q : is_value ? v : k) + 4ul * (token * width + at * head_dim);
  Floats gain = is_query ? q_gain : k_gain;
  const bool normed = NORMED && !is_value;
  float squares = 0;
  for (uint i = gl_LocalInvocationID.x; i < head_dim; i += gl_WorkGroupSize.x) {
    const float own = Floats(from).v[i];
    numbers[i] = own;
    squares = fma(own, own, squares);
  }
  if (normed) {
    const float inverse = 1 / sqrt(group_sum(squares) / head_dim + eps);
    for (uint i = gl_LocalInvocationID.x; i < head_dim; i += gl_WorkGroupSize.x) numbers[i] = numbers[i] * inverse * gain.v[i];
  }
  barrier();
  const uint slot = is_query ? 0 : uint(slots.v[token]);
  const uint row = (slot / page_size * n_kv_heads + at) * page_size + slot % page_size;
  const uint64_t stored = (is_value ? values : keys) + uint64_t(row) * head_dim * kv_bytes();
  for (uint pair = gl_LocalInvocationID.x; pair < head_dim / 2; pair += gl_WorkGroupSize.x) {
    const vec2 both = is_value ? vec2(numbers[2 * pair], numbers[2 * pair + 1])
                               : vec2(turned(token, 2 * pair), turned(token, 2 * pair + 1));
    if (is_query) {
      const uint64_t to = uint64_t(out_) + 4ul * (token * width + at * head_dim);
      Floats(to).v[2 * pair] = both.x;
      Floats(to).v[2 * pair + 1] = both.y;
    } else {
      store_pair(stored, pair, both);
    }
  }
}
