// A prepared set: samples as token ids, each with a mark whether it is trained. `sluice prepare` writes it.
//
// A set is a directory of parts and of set.json. Parts are written one by one; a part is complete when it has
// its final name. set.json is written last and makes the set complete. A part, little-endian:
//   u32 ids[tokens]; u8 marks[(tokens + 7) / 8], bit i % 8 of byte i / 8 for token i; zeros up to a multiple
//   of 8 bytes; PreparedSample samples[samples]; notes, and zeros up to a multiple of 8 bytes; PartEnd.
// Samples lie in the order of the data. Sizes are checked when a set is opened, ids as they are read,
// checksums by part_counts(), which a preparation calls for each part before a set is used
// (Preparation::damaged_files). Reads are const, allocate nothing, and may come from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/file.h"

namespace sluice {

constexpr uint64_t kNoteBytesMax = 1 << 20;

struct PreparedSample {
  uint64_t begin = 0;  // index of its first token in the part; from PreparedSet::read_samples(), in the set
  uint32_t tokens = 0;
  uint32_t trained = 0;  // tokens that are marked; the first token of a sample never is
  uint32_t first_trained = 0, last_trained = 0;  // indices in the sample; 0: none is marked
  uint32_t is_text = 0;                          // 1: of no conversation
  uint32_t goes_on = 0;                          // 1: of the same record as the sample before it
  bool operator==(const PreparedSample&) const = default;
};
static_assert(sizeof(PreparedSample) == 32);

// What became of the records of some data.
struct PreparedCounts {
  uint64_t records = 0;  // that were read
  uint64_t samples = 0;  // that came of them
  uint64_t texts = 0;    // samples of which all tokens are trained, as they are no conversations
  uint64_t tokens = 0, trained = 0;
  uint64_t untrained = 0;  // samples that were left out, because no token is trained
  uint64_t bad = 0;        // records that were left out, because they are malformed
  uint64_t divided = 0;    // conversations that became a sample for each answer
  // First: characters of the samples' texts that the tokenizer's patterns do not know. Second: control tokens
  // that users' text spells, and that stay text.
  uint64_t unknown_characters = 0, spelled_controls = 0;
  PreparedCounts& operator+=(const PreparedCounts& other);
  bool operator==(const PreparedCounts&) const = default;
};

struct PartEnd {  // the last bytes of a part
  std::array<char, 8> magic{};
  uint64_t note_bytes = 0;  // at most kNoteBytesMax
  PreparedCounts counts;
  uint64_t checksum = 0;  // XXH3 of all bytes before it
};

// Writes one part, in memory that grows with its marks and samples only.
class PartWriter {
 public:
  explicit PartWriter(const std::string& path);  // throws as OutputFile
  ~PartWriter();
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  // trained[i] marks ids[i]. At least two tokens. Throws Error(io).
  void add(std::span<const uint32_t> ids, const std::vector<bool>& trained, bool is_text = false,
           bool goes_on = false);
  // `counts`: of the part's records; commit() fills in samples and tokens, and returns the counts. `notes`:
  // text about the part that its reader understands. Throws Error(io).
  PreparedCounts commit(PreparedCounts counts, const std::string& notes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The counts of a complete part; none where the part is missing or damaged.
std::optional<PreparedCounts> part_counts(const std::string& path);

class PreparedSet {
 public:
  // Throws Error(usage) where the directory is no complete set, Error(malformed_file) where a part is
  // missing or contradicts its size.
  static PreparedSet open(const std::string& directory, int64_t vocabulary);

  const PreparedCounts& counts() const { return counts_; }
  const std::vector<std::string>& notes() const { return notes_; }  // of the parts, in order
  uint64_t samples() const { return counts_.samples; }
  uint64_t checksum() const { return checksum_; }  // of all parts' checksums
  const std::string& directory() const { return directory_; }

  // Samples [first, first + out.size()).
  void read_samples(uint64_t first, std::span<PreparedSample> out) const;
  // Tokens [first, first + count) of the set and their marks (0 or 1). Throws Error(malformed_file) for an id
  // at or above the vocabulary, Error(io).
  void read_tokens(uint64_t first, uint64_t count, int32_t* ids, uint8_t* marks) const;

 private:
  struct Part {
    InputFile file;
    uint64_t tokens, samples, first_token, first_sample;
  };
  std::string directory_;
  int64_t vocabulary_ = 0;
  std::vector<Part> parts_;
  PreparedCounts counts_;
  std::vector<std::string> notes_;
  uint64_t checksum_ = 0;
};

// "part-000012"
std::string part_name(uint64_t index);

// Writes set.json for `parts` complete parts. `facts`: JSON text that tells people what the set is made of.
void complete_set(const std::string& directory, uint64_t parts, const std::string& facts);
bool is_complete_set(const std::string& directory);
// How many parts a complete set has, as its set.json says; none where that is missing or damaged.
std::optional<uint64_t> parts_of_set(const std::string& directory);

}  // namespace sluice
