#include "models/data/token_data.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/graph/op.h"
#include "models/data/llmq_file.h"
#include "models/files/data_path.h"

namespace sluice {

namespace {

// llm.c shards: int32[256] header, then the tokens.
constexpr uint64_t kShardHeaderBytes = 1024;
struct ShardKind {
  int32_t magic, version;
  uint64_t width;
};
constexpr std::array<ShardKind, 2> kShardKinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};

// Megatron's index file starts with these nine bytes.
constexpr char kMegatronMagic[] = "MMIDIDX\0";

[[noreturn]] void malformed(const std::string& path, const std::string& sentence, const std::string& remedy) {
  throw Error(ExitCode::malformed_file, fmt::format("{} {}.", printable(path), sentence), remedy);
}

[[noreturn]] void megatron_is_planned(const std::string& path) {
  throw Error(ExitCode::usage,
              fmt::format("{} belongs to Megatron's .idx/.bin format, which is planned but not built yet.",
                          printable(path)),
              "Convert the tokens to raw uint16 (nanoGPT) or an llm.c shard.");
}

// Whether a Megatron index lies beside a .bin file, which would otherwise pass for raw uint16.
bool has_megatron_index(const std::string& path) {
  const std::string index = std::filesystem::path(path).replace_extension(".idx").string();
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(index, ignored)) return false;
  const InputFile file(index);
  char magic[sizeof kMegatronMagic];
  if (file.bytes() < sizeof magic) return false;
  file.read(0, magic, sizeof magic);
  return std::memcmp(magic, kMegatronMagic, sizeof magic) == 0;
}

// Throws for a .txt file that is no text, such as UTF-16, whose every second byte is 0.
void check_text(const InputFile& file) {
  std::array<char, 16 * 1024> sample;
  const uint64_t bytes = std::min<uint64_t>(sample.size(), file.bytes());
  file.read(0, sample.data(), bytes);
  if (std::memchr(sample.data(), 0, bytes))
    throw Error(
        ExitCode::usage,
        fmt::format("{} has bytes of 0 and does not look like text.", printable(file.path())),
        "If it is UTF-16, convert it to UTF-8 (iconv); if its zeros are meant, say --data-type text.");
}

// The byte at which the text begins: behind the byte-order mark of UTF-8, if the file has one.
uint64_t behind_byte_order_mark(const InputFile& file) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  std::array<char, kMark.size()> begin{};
  if (file.bytes() < begin.size()) return 0;
  file.read(0, begin.data(), begin.size());
  return std::string_view(begin.data(), begin.size()) == kMark ? kMark.size() : 0;
}

// A sentence on how to write tokens with numpy.
const char* how_to_write(int64_t vocabulary) {
  return vocabulary <= 1 << 16 ? "Write the tokens alone: tokens.astype(numpy.uint16).tofile(path)."
                               : "Write the tokens alone: tokens.astype(numpy.uint32).tofile(path), for "
                                 "--data-type uint32.";
}

// Throws for a file whose first bytes belong to another format, such as .npy.
void check_no_other_format(const InputFile& file, int64_t vocabulary) {
  if (const auto other = other_kind_of(file, false))
    malformed(file.path(), "looks like " + other->name,
              fmt::format("{}{} {} If it holds raw tokens, say --data-type uint16.", other->remedy,
                          other->remedy.ends_with('.') ? "" : ".", how_to_write(vocabulary)));
}

// Whether, at the start of the file, every second number of `width` bytes is 0, and some other number is not.
bool has_every_second_zero(const InputFile& file, uint64_t width) {
  std::array<unsigned char, 16 * 1024> sample;
  const uint64_t bytes = std::min<uint64_t>(sample.size(), file.bytes()) / (2 * width) * (2 * width);
  file.read(0, sample.data(), bytes);
  bool others = false;
  for (uint64_t i = 0; i < bytes; ++i) {
    if (sample[i] == 0) continue;
    if (i % (2 * width) >= width) return false;
    others = true;
  }
  return others && bytes >= 64;
}

