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
layout(constant_id = 5) const uint HEAD_DIM = 128;
layout(constant_id = 6) const bool WIDE = true;  // heads are whole eights
const uint THREADS = 128;
const uint LANES = 8;  // that share a key
const uint PASSES = SPAN * LANES / THREADS;
const uint UNIT = WIDE ? 8 : 2;  // numbers that an invocation takes at once
const uint N_UNITS = HEAD_DIM / UNIT;
const uint N_SHARES = THREADS / N_UNITS;  // of the positions, when values are summed

shared vec4 queries[G * 2 * N_UNITS];
shared float scores[G * SPAN];
shared float tops[G];
shared float totals[G];
shared float sums[G * HEAD_DIM];
shared uint64_t key_rows[SPAN];  // of the span: bytes from the begin of the pages
shared vec4 piece[2 * THREADS];  // of each invocation: its part of a sum of values

uint token, seq, group_head, kv_head;

void load_unit(uint64_t head, uint unit, out vec4 low, out vec4 high) {
  if (WIDE) {
    load_eight(head, unit, low, high);
    return;
  }
  low = vec4(load_pair(head, unit), 0, 0);
  high = vec4(0);
}

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
  const uint lane = gl_LocalInvocationID.x % LANES, first = gl_LocalInvocationID.x / LANES;
  float found[PASSES * G];
  [[unroll]] for (uint i = 0; i < PASSES * G; ++i) found[i] = 0;
  [[unroll]] for (uint u = 0; u < (N_UNITS + LANES - 1) / LANES; ++u) {
    const uint unit = u * LANES + lane;
    if (N_UNITS % LANES != 0 && unit >= N_UNITS) continue;
    vec4 low[PASSES], high[PASSES];
    [[unroll]] for (uint pass = 0; pass < PASSES; ++pass)
      load_unit(keys + key_rows[first + pass * (THREADS / LANES)], unit, low[pass], high[pass]);
    [[unroll]] for (uint g = 0; g < G; ++g) {
      const vec4 q_low = queries[(g * N_UNITS + unit) * 2], q_high = queries[(g * N_UNITS + unit) * 2 + 1];
      [[unroll]] for (uint pass = 0; pass < PASSES; ++pass)
        found[pass * G + g] += dot(q_low, low[pass]) + dot(q_high, high[pass]);
    }
  }
  [[unroll]] for (uint pass = 0; pass < PASSES; ++pass) {
    const uint at = first + pass * (THREADS / LANES), where = at + begin / SPAN * SPAN;
    const bool seen = where >= begin && where < end;
    [[unroll]] for (uint g = 0; g < G; ++g) {
      float sum = subgroupClusteredAdd(found[pass * G + g], LANES) * scale;
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

// Weighted sums of the span's values into `sums`. Invocations take units of numbers, and several share the positions.
void mix(uint begin, uint end) {
  const uint share = gl_LocalInvocationID.x / N_UNITS, unit = gl_LocalInvocationID.x % N_UNITS;
  vec4 low[G], high[G];
  [[unroll]] for (uint g = 0; g < G; ++g) low[g] = high[g] = vec4(0);
  // What is not seen weighs nothing.
  const uint until = min(SPAN, end - begin / SPAN * SPAN);
  if (share < N_SHARES)
    for (uint at = share; at < until; at += 4 * N_SHARES) {
      vec4 v_low[4], v_high[4];
      [[unroll]] for (uint k = 0; k < 4; ++k)
        load_unit(values + key_rows[min(at + k * N_SHARES, SPAN - 1)], unit, v_low[k], v_high[k]);
      [[unroll]] for (uint k = 0; k < 4; ++k) {
        if (at + k * N_SHARES >= until) continue;
        [[unroll]] for (uint g = 0; g < G; ++g) {
          const float weight = scores[g * SPAN + at + k * N_SHARES];
          low[g] = fma(vec4(weight), v_low[k], low[g]);
          high[g] = fma(vec4(weight), v_high[k], high[g]);
        }
      }
    }
  [[unroll]] for (uint g = 0; g < G; ++g) {
    barrier();
    piece[2 * gl_LocalInvocationID.x] = low[g];
    piece[2 * gl_LocalInvocationID.x + 1] = high[g];
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < HEAD_DIM; i += THREADS) {
      float sum = 0;
      for (uint s = 0; s < N_SHARES; ++s) sum += piece[(s * N_UNITS + i / UNIT) * 2 + i % UNIT / 4][i % UNIT % 4];
      sums[g * HEAD_DIM + i] = sum;
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
  const uint n_heads = heads & 0xFFFFu, n_sharing = heads >> 16, n_pairs = HEAD_DIM / 2;
  token = gl_WorkGroupID.y;
  const uint position = uint(inputs.v[positions_at + token]);  // asked for before it is needed
  if (token >= uint(inputs.v[0])) return;
  group_head = gl_WorkGroupID.x * G;
  kv_head = group_head / n_sharing;
  seq = sequence_of(token);
  const uvec2 seen = seen_by(position, uint(inputs.v[seq_lens_at + seq]), window, flags);
  uint first = seen.x / SPAN, last = (seen.y + SPAN - 1) / SPAN;
  if (PARTS) {
    first += gl_WorkGroupID.z;
    if (first >= last) return;
    last = first + 1;
  }
  for (uint i = gl_LocalInvocationID.x; i < G * N_UNITS * 8; i += gl_WorkGroupSize.x) {
    const uint g = i / (N_UNITS * 8), unit = i / 8 % N_UNITS, k = i % 8;
    const uint at = token * n_heads * HEAD_DIM + (group_head + g) * HEAD_DIM + unit * UNIT + k;
    queries[(g * N_UNITS + unit) * 2 + k / 4][k % 4] = k < UNIT ? q.v[at] : 0;
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
      const uint at = g * HEAD_DIM + 2 * gl_LocalInvocationID.x;
      const vec2 own = gl_LocalInvocationID.x < n_pairs ? vec2(sums[at], sums[at + 1]) : vec2(0);
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
