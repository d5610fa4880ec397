// Words of tables by single loads, for x86. One instruction gathers eight, but not as fast: with it, products of one row in IQ2_XXS
// took 1.7 to 2.6 times as long on Xeons with VNNI, by whatever their microcode does against leaks.
#pragma once

namespace tahr::TAHR_ISA {

template <int Row, class Numbers>
TAHR_INLINE __m128 two_words(const uint64_t* table, const Numbers& at) {
  const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(table + at[Row]));
  return _mm_loadh_pi(_mm_castsi128_ps(first), reinterpret_cast<const __m64*>(table + at[Row + 1]));
}

// Words of rows 0, 1, 4 and 5 from Row on: shuffles within 128 bits bring rows 2, 3, 6 and 7 between them.
template <int Row, class Numbers>
TAHR_INLINE __m256 pairs_of_words(const uint64_t* table, const Numbers& at) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(two_words<Row>(table, at)), two_words<Row + 4>(table, at), 1);
}

template <int Row, class Numbers>
TAHR_INLINE __m128i four_words(const uint32_t* table, const Numbers& at) {
  const auto word = [&](int row) { return int(table[at[row]]); };
  return _mm_set_epi32(word(Row + 3), word(Row + 2), word(Row + 1), word(Row));
}
template <int Row, class Numbers>
TAHR_INLINE __m256i eight_words(const uint32_t* table, const Numbers& at) {
  return _mm256_set_m128i(four_words<Row + 4>(table, at), four_words<Row>(table, at));
}

}  // namespace tahr::TAHR_ISA
