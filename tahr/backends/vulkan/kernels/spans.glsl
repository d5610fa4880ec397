// Keys fall into spans, which begin at multiples of SPAN whatever else is in the step. What a token finds in each is joined
// in their order, so that its result does not depend on who computed which span.
layout(constant_id = 4) const bool HAS_SINKS = false;
const uint SPAN = 64;
const uint CAUSAL = 1, CHUNKED = 2;

// The positions that a token sees: [x, y).
uvec2 seen_by(uint position, uint length, int window, uint flags) {
  uvec2 seen = uvec2(0, length);
  if ((flags & CAUSAL) != 0) seen.y = min(position + 1, length);
  if (window == 0) return seen;
  if ((flags & CHUNKED) != 0) seen.x = position / window * window;
  else seen.x = uint(max(int(position) - window + 1, 0));
  if ((flags & CAUSAL) == 0) seen.y = min(position + window, length);
  return seen;
}

void start(Floats sinks, uint head, out float top, out float total, out vec2 mixed) {
  top = -INFINITY;
  if (HAS_SINKS) top = sinks.v[head];
  total = HAS_SINKS ? 1 : 0;
  mixed = vec2(0);
}

void join_span(float span_top, float span_total, vec2 span_mixed, inout float top, inout float total, inout vec2 mixed) {
  precise const float higher = max(top, span_top);
  precise const float old = top == -INFINITY ? 0 : exp(top - higher);
  precise const float fresh = exp(span_top - higher);
  precise const float both = fma(span_total, fresh, total * old);
  precise const vec2 sum = fma(span_mixed, vec2(fresh), mixed * old);
  top = higher;
  total = both;
  mixed = sum;
}

vec2 finished(float total, vec2 mixed) {
  precise const vec2 found = mixed / total;
  return found;
}

// A partial result: top, total, sums [head_dim].
Floats part_of(Floats parts, uint token, uint span, uint head, uint n_heads, uint head_dim, uint n_spans) {
  return Floats(uint64_t(parts) + 4ul * ((uint64_t(token) * n_spans + span) * n_heads + head) * (head_dim + 2));
}