// Throws for a file of 64-bit integers, which are numpy's default and no type of tokens.
void check_raw_uint32(const InputFile& file, int64_t vocabulary) {
  if (has_every_second_zero(file, 4))
    malformed(file.path(), "looks like integers of 64 bits: every second uint32 is 0",
              how_to_write(vocabulary));
}

// Throws for a file that may hold something else than raw uint16 tokens, so that the user says the type.
void check_raw_uint16(const InputFile& file, int64_t vocabulary) {
  const auto ask = [&](const std::string& sentence, const char* remedy) {
    throw Error(ExitCode::usage, fmt::format("{} {}.", printable(file.path()), sentence), remedy);
  };
  if (vocabulary > std::numeric_limits<uint16_t>::max() + 1)
    ask(fmt::format("holds raw tokens, and the model's vocabulary of {} needs more than uint16", vocabulary),
        "Say --data-type uint32, or uint16 if the tokens are that.");
  std::array<unsigned char, 16 * 1024> sample;
  const uint64_t bytes = std::min<uint64_t>(sample.size(), file.bytes()) / 4 * 4;
  file.read(0, sample.data(), bytes);
  bool is_text = bytes >= 256;
  for (uint64_t i = 0; i < bytes; ++i)
    is_text = is_text && (sample[i] >= ' ' || std::strchr("\t\n\r", sample[i])) && sample[i] != 0;
  if (is_text)
    ask("looks like text",
        "Name it .txt, or say --data-type text if all files are that; if it holds tokens, say uint16.");
  check_raw_uint32(file, vocabulary);
  if (has_every_second_zero(file, 2))
    ask("looks like raw uint32 tokens: every second uint16 is 0",
        "Say --data-type uint32 if all files are that; if the tokens are uint16, say that.");
}

uint32_t token_at(const std::byte* data, uint64_t index, uint64_t width) {
  uint32_t token = 0;  // little-endian: the low bytes come first
  std::memcpy(&token, data + index * width, width);
  return token;
}

}  // namespace

TokenData::Part TokenData::open_raw(InputFile file, uint64_t width) {
  if (file.bytes() % width != 0)
    malformed(file.path(),
              fmt::format("has {} bytes, no multiple of {}, and cannot be uint{} tokens", file.bytes(), width,
                          8 * width),
              "Write the file again: raw tokens (nanoGPT) or an llm.c shard.");
  const uint64_t tokens = file.bytes() / width;
  return {.file = std::move(file), .width = width, .tokens = tokens, .trained = tokens};
}

