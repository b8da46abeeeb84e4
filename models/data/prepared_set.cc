#include "models/data/prepared_set.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/pack.h"
#include "engine/base/strict_json.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 8> kSetMagic = {'S', 'L', 'U', 'I', 'C', 'E', 'P', '4'};
constexpr const char* kSetFile = "set.json";
constexpr const char* kSetFormat = "sluice-prepared-4";
constexpr uint64_t kSetFileBytesMax = 1 << 20;
constexpr uint64_t kPartsMax = 1 << 20;

uint64_t mark_bytes(uint64_t tokens) { return round_up((tokens + 7) / 8, 8); }

// The notes begin behind ids[tokens], marks and samples. Ids may end at an odd multiple of 4 bytes, so marks,
// samples and notes begin at multiples of 4 only.
uint64_t bytes_before_notes(uint64_t tokens, uint64_t samples) {
  return tokens * sizeof(uint32_t) + mark_bytes(tokens) + samples * sizeof(PreparedSample);
}

uint64_t part_bytes(const PartEnd& end) {
  return bytes_before_notes(end.counts.tokens, end.counts.samples) + round_up(end.note_bytes, 8) + sizeof end;
}

[[noreturn]] void damaged(const std::string& path, const std::string& sentence) {
  throw Error(ExitCode::malformed_file, fmt::format("{} {}.", printable(path), sentence),
              "Start again: what is damaged is made anew from the data.");
}

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
using Hash = std::unique_ptr<XXH3_state_t, FreeHash>;

Hash new_hash() {
  Hash hash(XXH3_createState());
  CHECK(hash != nullptr, "memory for a checksum");
  XXH3_64bits_reset(hash.get());
  return hash;
}

// Reads the PartEnd of a part; nothing where it is damaged or contradicts the file's size.
std::optional<PartEnd> end_of(const InputFile& file) {
  PartEnd end;
  if (file.bytes() < sizeof end) return std::nullopt;
  file.read(file.bytes() - sizeof end, &end, sizeof end);
  constexpr uint64_t kMost = uint64_t{1} << 48;  // so that no product overflows
  if (end.magic != kSetMagic || end.counts.tokens > kMost || end.counts.samples > kMost ||
      end.note_bytes > kNoteBytesMax)
    return std::nullopt;
  if (file.bytes() != part_bytes(end)) return std::nullopt;
  return end;
}

}  // namespace

PreparedCounts& PreparedCounts::operator+=(const PreparedCounts& other) {
  records += other.records, samples += other.samples, texts += other.texts;
  tokens += other.tokens, trained += other.trained;
  untrained += other.untrained, bad += other.bad, divided += other.divided;
  unknown_characters += other.unknown_characters, spelled_controls += other.spelled_controls;
  return *this;
}

struct PartWriter::State {
  OutputFile file;
  Hash hash = new_hash();
  std::vector<uint32_t> ids;  // that are not written yet
  std::vector<uint8_t> marks;
  std::vector<PreparedSample> samples;
  uint64_t tokens = 0, trained = 0;

  explicit State(const std::string& path) : file(path) {}
  void write(const void* data, uint64_t bytes) {
    XXH3_64bits_update(hash.get(), data, bytes);
    file.write(data, bytes);
  }
  void flush() {
    write(ids.data(), ids.size() * sizeof ids[0]);
    ids.clear();
  }
};

PartWriter::PartWriter(const std::string& path) : state_(std::make_unique<State>(path)) {}
PartWriter::~PartWriter() = default;

