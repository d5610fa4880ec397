// Attention of one head for BQ tokens of one sequence by the device's units for small matrices, span after span of the keys:
// scores, weights and values as f16 numbers, sums in f32. A subgroup has TM tokens.
#pragma use_vulkan_memory_model
#include "common.glsl"
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#if TN == 8
#define OUTER [[dont_unroll]]  // compilers take long over that many steps
#else
#define OUTER [[unroll]]
#endif
#include "kv.glsl"
#include "spans.glsl"
layout(constant_id = 1) const uint THREADS = 128;
layout(constant_id = 3) const bool SLOPED = false;
layout(constant_id = 5) const uint HEAD_DIM = 128;
layout(push_constant) uniform Push {
  Ints inputs;  // counts first
  Floats q;
  Floats out_;
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
const uint N_SUBGROUPS = 4;
const uint BQ = N_SUBGROUPS * TM;
const uint PER_ROW = THREADS / BQ;  // invocations that share a row
const uint LINE = HEAD_DIM / 8 + 1;  // of 16 bytes: a head, and one more that keeps rows in different banks
const uint SCORE_LINE = SPAN / 4 + 1;
const uint UNITS = HEAD_DIM / 8;

shared uvec4 tile[SPAN * LINE];  // queries, then keys and values by turns
shared uvec4 scores[BQ * SCORE_LINE];  // f32; weights become f16 in their places
shared uvec4 factors[N_SUBGROUPS * TM * TN / 4];  // of each row, in all columns
shared uint64_t key_rows[SPAN];
shared uvec2 ranges[N_SUBGROUPS];

uint seq, first_token, end_token, head, kv_head;

// Which sequence this group has, and which of its tokens: sequences follow each other in whole tiles.
bool find_tokens() {
  const uint n_seqs = uint(inputs.v[2]);
  uint before = 0;
  for (seq = 0; seq < n_seqs; ++seq) {
    const uint begin = uint(inputs.v[query_start_at + seq]), end = uint(inputs.v[query_start_at + seq + 1]);
    const uint n_tiles = (end - begin + BQ - 1) / BQ;
    if (gl_WorkGroupID.y < before + n_tiles) {
      first_token = begin + (gl_WorkGroupID.y - before) * BQ;
      end_token = end;
      return true;
    }
    before += n_tiles;
  }
  return false;
}

uvec4 eight_halves(vec4 low, vec4 high) {
  return uvec4(packHalf2x16(low.xy), packHalf2x16(low.zw), packHalf2x16(high.xy), packHalf2x16(high.zw));
}

void take_queries() {
  const uint n_heads = heads & 0xFFFFu;
  for (uint i = gl_LocalInvocationID.x; i < BQ * UNITS; i += THREADS) {
    const uint token = min(first_token + i / UNITS, end_token - 1);
    Floats4 from = Floats4(uint64_t(q) + 4ul * (uint64_t(token) * n_heads + head) * HEAD_DIM);
    tile[i / UNITS * LINE + i % UNITS] = eight_halves(scale * from.v[i % UNITS * 2], scale * from.v[i % UNITS * 2 + 1]);
  }
}

// Those that are not seen have the place of one that is: the page table may hold anything for them.
void look_up(uint span, uint begin, uint end) {
  const uint n_kv_heads = (heads & 0xFFFFu) / (heads >> 16);
  for (uint at = gl_LocalInvocationID.x; at < SPAN; at += THREADS) {
    const uint position = clamp(span * SPAN + at, begin, end - 1);
    const uint page = uint(inputs.v[page_table_at + seq * table_stride + position / page_size]);
    const uint row = (page * n_kv_heads + kv_head) * page_size + position % page_size;
    key_rows[at] = uint64_t(row) * HEAD_DIM * kv_bytes();
  }
}

void take_keys(uint64_t from) {
  [[unroll]] for (uint k = 0; k < SPAN * UNITS / THREADS; ++k) {
    const uint i = k * THREADS + gl_LocalInvocationID.x;
    const uint64_t row = from + key_rows[i / UNITS];
#if KV == KV_F16
    tile[i / UNITS * LINE + i % UNITS] = Words4(row).v[i % UNITS];
#else
    vec4 low, high;
    load_eight(row, i % UNITS, low, high);
    tile[i / UNITS * LINE + i % UNITS] = eight_halves(low, high);
#endif
  }
}

float score_at(uint row, uint column) { return uintBitsToFloat(scores[row * SCORE_LINE + column / 4][column % 4]); }

float capped(float score, uint position, int own) {
  if (softcap != 0) {
    const float e = exp(-2 * abs(score / softcap));
    score = softcap * sign(score) * (1 - e) / (1 + e);
  }
  if (SLOPED) score += slopes.v[head] * float(int(position) - own);
  return score;
}

void main() {
  const uint n_sharing = heads >> 16, n_heads = heads & 0xFFFFu;
  head = gl_WorkGroupID.x;
  kv_head = head / n_sharing;
  if (!find_tokens()) return;
  // Each invocation of a row has the columns of its turn.
  const uint turn = gl_SubgroupInvocationID % PER_ROW, row = gl_SubgroupID * TM + gl_SubgroupInvocationID / PER_ROW;
  const uint token = min(first_token + row, end_token - 1);
  const int position = inputs.v[positions_at + token];
  const uvec2 seen = seen_by(uint(position), uint(inputs.v[seq_lens_at + seq]), window, flags);
  const uvec2 of_subgroup = uvec2(subgroupMin(seen.x), subgroupMax(seen.y));
  if (gl_SubgroupInvocationID == 0) ranges[gl_SubgroupID] = of_subgroup;
  take_queries();
  barrier();
  coopmat<float16_t, gl_ScopeSubgroup, TM, TK, gl_MatrixUseA> queries[HEAD_DIM / TK];
  [[unroll]] for (uint k = 0; k < HEAD_DIM / TK; ++k)
    coopMatLoad(queries[k], tile, gl_SubgroupID * TM * LINE + k * (TK / 8), LINE, gl_CooperativeMatrixLayoutRowMajor);
  uvec2 all = ranges[0];
  for (uint i = 1; i < N_SUBGROUPS; ++i) all = uvec2(min(all.x, ranges[i].x), max(all.y, ranges[i].y));
  coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> mixed[HEAD_DIM / TN];
  [[unroll]] for (uint i = 0; i < HEAD_DIM / TN; ++i)
    mixed[i] = coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator>(0.0);
  float top = HAS_SINKS ? sinks.v[head] : -INFINITY;
  float total = HAS_SINKS ? 1 : 0;
  const uint own_scores = gl_SubgroupID * TM * SCORE_LINE, own_factors = gl_SubgroupID * TM * TN / 4;
  const uint of_row = own_factors * 4 + gl_SubgroupInvocationID / PER_ROW * TN;
  for (uint span = all.x / SPAN; span < (all.y + SPAN - 1) / SPAN; ++span) {
    barrier();
    look_up(span, all.x, all.y);
    barrier();
    take_keys(keys);
    barrier();
    OUTER for (uint j = 0; j < SPAN / TN; ++j) {
      coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> found =
          coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator>(0.0);
      [[unroll]] for (uint k = 0; k < HEAD_DIM / TK; ++k) {
        coopmat<float16_t, gl_ScopeSubgroup, TK, TN, gl_MatrixUseB> key;
        coopMatLoad(key, tile, j * TN * LINE + k * (TK / 8), LINE, gl_CooperativeMatrixLayoutColumnMajor);
        found = coopMatMulAdd(queries[k], key, found);
      }
      coopMatStore(found, scores, own_scores + j * (TN / 4), SCORE_LINE, gl_CooperativeMatrixLayoutRowMajor);
    }
    barrier();
    take_keys(values);
    // Weights of the row, and what earlier sums are worth beside them. An invocation has pairs of columns.
    float higher = top;
    float own[SPAN / PER_ROW];
    [[unroll]] for (uint p = 0; p < SPAN / 2 / PER_ROW; ++p)
      [[unroll]] for (uint c = 0; c < 2; ++c) {
        const uint column = 2 * (p * PER_ROW + turn) + c, where = span * SPAN + column;
        const float score = capped(score_at(row, column), where, position);
        own[2 * p + c] = where >= seen.x && where < seen.y ? score : -INFINITY;
        higher = max(higher, own[2 * p + c]);
      }
    for (uint d = 1; d < PER_ROW; d *= 2) higher = max(higher, subgroupShuffleXor(higher, d));
    float fresh = 0;
    subgroupBarrier();
    [[unroll]] for (uint p = 0; p < SPAN / 2 / PER_ROW; ++p) {
      vec2 weights = vec2(0);
      if (higher != -INFINITY) weights = exp(vec2(own[2 * p], own[2 * p + 1]) - higher);
      fresh += weights.x + weights.y;
      const uint pair = p * PER_ROW + turn;
      scores[row * SCORE_LINE + pair / 4][pair % 4] = packHalf2x16(weights);
    }
    for (uint d = 1; d < PER_ROW; d *= 2) fresh += subgroupShuffleXor(fresh, d);
    const float old = top == -INFINITY ? 0 : exp(top - higher);
    total = total * old + fresh;
    top = higher;
    for (uint c = turn; c < TN; c += PER_ROW) factors[(of_row + c) / 4][(of_row + c) % 4] = floatBitsToUint(old);
    barrier();
    coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> worth;
    coopMatLoad(worth, factors, own_factors, TN / 4, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0; i < HEAD_DIM / TN; ++i) mixed[i] = mixed[i] * worth;
    OUTER for (uint k = 0; k < SPAN / TK; ++k) {
      coopmat<float16_t, gl_ScopeSubgroup, TM, TK, gl_MatrixUseA> weights;
      coopMatLoad(weights, scores, own_scores + k * (TK / 8), SCORE_LINE, gl_CooperativeMatrixLayoutRowMajor);
      [[unroll]] for (uint i = 0; i < HEAD_DIM / TN; ++i) {
        coopmat<float16_t, gl_ScopeSubgroup, TK, TN, gl_MatrixUseB> value;
        coopMatLoad(value, tile, k * TK * LINE + i * (TN / 8), LINE, gl_CooperativeMatrixLayoutRowMajor);
        mixed[i] = coopMatMulAdd(weights, value, mixed[i]);
      }
    }
  }
  // Results go by way of shared memory: only there is known which number is where.
  const float inverse = 1 / total;
  [[unroll]] for (uint i = 0; i < HEAD_DIM / TN; ++i) {
    subgroupBarrier();
    coopMatStore(mixed[i], factors, own_factors, TN / 4, gl_CooperativeMatrixLayoutRowMajor);
    subgroupBarrier();
    Floats to = Floats(uint64_t(out_) + 4ul * ((uint64_t(token) * n_heads + head) * HEAD_DIM + i * TN));
    if (first_token + row < end_token)
      for (uint c = turn; c < TN; c += PER_ROW) to.v[c] = uintBitsToFloat(factors[(of_row + c) / 4][(of_row + c) % 4]) * inverse;
  }
}
