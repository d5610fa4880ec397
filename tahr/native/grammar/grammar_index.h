// A vocabulary as llguidance reads it: the bytes of every token, and how text becomes tokens.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "llguidance.h"

namespace tahr {

using Tokens = std::vector<uint32_t>;

struct TokenBytes {
  std::string bytes;  // of all tokens, one after the other
  std::vector<uint32_t> lengths;

  void add(const char* token, size_t n) {
    bytes.append(token, n);
    lengths.push_back(uint32_t(n));
  }
};

class GrammarIndex {
 public:
  using Tokenize = std::function<Tokens(const std::string&)>;  // any thread may call it

  GrammarIndex(const std::string& library, const TokenBytes& tokens, const Tokens& eos, const std::vector<std::string>& slices,
               Tokenize tokenize);
  ~GrammarIndex();
  GrammarIndex(const GrammarIndex&) = delete;
  GrammarIndex& operator=(const GrammarIndex&) = delete;

  const Llguidance& api() const { return api_; }
  const LlgTokenizer* tokenizer() const { return tokenizer_; }
  size_t mask_bytes() const { return (n_vocab_ + 31) / 32 * 4; }
  bool is_end(uint32_t token) const;

 private:
  static size_t tokenize(const void* self, const uint8_t* bytes, size_t n_bytes, uint32_t* tokens, size_t n_most);
  Tokens tokens_of(const std::string& text) const;

  const Llguidance api_;
  const size_t n_vocab_;
  const Tokens eos_;
  const Tokenize tokenize_;
  LlgTokenizer* tokenizer_ = nullptr;
  mutable std::mutex lock_;
  mutable std::unordered_map<std::string, Tokens> known_;  // the same few keys and signs are forced again and again
};

}  // namespace tahr
