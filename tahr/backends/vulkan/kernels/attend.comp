// Attention of G query heads of one token to the keys of the head that they share, span after span of the pages. With PARTS,
// a workgroup has one span and leaves what it found to `merge`; without, it has them all. Both sum in the same order.
#include "common.glsl"
#include "groups.glsl"
#include "kv.glsl"
#include "spans.glsl"
layout(constant_id = 1) const uint G = 1;
layout(constant_id = 2) const bool PARTS = false;
layout(constant_id = 3) const bool SLOPED = false;
layout(push_constant) uniform Push {
  Ints inputs;  // counts first
  Floats q;
  Floats out_;  // of PARTS: partial results
  uint64_t keys;
  uint64_t values;
  Floats sinks;
  Floats slopes;
  uint positions_at;
  uint page_table_at;
  uint table_stride;  // of a sequence
  uint query_start_at;
  uint seq_lens_at;
  uint heads;      // query heads | those that share a key head << 16
  uint head_dim;
  uint page_size;
  int window;      // 0: none
  uint flags;
  float scale;
  float softcap;   // 0: none
};
const uint LANES = 8;  // that share a key

shared vec2 queries[G * 128];  // pairs of numbers
shared float scores[G * SPAN];
shared float tops[G];
shared float totals[G];
shared vec2 sums[G * 128];
shared uint64_t key_rows[SPAN];  // of the span: bytes from the begin of the pages
shared vec2 piece[512];  // of each invocation: its part of a sum of values

uint token, seq, group_head, kv_head, n_pairs;

uint64_t row_of(uint position) {
  const uint page = uint(inputs.v[page_table_at + seq * table_stride + position / page_size]);
  const uint n_kv_heads = (heads & 0xFFFFu) / (heads >> 16);
  const uint row = (page * n_kv_heads + kv_head) * page_size + position % page_size;
  return uint64_t(row) * head_dim * kv_bytes();
}

// Where the keys and values of a span lie. Those that are not seen have the place of one that is: the page table may hold
// anything for them.
void look_up(uint begin, uint end) {
  const uint first = begin / SPAN * SPAN;
  for (uint at = gl_LocalInvocationID.x; at < SPAN; at += gl_WorkGroupSize.x)
    key_rows[at] = row_of(clamp(first + at, begin, end - 1));
  barrier();
}

// Scores of the span's positions [begin, end) into `scores`, with their largest and the sum of their weights.
void score(uint begin, uint end, uint position) {
  const uint lane = gl_LocalInvocationID.x % LANES;
  for (uint at = gl_LocalInvocationID.x / LANES; at < SPAN; at += gl_WorkGroupSize.x / LANES) {
    float found[G];
    for (uint g = 0; g < G; ++g) found[g] = 0;
    const bool seen = at + begin / SPAN * SPAN >= begin && at + begin / SPAN * SPAN < end;
    const uint where = at + begin / SPAN * SPAN;
    if (seen) {
      const uint64_t key = keys + key_rows[at];
      [[unroll]] for (uint pair = lane; pair < n_pairs; pair += LANES) {
        const vec2 both = load_pair(key, pair);
        for (uint g = 0; g < G; ++g) {
          const vec2 asked = queries[g * 128 + pair];
          found[g] = fma(asked.y, both.y, fma(asked.x, both.x, found[g]));
        }
      }
    }
    for (uint g = 0; g < G; ++g) {
      float sum = subgroupClusteredAdd(found[g], LANES) * scale;
      if (softcap != 0) {
        const float e = exp(-2 * abs(sum / softcap));
        sum = softcap * sign(sum) * (1 - e) / (1 + e);
      }
      if (SLOPED) sum += slopes.v[group_head + g] * float(int(where) - int(position));
      if (lane == 0) scores[g * SPAN + at] = seen ? sum : -INFINITY;
    }
  }
  barrier();
  for (uint g = gl_SubgroupID; g < G; g += gl_NumSubgroups) {
    float top = -INFINITY;
    for (uint at = gl_SubgroupInvocationID; at < SPAN; at += gl_SubgroupSize) top = max(top, scores[g * SPAN + at]);
    top = subgroupMax(top);
    float total = 0;
    for (uint at = gl_SubgroupInvocationID; at < SPAN; at += gl_SubgroupSize) {
      const float weight = exp(scores[g * SPAN + at] - top);
      scores[g * SPAN + at] = weight;
      total += weight;
    }
    total = subgroupAdd(total);
    if (gl_SubgroupInvocationID == 0) {
      tops[g] = top;
      totals[g] = total;
    }
  }
  barrier();
}

