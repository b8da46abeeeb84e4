// Tokenizes strings for tools/fixtures/compare_tokenizers.py, which compiles this program.
//
//   compare_tokenizers TOKENIZER STRINGS RESULTS    ids, begins and decoded text of each string
//   compare_tokenizers TOKENIZER STRINGS            prints the seconds that encoding all of them took
//
// STRINGS: for each string its bytes, as uint32, and the string. RESULTS: for each string the number of ids,
// the ids, the begins, the bytes of the decoded text (all uint32), and that text. In every fourth string,
// control tokens are not recognized.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "models/text/tokenizer/tokenizer.h"

namespace {

using namespace sluice;

std::vector<std::string> read_strings(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> strings;
  for (uint32_t bytes = 0; file.read(reinterpret_cast<char*>(&bytes), sizeof bytes);) {
    strings.emplace_back(bytes, '\0');
    file.read(strings.back().data(), bytes);
  }
  return strings;
}

void write_results(const Tokenizer& tokenizer, const std::vector<std::string>& strings, const char* path) {
  std::ofstream file(path, std::ios::binary);
  const auto write = [&](size_t number) {
    const auto value = static_cast<uint32_t>(number);
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
  };
  Encoder encoder(tokenizer);
  for (size_t i = 0; i < strings.size(); ++i) {
    std::vector<ByteRange> plain;
    if (i % 4 == 3) plain.push_back({0, strings[i].size()});
    const Encoding encoding = encoder.encode(strings[i], plain);
    write(encoding.ids.size());
    for (const uint32_t id : encoding.ids) write(id);
    for (const size_t begin : encoding.begins) write(begin);
    const std::string decoded = tokenizer.decode(encoding.ids, i % 2 == 0);
    write(decoded.size());
    file << decoded;
  }
}

double seconds_to_encode(const Tokenizer& tokenizer, const std::vector<std::string>& strings) {
  Encoder encoder(tokenizer);
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& text : strings) encoder.encode(text);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: compare_tokenizers TOKENIZER STRINGS [RESULTS]\n");
    return 2;
  }
  try {
    const auto begin = std::chrono::steady_clock::now();
    const Tokenizer tokenizer = Tokenizer::open(argv[1]);
    const std::chrono::duration<double> opening = std::chrono::steady_clock::now() - begin;
    const std::vector<std::string> strings = read_strings(argv[2]);
    if (argc == 4)
      write_results(tokenizer, strings, argv[3]);
    else
      std::printf("%.6f %.6f\n", opening.count(), seconds_to_encode(tokenizer, strings));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s %s\n", error.what(), error.remedy().c_str());
    return static_cast<int>(error.code());
  }
  return 0;
}
