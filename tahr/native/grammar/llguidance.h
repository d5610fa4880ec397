// The part of llguidance's C interface by which grammars are followed. Its functions are found in the library of the
// Python package, so that nothing is linked or built twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tahr {

struct LlgTokenizer;  // llguidance's index over a vocabulary
struct LlgMatcher;    // its place in a grammar

using LlgTokenize = size_t (*)(const void* user_data, const uint8_t* bytes, size_t n_bytes, uint32_t* tokens, size_t n_most);

struct LlgTokenizerInit {
  size_t struct_size;  // newer libraries know by it which fields there are
  uint32_t n_vocab;
  uint32_t eos;
  const uint32_t* token_lengths;
  const uint8_t* token_bytes;
  const char* tokenizer_json;
  bool tokenizes_strings;  // rather than any bytes
  LlgTokenize tokenize;
  bool tokenizes_greedily;
  const void* user_data;
  const char* const* slices;  // the last one is null
  const uint32_t* more_eos;
  uint32_t n_more_eos;
};

struct LlgLimits {
  size_t max_items_in_row;
  uint64_t initial_lexer_fuel;
  uint64_t step_lexer_fuel;
  size_t step_max_items;
  size_t max_lexer_states;
  size_t max_grammar_size;
  bool precompute_large_lexemes;
  bool verbose_errors;
};

struct LlgMatcherInit {
  const LlgTokenizer* tokenizer;
  uint32_t log_buffer_level;
  uint32_t log_stderr_level;
  bool ff_tokens_ok;
  bool backtrack_ok;
  LlgLimits limits;
  std::byte later[256];  // fields that newer libraries may append: zero is their default
};

struct Llguidance {
  explicit Llguidance(const std::string& path);  // throws std::runtime_error if it has not all of these functions

  LlgTokenizer* (*new_tokenizer)(const LlgTokenizerInit*, char* error, size_t error_bytes);
  void (*free_tokenizer)(LlgTokenizer*);
  void (*set_defaults)(LlgMatcherInit*, const LlgTokenizer*);
  LlgMatcher* (*new_matcher)(const LlgMatcherInit*, const char* kind, const char* grammar);
  LlgMatcher* (*clone_matcher)(const LlgMatcher*);
  void (*free_matcher)(LlgMatcher*);
  int32_t (*consume_token)(LlgMatcher*, uint32_t token);
  int32_t (*rollback)(LlgMatcher*, size_t n_tokens);
  int32_t (*reset)(LlgMatcher*);
  int32_t (*compute_mask_into)(LlgMatcher*, uint32_t* mask, size_t n_bytes);
  int32_t (*compute_ff_tokens)(LlgMatcher*, uint32_t* tokens, size_t n_most);
  bool (*is_stopped)(const LlgMatcher*);
  bool (*is_error)(const LlgMatcher*);
  const char* (*get_error)(LlgMatcher*);
};

}  // namespace tahr
