// Tokenizers: text to token ids and back, as Hugging Face tokenizers 0.23.3 do it, id by id.
//
// A Tokenizer is read from a model directory: tokenizer.json, or tokenizer.model where that is missing, and
// the files beside it that add tokens. It supports byte pair encoding and the components that models of text
// generation have, and refuses others by name. It never changes and may be used from several threads, each
// with an Encoder of its own.
//
// Callers: readers of conversations and text, generation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/byte_range.h"

namespace sluice {

struct AddedToken;
struct TokenizerParts;
class TextDecoder;

class Tokenizer {
 public:
  // `path`: a model directory, or a file tokenizer.json or tokenizer.model. Throws Error: usage when there is
  // no such file, malformed_file when the file is damaged or asks for a component that is not supported.
  static Tokenizer open(const std::string& path);
  // Each byte of a text is a token, with the byte as its id.
  static Tokenizer of_bytes();
  explicit Tokenizer(TokenizerParts parts);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  uint32_t id_end() const;  // above every id; an embedding needs at least as many rows
  std::optional<uint32_t> id_of(std::string_view content) const;
  std::optional<std::string> content_of(uint32_t id) const;
  bool is_special(uint32_t id) const;   // a control token
  bool is_numbered(uint32_t id) const;  // AddedToken::numbered
  const std::vector<AddedToken>& added() const;
  // Contents of the control tokens that have a name, by name: {"eos_token", "</s>"}.
  const std::map<std::string, std::string>& controls() const;
  // What belongs in front of and behind a text that is no rendered conversation: begin and end of sequence.
  // With tokenizer.json, its post_processor says what these are; add_bos_token and add_eos_token of
  // tokenizer_config.json do not count, as in transformers 5.23 for every class of tokenizer. With
  // tokenizer.model, these two keys count.
  const std::vector<uint32_t>& prefix() const;
  const std::vector<uint32_t>& suffix() const;

  // Ids without a token give nothing.
  std::string decode(std::span<const uint32_t> ids, bool skip_special) const;

 private:
  friend class Encoder;
  friend class TextStream;
  void decode(uint32_t id, bool skip_special, TextDecoder& decoder, std::string& to) const;

  std::unique_ptr<const TokenizerParts> parts_;
};

// The tokens of a text. Token i begins in the character that begins at byte begins[i] of the text. Blanks at
// a token's start belong to the token (offsets of Hugging Face tokenizers without trim_offsets).
struct Encoding {
  std::vector<uint32_t> ids;
  std::vector<size_t> begins;
  std::vector<ByteRange> left_out = {};  // of the text: characters that have no token; ascending
  // How many characters the tokenizer's patterns do not know because the installed Oniguruma is older than
  // the characters. Hugging Face may cut the text around them otherwise. 0 for a tokenizer without patterns.
  size_t unknown_characters = 0;
  size_t spelled_controls = 0;  // spellings of control tokens in plain text, where they stay text
};

// A text with its tokens, for a next text that begins alike.
struct EncodedText {
  std::string text;
  std::vector<ByteRange> plain;
  Encoding encoding;
  // A place behind an added token. The texts before and behind it become tokens independently.
  struct Border {
    size_t byte = 0;
    size_t tokens = 0, unknown_characters = 0, spelled_controls = 0;  // of the text before it
  };
  std::vector<Border> borders = {};  // ascending
};

// Encodes for one thread, and remembers the tokens of words that it met.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);  // which must outlive it
  ~Encoder();
  Encoder(Encoder&&) noexcept;

  // `plain`: byte ranges of the text, ascending and not overlapping, in which control tokens are not
  // recognized (text of users). Adds neither prefix nor suffix. Throws Error: malformed_file when the text is
  // not UTF-8 or has more than 512 MiB, or the tokenizer's patterns take too long.
  Encoding encode(std::string_view text, std::span<const ByteRange> plain = {});
  // Encodes as encode() does a text that may begin as `last` does. The call takes time only for what differs.
  // `last` is empty, or made by this function; afterwards it has the given text and its tokens.
  void encode_next(std::string_view text, std::span<const ByteRange> plain, EncodedText& last);

 private:
  void encode_from(const EncodedText::Border& begin, std::string_view text, std::span<const ByteRange> plain,
                   Encoding& encoding, std::vector<EncodedText::Border>* borders);

  struct Memory;
  const TokenizerParts& parts_;
  bool has_patterns_;
  std::unique_ptr<Memory> memory_;
};

// Decodes tokens one after the other, as they are generated.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, bool skip_special);  // the tokenizer must outlive it
  ~TextStream();
  TextStream(TextStream&&) noexcept;

  // The text that has become certain with this token; often none, where a character takes several tokens.
  std::string push(uint32_t id);
  // The rest. Nothing may be pushed behind it. All texts together are what decode() gives.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::unique_ptr<TextDecoder> decoder_;
};

}  // namespace sluice