TokenData::Part TokenData::open_binary(InputFile file, int64_t vocabulary, TokenType type) {
  const std::string& path = file.path();
  if (is_llmq_file(file)) {
    if (type == TokenType::uint16)
      throw Error(ExitCode::usage,
                  fmt::format("{} is a token file of LLMQ, whose tokens have 32 bits.", printable(path)),
                  "Leave out --data-type: the file's header says what it is.");
    const LlmqHeader header = read_llmq_header(file, vocabulary);
    return {.file = std::move(file),
            .width = kLlmqTokenBytes,
            .data_begin = kLlmqHeaderBytes,
            .tokens = header.tokens,
            .mask_begin = header.mask_begin,
            .trained = header.trained};
  }
  std::array<int32_t, 3> header = {0, 0, 0};  // magic, version, tokens
  if (file.bytes() >= sizeof header)
    file.read(0, header.data(), sizeof header);
  else if (file.bytes() >= sizeof header[0])
    file.read(0, header.data(), sizeof header[0]);
  const auto kind = std::find_if(kShardKinds.begin(), kShardKinds.end(),
                                 [&](const ShardKind& k) { return k.magic == header[0]; });
  if (kind == kShardKinds.end()) {
    if (type == TokenType::automatic) {
      check_no_other_format(file, vocabulary);
      check_raw_uint16(file, vocabulary);
    }
    if (type == TokenType::uint32) check_raw_uint32(file, vocabulary);
    return open_raw(std::move(file), type == TokenType::uint32 ? 4 : 2);
  }
  if (type != TokenType::automatic && kind->width != (type == TokenType::uint32 ? 4u : 2u))
    throw Error(ExitCode::usage,
                fmt::format("{} is an llm.c shard of uint{} tokens.", printable(path), 8 * kind->width),
                "Leave out --data-type: the shard's header says what it is.");
  const std::string remedy = "Write the llm.c shard again.";
  if (file.bytes() < kShardHeaderBytes)
    malformed(path,
              fmt::format("has {} bytes, less than the {} of an llm.c shard's header", file.bytes(),
                          kShardHeaderBytes),
              remedy);
  if (header[1] != kind->version)
    malformed(path, fmt::format("is an llm.c shard of version {}, not {}", header[1], kind->version), remedy);
  if (header[2] < 0)
    malformed(path, fmt::format("is an llm.c shard that claims {} tokens", header[2]), remedy);
  if (header[2] == 0) malformed(path, "is an llm.c shard without tokens", remedy);
  const auto tokens = static_cast<uint64_t>(header[2]);
  if (file.bytes() - kShardHeaderBytes != tokens * kind->width)
    malformed(path,
              fmt::format("is an llm.c shard that claims {} tokens, {} bytes in all, but has {} bytes",
                          tokens, kShardHeaderBytes + tokens * kind->width, file.bytes()),
              remedy);
  return {.file = std::move(file),
          .width = kind->width,
          .data_begin = kShardHeaderBytes,
          .tokens = tokens,
          .trained = tokens};
}

TokenData::Part TokenData::open_part(const std::string& path, int64_t vocabulary, TokenType type) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".idx") megatron_is_planned(path);
  InputFile file(path);  // a missing file is called missing, whatever its name
  if (type == TokenType::automatic && extension != ".txt" && extension != ".md" && extension != ".bin") {
    if (const auto other = other_kind_of(file, true))
      throw Error(ExitCode::usage, fmt::format("{} is {}, which is not read.", printable(path), other->name),
                  other->remedy);
    throw Error(
        ExitCode::usage, fmt::format("{} is neither a .txt, a .md nor a .bin file.", printable(path)),
        "Give chats or texts as .jsonl, text as .txt, tokens as .bin (raw uint16, an llm.c shard or LLMQ's), "
        "or say --data-type.");
  }
  if (file.bytes() == 0) malformed(path, "is empty", "Give a file with data.");
  if (type == TokenType::automatic ? extension == ".bin" : type != TokenType::text) {
    if (has_megatron_index(path)) megatron_is_planned(path);
    return open_binary(std::move(file), vocabulary, type);
  }
  if (vocabulary != kTextVocabulary)
    malformed(path,
              fmt::format("is text, whose bytes are tokens of a vocabulary of {}, but the model's has {}",
                          kTextVocabulary, vocabulary),
              "Name a --tokenizer DIR, or train a model on bytes, such as gpt2:vocab=256.");
  if (type == TokenType::automatic) check_text(file);
  const uint64_t begin = behind_byte_order_mark(file), tokens = file.bytes() - begin;
  if (tokens == 0) malformed(path, "is empty", "Give a file with data.");
  return {.file = std::move(file), .width = 1, .data_begin = begin, .tokens = tokens, .trained = tokens};
}

TokenData TokenData::open(const std::vector<std::string>& paths, int64_t vocabulary, TokenType type) {
  CHECK(vocabulary > 0 && vocabulary <= std::numeric_limits<int32_t>::max(), "token ids are int32");
  if (paths.empty())
    throw Error(ExitCode::usage, "no data file is given.", "Name one or more files with --data.");
  TokenData data;
  data.vocabulary_ = vocabulary;
  for (const std::string& path : paths) {
    Part& part = data.parts_.emplace_back(open_part(path, vocabulary, type));
    part.first_token = data.tokens_;
    data.tokens_ += part.tokens;  // no overflow: every token takes bytes of a file
    data.trained_ += part.trained;
  }
  return data;
}

