// The eight tile registers: the instructions themselves, or with TAHR_AMX_MODEL a model of them for machines without.
//
// A tile is up to 16 rows of 64 bytes. `dot` adds A * B to C, where A is rows of signed bytes, C rows of 16 int32, and row
// k of B holds bytes 4 k .. 4 k + 3 of each of the 16 columns side by side: just what a panel's vectors are.
#pragma once

#include <cstdint>
#include <cstring>

namespace tahr::TAHR_ISA::tiles {

struct alignas(64) Shape {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};  // of tiles 0 to 7, the rest zero
  uint8_t n_rows[16] = {};

  void set(int tile, int rows, int bytes) {
    n_rows[tile] = uint8_t(rows);
    row_bytes[tile] = uint16_t(bytes);
  }
};

constexpr int N_TILES = 8, ROW_BYTES = 64, MAX_ROWS = 16;

#if defined(TAHR_AMX_MODEL)

struct Registers {
  Shape shape;
  uint8_t rows[N_TILES][MAX_ROWS][ROW_BYTES];
};
inline thread_local Registers registers;

inline void configure(const Shape& shape) {
  registers.shape = shape;
  memset(registers.rows, 0, sizeof registers.rows);
}
inline void release() { registers.shape = Shape{}; }

template <int T>
inline void zero() { memset(registers.rows[T], 0, sizeof registers.rows[T]); }

template <int T>
inline void load(const void* from, int64_t stride) {
  zero<T>();
  for (int r = 0; r < registers.shape.n_rows[T]; r++)
    memcpy(registers.rows[T][r], static_cast<const char*>(from) + r * stride, registers.shape.row_bytes[T]);
}

template <int T>
inline void store(void* to, int64_t stride) {
  for (int r = 0; r < registers.shape.n_rows[T]; r++)
    memcpy(static_cast<char*>(to) + r * stride, registers.rows[T][r], registers.shape.row_bytes[T]);
}

template <int C, int A, int B>
inline void dot() {
  const Shape& shape = registers.shape;
  for (int m = 0; m < shape.n_rows[C]; m++)
    for (int n = 0; n < shape.row_bytes[C] / 4; n++) {
      int32_t sum;
      memcpy(&sum, &registers.rows[C][m][4 * n], sizeof sum);
      for (int k = 0; k < shape.row_bytes[A]; k++)
        sum += int8_t(registers.rows[A][m][k]) * int8_t(registers.rows[B][k / 4][4 * n + k % 4]);
      memcpy(&registers.rows[C][m][4 * n], &sum, sizeof sum);
    }
}

#else

// Compilers' own intrinsics take the number of a tile as a literal only, and do not say which memory they touch.
inline void configure(const Shape& shape) { asm volatile("ldtilecfg %0" : : "m"(shape)); }
inline void release() { asm volatile("tilerelease"); }

template <int T>
inline __attribute__((always_inline)) void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(T)); }

template <int T>
inline __attribute__((always_inline)) void load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}

template <int T>
inline __attribute__((always_inline)) void store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}

template <int C, int A, int B>
inline __attribute__((always_inline)) void dot() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

#endif

}  // namespace tahr::TAHR_ISA::tiles
