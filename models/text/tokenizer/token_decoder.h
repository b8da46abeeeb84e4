// Decoders: from tokens back to text, token by token.
//
// A TextDecoder gives text as soon as no later token can change it. All texts that it gives for a sequence of
// tokens are together the text that Hugging Face tokenizers give for the whole sequence. Callers: decoding
// and generation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sluice {

struct ReplaceDecoder {
  std::string pattern, content;  // a string, not empty
};
// A run of tokens <0x00> to <0xFF> becomes the characters of its bytes, or if these are not UTF-8, U+FFFD for
// each byte.
struct ByteFallbackDecoder {};
struct FuseDecoder {};  // the steps behind it see one token
struct StripDecoder {
  char32_t content = U' ';
  size_t start = 0, stop = 0;  // at most so many are cut at the start and the end of a token
};
struct ByteLevelDecoder {};  // makes one token of the bytes that the characters of all tokens stand for
struct MetaspaceDecoder {
  std::string replacement;  // becomes a blank
  bool drops_first = true;  // in the first token, `replacement` is left out instead
};
using DecoderStep = std::variant<ReplaceDecoder, ByteFallbackDecoder, FuseDecoder, StripDecoder,
                                 ByteLevelDecoder, MetaspaceDecoder>;

struct TokenDecoder {
  std::vector<DecoderStep> steps;
  bool joins_with_blanks = false;  // a tokenizer without decoder
};

class TextDecoder {
 public:
  explicit TextDecoder(const TokenDecoder& decoder);  // which must outlive it

  // Appends the text that has become certain.
  void push(std::string_view token, std::string& to);
  // Appends the rest. Nothing may be pushed behind it.
  void finish(std::string& to);

 private:
  struct State {
    std::string held;  // bytes or text that a later token may change
    size_t count = 0;  // tokens seen, or characters cut
  };
  void feed(size_t step, std::string_view token, std::string& to);
  void apply(const ReplaceDecoder& step, size_t index, std::string_view token, std::string& to);
  void apply(const ByteFallbackDecoder& step, size_t index, std::string_view token, std::string& to);
  void apply(const FuseDecoder& step, size_t index, std::string_view token, std::string& to);
  void apply(const StripDecoder& step, size_t index, std::string_view token, std::string& to);
  void apply(const ByteLevelDecoder& step, size_t index, std::string_view token, std::string& to);
  void apply(const MetaspaceDecoder& step, size_t index, std::string_view token, std::string& to);
  void release_bytes(size_t index, std::string& to);
  void release_characters(size_t index, bool all, std::string& to);

  const TokenDecoder& decoder_;
  std::vector<State> states_;
  size_t fuse_ = 0;     // the first step that makes one token of all; the number of steps: none does
  bool waits_ = false;  // the steps behind `fuse_` need the whole token that it makes
};

}  // namespace sluice
