// What a token found in each span becomes one, rounded to int8 beside if asked for. A workgroup has one head of one token.
#include "common.glsl"
#include "spans.glsl"
layout(push_constant) uniform Push {
  Ints inputs;
  Floats parts;
  Floats out_;
  Floats sinks;
  uint64_t codes;
  uint64_t scales;
  uint positions_at;
  uint query_start_at;
  uint seq_lens_at;
  uint n_heads;
  uint head_dim;
  uint n_spans;
  int window;
  uint flags;
};
#include "int8_rows.glsl"

uint sequence_of(uint wanted) {
  uint low = 0, high = uint(inputs.v[2]);
  while (high - low > 1) {
    const uint middle = (low + high) / 2;
    if (uint(inputs.v[query_start_at + middle]) <= wanted) low = middle;
    else high = middle;
  }
  return low;
}

void main() {
  const uint token = gl_WorkGroupID.y, head = gl_WorkGroupID.x, i = gl_LocalInvocationID.x;
  if (token >= uint(inputs.v[0])) return;
  const uint position = uint(inputs.v[positions_at + token]);
  const uint length = uint(inputs.v[seq_lens_at + sequence_of(token)]);
  const uvec2 seen = seen_by(position, length, window, flags);
  const uint n = (seen.y + SPAN - 1) / SPAN - seen.x / SPAN;
  float top, total;
  vec2 mixed;
  start(sinks, head, top, total, mixed);
  for (uint span = 0; span < n; ++span) {
    Floats part = part_of(parts, token, span, head, n_heads, head_dim, n_spans);
    join_span(part.v[0], part.v[1], vec2(i < head_dim ? part.v[2 + i] : 0), top, total, mixed);
  }
  const float found = finished(total, mixed).x;
  const uint width = n_heads * head_dim;
  if (i < head_dim) Floats(uint64_t(out_) + 4ul * (token * width + head * head_dim)).v[i] = found;
  if (codes != 0) round_blocks(token, head * head_dim / 32, width, head_dim, found);
}