void PartWriter::add(std::span<const uint32_t> ids, const std::vector<bool>& trained, bool is_text,
                     bool goes_on) {
  CHECK(ids.size() >= 2 && ids.size() <= UINT32_MAX && trained.size() == ids.size(), "a sample's tokens");
  State& s = *state_;
  PreparedSample sample{
      .begin = s.tokens, .tokens = static_cast<uint32_t>(ids.size()), .is_text = is_text, .goes_on = goes_on};
  s.marks.resize((s.tokens + ids.size() + 7) / 8);
  for (uint32_t i = 1; i < sample.tokens; ++i) {
    if (!trained[i]) continue;
    if (sample.trained++ == 0) sample.first_trained = i;
    sample.last_trained = i;
    s.marks[(s.tokens + i) / 8] |= static_cast<uint8_t>(1 << (s.tokens + i) % 8);
  }
  s.tokens += ids.size();
  s.trained += sample.trained;
  s.samples.push_back(sample);
  s.ids.insert(s.ids.end(), ids.begin(), ids.end());
  constexpr size_t kFlushTokens = 1 << 16;
  if (s.ids.size() >= kFlushTokens) s.flush();
}

PreparedCounts PartWriter::commit(PreparedCounts counts, const std::string& notes) {
  CHECK(notes.size() <= kNoteBytesMax, "the notes of a part");
  State& s = *state_;
  s.flush();
  s.marks.resize(mark_bytes(s.tokens));
  s.write(s.marks.data(), s.marks.size());
  s.write(s.samples.data(), s.samples.size() * sizeof s.samples[0]);
  std::string padded = notes;
  padded.resize(round_up(notes.size(), 8));
  s.write(padded.data(), padded.size());
  counts.samples = s.samples.size();
  counts.tokens = s.tokens;
  counts.trained = s.trained;
  PartEnd end{kSetMagic, notes.size(), counts, 0};
  XXH3_64bits_update(s.hash.get(), &end, offsetof(PartEnd, checksum));
  end.checksum = XXH3_64bits_digest(s.hash.get());
  s.file.write(&end, sizeof end);
  s.file.commit();
  return counts;
}

std::optional<PreparedCounts> part_counts(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  const InputFile file(path);
  const std::optional<PartEnd> end = end_of(file);
  if (!end) return std::nullopt;
  std::vector<char> piece(1 << 20);
  const Hash hash = new_hash();
  for (uint64_t at = 0, all = file.bytes() - sizeof end->checksum; at < all;) {
    const uint64_t n = std::min<uint64_t>(piece.size(), all - at);
    file.read(at, piece.data(), n);
    XXH3_64bits_update(hash.get(), piece.data(), n);
    at += n;
  }
  return XXH3_64bits_digest(hash.get()) == end->checksum ? std::optional(end->counts) : std::nullopt;
}

std::string part_name(uint64_t index) { return fmt::format("part-{:06}", index); }

void complete_set(const std::string& directory, uint64_t parts, const std::string& facts) {
  nlohmann::ordered_json set{{"format", kSetFormat}, {"parts", parts}};
  set["made_of"] = nlohmann::ordered_json::parse(facts);
  const std::string text = set.dump(2) + "\n";
  OutputFile file((fs::path(directory) / kSetFile).string());
  file.write(text.data(), text.size());
  file.commit();
}

bool is_complete_set(const std::string& directory) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(directory) / kSetFile, ignored);
}

std::optional<uint64_t> parts_of_set(const std::string& directory) {
  if (!is_complete_set(directory)) return std::nullopt;
  try {
    const nlohmann::json set =
        parse_strict_json(read_text_file((fs::path(directory) / kSetFile).string(), kSetFileBytesMax));
    const uint64_t parts = set.at("parts").get<uint64_t>();
    if (set.at("format") == kSetFormat && parts <= kPartsMax) return parts;
  } catch (const std::exception&) {
  }
  return std::nullopt;
}

