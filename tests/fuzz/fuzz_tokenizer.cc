#include <algorithm>

#include "models/text/tokenizer/sentencepiece_file.h"
#include "models/text/tokenizer/tokenizer.h"
#include "models/text/tokenizer/tokenizer_file.h"
#include "tests/fuzz/promises.h"

namespace sluice::fuzzing {

namespace {

// Letters with and without marks, digits, white space of several kinds, control tokens of the fixtures.
constexpr std::string_view kText =
    "Hello there, it's  12345 o'clock!\n\n\t<s>e\xCC\x81\xC3\xA9\xE6\xBC\xA2\xE5\xAD\x97 "
    "\xF0\x9F\x98\x80<|im_end|> \xC2\xA0 aaaaaaaa</s>abcabc [X]\r\n";

// Returns the text of `ids`, which must be the same if tokens are decoded one by one.
std::string decoded(const Tokenizer& tokenizer, const std::vector<uint32_t>& ids, bool skip_special) {
  TextStream stream(tokenizer, skip_special);
  std::string streamed;
  for (const uint32_t id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  demand(streamed == tokenizer.decode(ids, skip_special), "tokens one by one give the text of all at once");
  return streamed;
}

void check_encoding(const Tokenizer& tokenizer, const Encoding& encoding, std::string_view text) {
  demand(encoding.ids.size() == encoding.begins.size(), "each token has its begin");
  demand(
      std::all_of(encoding.begins.begin(), encoding.begins.end(), [&](size_t b) { return b < text.size(); }),
      "tokens begin in the text");
  demand(std::is_sorted(encoding.begins.begin(), encoding.begins.end()), "begins ascend");
  for (const uint32_t id : encoding.ids)
    demand(id < tokenizer.id_end() && tokenizer.content_of(id).has_value(), "an id has a token");
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  for (const auto* list : {&tokenizer.prefix(), &tokenizer.suffix()})
    for (const uint32_t id : *list) demand(tokenizer.content_of(id).has_value(), "an added id has a token");
  // Any ids may come from a model, also those without a token.
  std::vector<uint32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c) % (tokenizer.id_end() + 1));
  for (const bool skip_special : {false, true}) decoded(tokenizer, ids, skip_special);
  Encoder encoder(tokenizer);
  const Encoding encoding = encoder.encode(text);
  check_encoding(tokenizer, encoding, text);
  for (const bool skip_special : {false, true}) decoded(tokenizer, encoding.ids, skip_special);
  const ByteRange all{0, text.size()};
  check_encoding(tokenizer, encoder.encode(text, {&all, 1}), text);
}

}  // namespace

bool fuzz_tokenizer(Input input) {
  const Parts parts = divided(text_of(input));
  const MemoryFile file(parts.first);
  return is_taken([&] {
    const Tokenizer tokenizer(parts.first.starts_with('{') ? read_tokenizer_file(file.path())
                                                           : read_sentencepiece_file(file.path()));
    use(tokenizer, parts.is_divided ? parts.second : kText);
  });
}

}  // namespace sluice::fuzzing