bool TokenData::has_masks() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.mask_begin != 0; });
}

uint64_t TokenData::sample_checksum() const {
  constexpr uint64_t kGaps = 63;
  std::array<int32_t, 4096> ids;
  const uint64_t n = std::min<uint64_t>(ids.size(), tokens_);
  const uint64_t last = tokens_ - n;
  uint64_t checksum = 0;
  for (uint64_t i = 0; i <= kGaps; ++i) {
    const uint64_t first = last / kGaps * i + last % kGaps * i / kGaps;  // last * i / kGaps, without overflow
    read(first, n, ids.data());
    checksum = XXH3_64bits_withSeed(ids.data(), n * sizeof ids[0], checksum);
    if (!has_masks()) continue;
    mask(first, n, ids.data());
    checksum = XXH3_64bits_withSeed(ids.data(), n * sizeof ids[0], checksum);
  }
  return checksum;
}

std::vector<std::string> TokenData::changed_files() const {
  std::vector<std::string> changed;
  for (const Part& part : parts_)
    if (part.file.has_changed()) changed.push_back(part.file.path());
  return changed;
}

std::string TokenData::description() const {
  const std::string first = printable(parts_.front().file.path());
  return parts_.size() == 1 ? first : fmt::format("the {} files from {} on", parts_.size(), first);
}

template <class DoPart>
void TokenData::for_parts(uint64_t first, uint64_t count, int32_t* out, const DoPart& do_part) const {
  CHECK(first <= tokens_ && count <= tokens_ - first, "read past the last token");
  auto part = std::upper_bound(parts_.begin(), parts_.end(), first,
                               [](uint64_t token, const Part& p) { return token < p.first_token; });
  for (--part; count > 0; ++part) {
    const uint64_t within = first - part->first_token;
    const uint64_t n = std::min(count, part->tokens - within);
    do_part(*part, within, n, out);
    first += n;
    count -= n;
    out += n;
  }
}

void TokenData::read(uint64_t first, uint64_t count, int32_t* out) const {
  for_parts(first, count, out, [&](const Part& part, uint64_t within, uint64_t n, int32_t* to) {
    read_part(part, within, n, to);
  });
}

void TokenData::mask(uint64_t first, uint64_t count, int32_t* ids) const {
  for_parts(first, count, ids, [](const Part& part, uint64_t within, uint64_t n, int32_t* of) {
    if (part.mask_begin == 0) return;
    std::array<unsigned char, 1024> bits;
    while (n > 0) {
      const uint64_t first_bit = within % 8, some = std::min<uint64_t>(n, 8 * bits.size() - first_bit);
      part.file.read(part.mask_begin + within / 8, bits.data(), (first_bit + some + 7) / 8);
      for (uint64_t i = 0; i < some; ++i)
        if ((bits[(first_bit + i) / 8] >> (first_bit + i) % 8 & 1) == 0) of[i] = kIgnoreLabel;
      within += some, n -= some, of += some;
    }
  });
}

void TokenData::read_part(const Part& part, uint64_t first, uint64_t count, int32_t* out) const {
  alignas(64) std::byte piece[16 * 1024];  // on the stack: reading allocates nothing
  while (count > 0) {
    const uint64_t n = std::min<uint64_t>(count, sizeof piece / part.width);
    part.file.read(part.data_begin + first * part.width, piece, n * part.width);
    for (uint64_t i = 0; i < n; ++i) {
      const uint32_t token = token_at(piece, i, part.width);
      if (token >= static_cast<uint64_t>(vocabulary_))
        malformed(part.file.path(),
                  fmt::format("has token id {} at position {} (byte {}), but the vocabulary has {} ids",
                              token, first + i, part.data_begin + (first + i) * part.width, vocabulary_),
                  "Tokenize the data with the model's own tokenizer; if the file is of another type, say "
                  "--data-type.");
      out[i] = static_cast<int32_t>(token);
    }
    first += n;
    count -= n;
    out += n;
  }
}

}  // namespace sluice