PreparedSet PreparedSet::open(const std::string& directory, int64_t vocabulary) {
  if (!is_complete_set(directory))
    throw Error(ExitCode::usage, printable(directory) + " is no complete prepared set: it has no set.json.",
                "Make one with `sluice prepare`.");
  const std::optional<uint64_t> parts = parts_of_set(directory);
  if (!parts) damaged((fs::path(directory) / kSetFile).string(), "is damaged, or of another version");
  PreparedSet set;
  set.directory_ = directory;
  set.vocabulary_ = vocabulary;
  for (uint64_t p = 0; p < *parts; ++p) {
    const std::string path = (fs::path(directory) / part_name(p)).string();
    std::error_code ignored;
    if (!fs::exists(path, ignored)) damaged(path, "is missing");
    InputFile file(path);
    const std::optional<PartEnd> end = end_of(file);
    if (!end) damaged(path, "is damaged: its size contradicts what it says");
    std::string notes(end->note_bytes, '\0');
    file.read(bytes_before_notes(end->counts.tokens, end->counts.samples), notes.data(), notes.size());
    set.notes_.push_back(std::move(notes));
    set.parts_.push_back(
        {std::move(file), end->counts.tokens, end->counts.samples, set.counts_.tokens, set.counts_.samples});
    set.counts_ += end->counts;
    set.checksum_ = XXH3_64bits_withSeed(&end->checksum, sizeof end->checksum, set.checksum_);
  }
  return set;
}

void PreparedSet::read_samples(uint64_t first, std::span<PreparedSample> out) const {
  CHECK(first <= samples() && out.size() <= samples() - first, "read past the last sample");
  auto part = std::upper_bound(parts_.begin(), parts_.end(), first,
                               [](uint64_t sample, const Part& p) { return sample < p.first_sample; });
  for (--part; !out.empty(); ++part) {
    const uint64_t within = first - part->first_sample;
    const uint64_t n = std::min<uint64_t>(out.size(), part->samples - within);
    const uint64_t table = part->tokens * sizeof(uint32_t) + mark_bytes(part->tokens);
    part->file.read(table + within * sizeof out[0], out.data(), n * sizeof out[0]);
    for (PreparedSample& sample : out.first(n)) {
      if (sample.begin > part->tokens || sample.tokens > part->tokens - sample.begin || sample.tokens < 2 ||
          sample.last_trained >= sample.tokens || sample.first_trained > sample.last_trained)
        damaged(part->file.path(), "is damaged: a sample lies outside of it");
      sample.begin += part->first_token;
    }
    first += n;
    out = out.subspan(n);
  }
}

void PreparedSet::read_tokens(uint64_t first, uint64_t count, int32_t* ids, uint8_t* marks) const {
  CHECK(first <= counts_.tokens && count <= counts_.tokens - first, "read past the last token");
  auto part = std::upper_bound(parts_.begin(), parts_.end(), first,
                               [](uint64_t token, const Part& p) { return token < p.first_token; });
  for (--part; count > 0; ++part) {
    uint64_t within = first - part->first_token;
    uint64_t left = std::min(count, part->tokens - within);
    first += left, count -= left;
    while (left > 0) {
      std::array<uint32_t, 2048> piece;
      std::array<uint8_t, piece.size() / 8 + 1> bits;  // one more: the first token may stand within a byte
      const uint64_t n = std::min<uint64_t>(piece.size(), left);
      const uint64_t first_byte = within / 8, bytes = (within + n + 7) / 8 - first_byte;
      part->file.read(within * sizeof piece[0], piece.data(), n * sizeof piece[0]);
      part->file.read(part->tokens * sizeof piece[0] + first_byte, bits.data(), bytes);
      for (uint64_t i = 0; i < n; ++i) {
        if (piece[i] >= static_cast<uint64_t>(vocabulary_))
          damaged(part->file.path(),
                  fmt::format("has token id {} at position {}, but the vocabulary has {} ids", piece[i],
                              within + i, vocabulary_));
        ids[i] = static_cast<int32_t>(piece[i]);
        marks[i] = bits[(within + i) / 8 - first_byte] >> (within + i) % 8 & 1;
      }
      within += n, left -= n, ids += n, marks += n;
    }
  }
}

}  // namespace sluice
