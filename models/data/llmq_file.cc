#include "models/data/llmq_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <string_view>

#include "engine/base/error.h"

namespace sluice {

namespace {

constexpr std::string_view kLlmqMagic = "BIN.TOK\n";
constexpr int32_t kVersion = 2;

[[noreturn]] void refuse(const InputFile& file, const std::string& sentence,
                         const char* remedy = "Write the file again with LLMQ's scripts/tokenize_data.py.") {
  throw Error(ExitCode::malformed_file, fmt::format("{} {}.", printable(file.path()), sentence), remedy);
}

uint64_t mask_bytes(uint64_t tokens) { return (tokens + 7) / 8; }

uint64_t count_trained(const InputFile& file, const LlmqHeader& header) {
  std::array<unsigned char, 16 * 1024> piece;
  uint64_t trained = 0;
  for (uint64_t at = 0, all = mask_bytes(header.tokens); at < all;) {
    const uint64_t n = std::min<uint64_t>(piece.size(), all - at);
    file.read(header.mask_begin + at, piece.data(), n);
    at += n;
    // Bits behind the last token say nothing.
    if (at == all && header.tokens % 8 != 0)
      piece[n - 1] = static_cast<unsigned char>(piece[n - 1] & ((1 << header.tokens % 8) - 1));
    for (uint64_t i = 0; i < n; ++i) trained += static_cast<uint64_t>(std::popcount(piece[i]));
  }
  return trained;
}

}  // namespace

bool is_llmq_file(const InputFile& file) {
  std::array<char, kLlmqMagic.size()> begin;
  if (file.bytes() < begin.size()) return false;
  file.read(0, begin.data(), begin.size());
  return std::string_view(begin.data(), begin.size()) == kLlmqMagic;
}

LlmqHeader read_llmq_header(const InputFile& file, int64_t vocabulary) {
  if (file.bytes() < kLlmqHeaderBytes)
    refuse(file, fmt::format("has {} bytes, less than the {} of the header of LLMQ's token files",
                             file.bytes(), kLlmqHeaderBytes));
  struct {
    int32_t version, token_bytes, tokens, vocabulary, has_masks;
  } given;
  file.read(kLlmqMagic.size(), &given, sizeof given);
  if (given.version != kVersion)
    refuse(file, fmt::format("is a token file of LLMQ of version {}, not {}", given.version, kVersion));
  if (given.token_bytes != static_cast<int32_t>(kLlmqTokenBytes))
    refuse(file, fmt::format("is a token file of LLMQ that claims {} bytes a token, not {}",
                             given.token_bytes, kLlmqTokenBytes));
  if (given.tokens <= 0)
    refuse(file, fmt::format("is a token file of LLMQ that claims {} tokens", given.tokens));
  if (given.has_masks != 0 && given.has_masks != 1)
    refuse(file, fmt::format("is a token file of LLMQ that says {} where 0 or 1 tells whether it has masks",
                             given.has_masks));
  if (given.vocabulary <= 0)
    refuse(file, fmt::format("is a token file of LLMQ that claims a vocabulary of {}", given.vocabulary));
  if (given.vocabulary > vocabulary)
    refuse(file,
           fmt::format("is a token file of LLMQ for a vocabulary of {}, but the model's has {}",
                       given.vocabulary, vocabulary),
           "Tokenize the data with the model's own tokenizer.");
  LlmqHeader header{.tokens = static_cast<uint64_t>(given.tokens)};
  const uint64_t tokens_end = kLlmqHeaderBytes + header.tokens * kLlmqTokenBytes;
  const uint64_t end = tokens_end + (given.has_masks ? mask_bytes(header.tokens) : 0);
  if (file.bytes() != end)
    refuse(file, fmt::format("is a token file of LLMQ that claims {} tokens {} masks, {} bytes in all, but "
                             "has {} bytes",
                             header.tokens, given.has_masks ? "with" : "without", end, file.bytes()));
  header.trained = header.tokens;
  if (!given.has_masks) return header;
  header.mask_begin = tokens_end;
  header.trained = count_trained(file, header);
  if (header.trained == 0)
    refuse(file, "trains no token: all its masks are zero",
           "Write it again with masks that are set where a token is trained, or without masks.");
  return header;
}

}  // namespace sluice
