// Token files: one or several, joined in the order given into one sequence of token ids.
//
// A file is text, whose bytes are tokens (vocabulary 256), an llm.c shard (uint16 or uint32 behind a header
// of 1024 bytes that says so), LLMQ's (llmq_file.h), or raw uint16 (nanoGPT) or uint32. Sizes are checked
// when a file is opened; ids are checked against the vocabulary as they are read, so that no wrong id
// reaches a device. Masks of an LLMQ file may say which tokens are trained; in other files, all tokens are.
// Positions are 64-bit. Reads are const, need no memory, and may come from any thread. Caller: data_order,
// the trainer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/file.h"

namespace sluice {

// automatic: .txt is text; .bin is an llm.c shard or LLMQ's if it has such a header, else raw uint16.
enum class TokenType : uint8_t { automatic, text, uint16, uint32 };

constexpr int64_t kTextVocabulary = 256;  // of text: its bytes

class TokenData {
 public:
  // Throws Error: malformed_file for empty or truncated files, for files whose header contradicts their size,
  // for text with another vocabulary than bytes, for raw integers of 64 bits (also if `type` is uint32), and
  // under `automatic` for other formats, such as .npy; usage for a missing file, an unknown kind of file,
  // Megatron's format (planned), and a raw file that `automatic` would take for uint16 though it looks like
  // text or uint32, or though the vocabulary needs more than 16 bits.
  static TokenData open(const std::vector<std::string>& paths, int64_t vocabulary,
                        TokenType type = TokenType::automatic);

  uint64_t tokens() const { return tokens_; }

  bool has_masks() const;                        // else all tokens are trained
  uint64_t trained() const { return trained_; }  // tokens

  // Checksum of 64 stretches of up to 4096 ids and their masks, spread from the first to the last: it tells
  // data of equal length apart. Throws as read().
  uint64_t sample_checksum() const;

  // Paths of files that somebody has written to since they were opened.
  std::vector<std::string> changed_files() const;

  // For messages: the file's path, or "the N files from PATH on", where PATH is the first.
  std::string description() const;

  // Tokens [first, first + count), which must exist. Throws Error(malformed_file) naming file and position
  // of an id at or above the vocabulary, Error(io) as InputFile::read.
  void read(uint64_t first, uint64_t count, int32_t* out) const;

  // `ids` are those of tokens [first, first + count). Replaces the ids of tokens that are not trained by
  // kIgnoreLabel. Throws Error(io).
  void mask(uint64_t first, uint64_t count, int32_t* ids) const;

 private:
  TokenData() = default;
  struct Part {
    InputFile file;
    uint64_t width = 1;       // bytes of a token
    uint64_t data_begin = 0;  // byte of the first token
    uint64_t tokens = 0;
    uint64_t first_token = 0;  // in the joined sequence
    uint64_t mask_begin = 0;   // byte of the first mask; 0: there are none
    uint64_t trained = 0;      // tokens
  };
  static Part open_part(const std::string& path, int64_t vocabulary, TokenType type);
  static Part open_binary(InputFile file, int64_t vocabulary, TokenType type);
  static Part open_raw(InputFile file, uint64_t width);
  // Calls do_part(part, first, count, out) for each part of [first, first + count), with positions in that
  // part.
  template <class DoPart>
  void for_parts(uint64_t first, uint64_t count, int32_t* out, const DoPart& do_part) const;
  void read_part(const Part& part, uint64_t first, uint64_t count, int32_t* out) const;

  std::vector<Part> parts_;
  uint64_t tokens_ = 0, trained_ = 0;
  int64_t vocabulary_ = 0;
};

}  // namespace sluice
