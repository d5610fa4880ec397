// Keys and values as they are stored: how they are written, and how a tile of them becomes f32.
//
// Every stored type is a struct of the same four functions. `page` is where a head's part of a page begins (see
// KvLayer), `offset` a token's place in the page.
#pragma once

#include "attention.h"
#include "half.h"
#include "simd_tail.h"

namespace tahr::TAHR_ISA {

struct F16 {
  uint16_t bits;
};

struct BF16 {
  uint16_t bits;
};

TAHR_INLINE Floats load(const F16* p) { return load_f16(&p->bits); }
TAHR_INLINE Floats load(const BF16* p) { return load_bf16(&p->bits); }
TAHR_INLINE void store(F16* p, Floats v) { store_f16(&p->bits, v); }
TAHR_INLINE void store(BF16* p, Floats v) { store_bf16(&p->bits, v); }

// out[i] = x[i] for n numbers, in either direction.
template <class To, class From>
TAHR_INLINE void convert(To* out, const From* x, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(out + i, load(x + i));
  if (i < n) store_some(out + i, load_some(x + i, int(n - i)), int(n - i));
}

// ---- numbers that stand for themselves ----

template <class T>
struct Plain {
  // Number i of the token at offset + t goes to out[i * stride + t].
  static void read_keys(const KvLayer& kv, const std::byte* page, int offset, int n_tokens, float* out, int stride) {
    const T* keys = reinterpret_cast<const T*>(page) + offset;
    for (int i = 0; i < kv.head_dim; i++) convert(out + i * stride, keys + int64_t{i} * kv.page_size, n_tokens);
  }

  // Number i of the token at offset + t goes to out[t * stride + i].
  static void read_values(const KvLayer& kv, const std::byte* page, int offset, int n_tokens, float* out, int stride) {
    const T* values = reinterpret_cast<const T*>(page) + int64_t{offset} * kv.head_dim;
    for (int t = 0; t < n_tokens; t++) convert(out + t * stride, values + int64_t{t} * kv.head_dim, kv.head_dim);
  }

  static void write_key(const KvLayer& kv, std::byte* page, int64_t offset, const float* key, std::byte* scratch) {
    T* stored = reinterpret_cast<T*>(scratch);
    T* keys = reinterpret_cast<T*>(page) + offset;
    convert(stored, key, kv.head_dim);
    for (int i = 0; i < kv.head_dim; i++) keys[int64_t{i} * kv.page_size] = stored[i];
  }

  static void write_value(const KvLayer& kv, std::byte* page, int64_t offset, const float* value) {
    convert(reinterpret_cast<T*>(page) + offset * kv.head_dim, value, kv.head_dim);
  }
};

// ---- q8_0: int8 codes, KV_BLOCK numbers of a head sharing an f16 scale ----

struct Blocks {
  static void read_keys(const KvLayer& kv, const std::byte* page, int offset, int n_tokens, float* out, int stride) {
    const int8_t* codes = reinterpret_cast<const int8_t*>(page) + offset;
    const F16* scales = reinterpret_cast<const F16*>(page + kv.codes_bytes()) + offset;
    float of_tokens[KV_TILE];
    for (int i = 0; i < kv.head_dim; i++, codes += kv.page_size, out += stride) {
      if (i % KV_BLOCK == 0) convert(of_tokens, scales + int64_t{i / KV_BLOCK} * kv.page_size, n_tokens);
      for (int t = 0; t < n_tokens; t++) out[t] = float(codes[t]) * of_tokens[t];
    }
  }

  static void read_values(const KvLayer& kv, const std::byte* page, int offset, int n_tokens, float* out, int stride) {
    const int n_blocks = kv.head_dim / KV_BLOCK;
    const int8_t* codes = reinterpret_cast<const int8_t*>(page) + int64_t{offset} * kv.head_dim;
    const F16* scales = reinterpret_cast<const F16*>(page + kv.codes_bytes()) + int64_t{offset} * n_blocks;
    for (int t = 0; t < n_tokens; t++, scales += n_blocks, out += stride) {
      float of_blocks[MAX_HEAD_DIM / KV_BLOCK];
      convert(of_blocks, scales, n_blocks);
      for (int block = 0; block < n_blocks; block++, codes += KV_BLOCK)
        for (int i = 0; i < KV_BLOCK; i++) out[block * KV_BLOCK + i] = float(codes[i]) * of_blocks[block];
    }
  }

  static void write_key(const KvLayer& kv, std::byte* page, int64_t offset, const float* key, std::byte* scratch) {
    int8_t* stored = reinterpret_cast<int8_t*>(scratch);
    int8_t* codes = reinterpret_cast<int8_t*>(page) + offset;
    uint16_t* scales = reinterpret_cast<uint16_t*>(page + kv.codes_bytes()) + offset;
    for (int i = 0; i < kv.head_dim; i += KV_BLOCK)
      scales[int64_t{i / KV_BLOCK} * kv.page_size] = round_block(key + i, stored + i);
    for (int i = 0; i < kv.head_dim; i++) codes[int64_t{i} * kv.page_size] = stored[i];
  }

  static void write_value(const KvLayer& kv, std::byte* page, int64_t offset, const float* value) {
    int8_t* codes = reinterpret_cast<int8_t*>(page) + offset * kv.head_dim;
    uint16_t* scales = reinterpret_cast<uint16_t*>(page + kv.codes_bytes()) + offset * (kv.head_dim / KV_BLOCK);
    for (int i = 0; i < kv.head_dim; i += KV_BLOCK) scales[i / KV_BLOCK] = round_block(value + i, codes + i);
  }

  // Returns the scale, as f16 bits. Numbers that are not finite, or too large for any scale, make it one that turns all
  // codes into NaN.
  static uint16_t round_block(const float* x, int8_t* codes) {
    Floats most = set1(0.0f), spoilt = set1(0.0f);  // the second becomes NaN at 0 * infinity
    for (int i = 0; i < KV_BLOCK; i += LANES) {
      most = max(most, abs(load(x + i)));
      spoilt = fma(load(x + i), set1(0.0f), spoilt);
    }
    const uint16_t bits = f16_of_float(max_lane(most) / 127.0f + sum(spoilt));
    const float scale = float_of_f16(bits);
    const Floats inverse = set1(scale > 0 ? 1.0f / scale : 0.0f), limit = set1(127.0f), lower = set1(-127.0f);
    // The scale may have been rounded down, so the largest number can lie a little above 127.
    for (int i = 0; i < KV_BLOCK; i += LANES)
      store_i8(codes + i, round(max(min(mul(load(x + i), inverse), limit), lower)));
    return bits;
  }
};

// Calls `f` with a pointer of a type whose numbers stand for themselves.
template <class Function>
TAHR_INLINE void with_plain(KvType type, Function f) {
  if (type == KvType::f32) return f(static_cast<float*>(nullptr));
  return type == KvType::f16 ? f(static_cast<F16*>(nullptr)) : f(static_cast<BF16*>(nullptr));
}

// Calls `f` with the functions of the stored type.
template <class Function>
TAHR_INLINE void with_type(KvType type, Function f) {
  switch (type) {
    case KvType::f32: return f(Plain<float>{});
    case KvType::f16: return f(Plain<F16>{});
    case KvType::bf16: return f(Plain<BF16>{});
    case KvType::q8_0: return f(Blocks{});
  }
}

}  // namespace tahr::TAHR_ISA