// Weighted sums of the span's values into `sums`. Invocations take pairs of numbers, and several share the positions.
void mix(uint begin, uint end) {
  const uint n_shares = max(1, min(gl_WorkGroupSize.x, 512) / n_pairs);
  const uint share = gl_LocalInvocationID.x / n_pairs, pair = gl_LocalInvocationID.x % n_pairs;
  vec2 found[G];
  for (uint g = 0; g < G; ++g) found[g] = vec2(0);
  const uint first = begin / SPAN * SPAN;
  // What is not seen weighs nothing.
  const uint until = min(SPAN, end - first);
  if (share < n_shares)
    for (uint at = share; at < until; at += 4 * n_shares) {
      vec2 both[4];
      [[unroll]] for (uint k = 0; k < 4; ++k) both[k] = load_pair(values + key_rows[min(at + k * n_shares, SPAN - 1)], pair);
      [[unroll]] for (uint k = 0; k < 4; ++k)
        if (at + k * n_shares < until)
          for (uint g = 0; g < G; ++g) found[g] = fma(vec2(scores[g * SPAN + at + k * n_shares]), both[k], found[g]);
    }
  for (uint g = 0; g < G; ++g) {
    barrier();
    piece[gl_LocalInvocationID.x] = found[g];
    barrier();
    if (gl_LocalInvocationID.x < n_pairs) {
      vec2 sum = vec2(0);
      for (uint s = 0; s < n_shares; ++s) sum += piece[s * n_pairs + gl_LocalInvocationID.x];
      sums[g * 128 + gl_LocalInvocationID.x] = sum;
    }
  }
  barrier();
}

uint sequence_of(uint wanted) {
  const uint n_seqs = uint(inputs.v[2]);
  uint low = 0, high = n_seqs;
  while (high - low > 1) {
    const uint middle = (low + high) / 2;
    if (uint(inputs.v[query_start_at + middle]) <= wanted) low = middle;
    else high = middle;
  }
  return low;
}

void main() {
  const uint n_heads = heads & 0xFFFFu, n_sharing = heads >> 16;
  token = gl_WorkGroupID.y;
  if (token >= uint(inputs.v[0])) return;
  group_head = gl_WorkGroupID.x * G;
  kv_head = group_head / n_sharing;
  n_pairs = head_dim / 2;
  seq = sequence_of(token);
  const uint position = uint(inputs.v[positions_at + token]);
  const uvec2 seen = seen_by(position, uint(inputs.v[seq_lens_at + seq]), window, flags);
  uint first = seen.x / SPAN, last = (seen.y + SPAN - 1) / SPAN;
  if (PARTS) {
    first += gl_WorkGroupID.z;
    if (first >= last) return;
    last = first + 1;
  }
  for (uint i = gl_LocalInvocationID.x; i < G * n_pairs; i += gl_WorkGroupSize.x) {
    const uint at = token * n_heads * head_dim + (group_head + i / n_pairs) * head_dim + i % n_pairs * 2;
    queries[i / n_pairs * 128 + i % n_pairs] = vec2(q.v[at], q.v[at + 1]);
  }
  barrier();
  float top[G], total[G];
  vec2 mixed[G];
  for (uint g = 0; g < G; ++g) start(sinks, group_head + g, top[g], total[g], mixed[g]);
  for (uint span = first; span < last; ++span) {
    const uint begin = max(span * SPAN, seen.x), end = min((span + 1) * SPAN, seen.y);
    look_up(begin, end);
    score(begin, end, position);
    mix(begin, end);
    for (uint g = 0; g < G; ++g) {
      const vec2 own = gl_LocalInvocationID.x < n_pairs ? sums[g * 128 + gl_LocalInvocationID.x] : vec2(0);
      if (PARTS) {
        Floats part = part_of(out_, token, gl_WorkGroupID.z, group_head + g, n_heads, head_dim, gl_NumWorkGroups.z);
        if (gl_LocalInvocationID.x == 0) part.v[0] = tops[g];
        if (gl_LocalInvocationID.x == 0) part.v[1] = totals[g];
        if (gl_LocalInvocationID.x < n_pairs) Floats2(part).v[1 + gl_LocalInvocationID.x] = own;
      } else {
        join_span(tops[g], totals[g], own, top[g], total[g], mixed[g]);
      }
    }
    barrier();
  }
  if (PARTS || gl_LocalInvocationID.x >= n_pairs) return;
  for (uint g = 0; g < G; ++g) {
    const vec2 found = finished(total[g], mixed[g]);
    const uint at = token * n_heads * head_dim + (group_head + g) * head_dim + 2 * gl_LocalInvocationID.x;
    out_.v[at] = found.x;
    out_.v[at + 1] = found.y;
  }
}
