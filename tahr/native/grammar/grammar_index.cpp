#include "grammar_index.h"

#include <algorithm>
#include <stdexcept>

namespace tahr {

namespace {

constexpr size_t MAX_KNOWN = 4096, MAX_KNOWN_BYTES = 256;  // texts whose tokens are kept, and how long they may be
constexpr size_t ERROR_BYTES = 512;

}  // namespace

GrammarIndex::GrammarIndex(const std::string& library, const TokenBytes& tokens, const Tokens& eos,
                           const std::vector<std::string>& slices, Tokenize tokenize)
    : api_(library), n_vocab_(tokens.lengths.size()), eos_(eos), tokenize_(std::move(tokenize)) {
  if (eos.empty()) throw std::runtime_error("a vocabulary needs an end token");
  std::vector<const char*> texts;
  for (const std::string& slice : slices) texts.push_back(slice.c_str());
  texts.push_back(nullptr);
  LlgTokenizerInit init{};
  init.struct_size = sizeof(init);
  init.n_vocab = uint32_t(n_vocab_);
  init.eos = eos[0];
  init.token_lengths = tokens.lengths.data();
  init.token_bytes = reinterpret_cast<const uint8_t*>(tokens.bytes.data());
  init.tokenizes_strings = true;
  init.tokenize = &GrammarIndex::tokenize;
  init.user_data = this;
  init.slices = texts.data();
  init.more_eos = eos.data() + 1;
  init.n_more_eos = uint32_t(eos.size() - 1);
  char error[ERROR_BYTES] = "";
  tokenizer_ = api_.new_tokenizer(&init, error, ERROR_BYTES);
  if (!tokenizer_) throw std::runtime_error(error);
}

GrammarIndex::~GrammarIndex() { api_.free_tokenizer(tokenizer_); }

bool GrammarIndex::is_end(uint32_t token) const { return std::find(eos_.begin(), eos_.end(), token) != eos_.end(); }

size_t GrammarIndex::tokenize(const void* self, const uint8_t* bytes, size_t n_bytes, uint32_t* tokens, size_t n_most) {
  const std::string text(reinterpret_cast<const char*>(bytes), n_bytes);
  const Tokens found = static_cast<const GrammarIndex*>(self)->tokens_of(text);
  std::copy_n(found.begin(), std::min(found.size(), n_most), tokens);
  return found.size();
}

Tokens GrammarIndex::tokens_of(const std::string& text) const {
  if (text.size() > MAX_KNOWN_BYTES) return tokenize_(text);
  {
    std::lock_guard<std::mutex> lock(lock_);
    const auto known = known_.find(text);
    if (known != known_.end()) return known->second;
  }
  Tokens found = tokenize_(text);  // without the lock: it may wait for the interpreter's
  std::lock_guard<std::mutex> lock(lock_);
  if (known_.size() >= MAX_KNOWN) known_.clear();
  known_[text] = found;
  return found;
}

}  // namespace tahr
