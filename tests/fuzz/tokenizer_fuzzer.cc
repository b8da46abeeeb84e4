// Fuzzes the readers of tokenizers, and tokenizing with what they read. An input is a tokenizer.json or a
// tokenizer.model, a zero byte, and a text without one. In the repository root, with clang 14 and its
// libFuzzer:
//
//   clang++-14 -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. tests/fuzz/tokenizer_fuzzer.cc \
//     models/text/tokenizer/*.cc models/text/unicode.cc models/files/file.cc engine/base/error.cc \
//     engine/base/strict_json.cc engine/base/shared_library.cc -lfmt -lxxhash -lutf8proc -ldl -o
//     tokenizer_fuzzer
//   ./tokenizer_fuzzer CORPUS tests/fixtures/tokenizers
//
// Files are memory files, so nothing is written.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "models/text/tokenizer/sentencepiece_file.h"
#include "models/text/tokenizer/tokenizer.h"
#include "models/text/tokenizer/tokenizer_file.h"

namespace {

using namespace sluice;

void demand(bool condition) {
  if (!condition) std::abort();
}

void tokenize(const Tokenizer& tokenizer, std::string_view text) {
  const Encoding encoding = Encoder(tokenizer).encode(text);
  demand(encoding.ids.size() == encoding.begins.size());
  demand(
      std::all_of(encoding.begins.begin(), encoding.begins.end(), [&](size_t b) { return b < text.size(); }));
  demand(std::is_sorted(encoding.begins.begin(), encoding.begins.end()));
  TextStream stream(tokenizer, true);
  std::string streamed;
  for (const uint32_t id : encoding.ids) {
    demand(tokenizer.content_of(id).has_value());
    streamed += stream.push(id);
  }
  demand(streamed + stream.finish() == tokenizer.decode(encoding.ids, true));
  const ByteRange all{0, text.size()};
  Encoder(tokenizer).encode(text, {&all, 1});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t border = std::min(input.rfind('\0'), size);
  const std::string_view file = input.substr(0, border);
  const int memory = memfd_create("tokenizer", 0);
  demand(memory >= 0 && write(memory, file.data(), file.size()) == static_cast<ssize_t>(file.size()));
  const std::string path = "/proc/self/fd/" + std::to_string(memory);
  try {
    const Tokenizer tokenizer(file.starts_with('{') ? read_tokenizer_file(path)
                                                    : read_sentencepiece_file(path));
    tokenize(tokenizer, input.substr(std::min(border + 1, size)));
  } catch (const Error&) {
  }
  close(memory);
  return 0;
}
