// tokenizer.model: the pieces, merges and settings of SentencePiece's protobuf, written here byte by byte.
#include "models/text/tokenizer/sentencepiece_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/text/tokenizer/tokenizer.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

using Ids = std::vector<uint32_t>;

// A field of type block; payloads here have less than 128 bytes.
std::string block(int number, const std::string& payload) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(payload.size())} + payload;
}

std::string piece(const std::string& content, float score, char type) {
  return block(1, block(1, content) + '\x15' + bytes_of(score) + '\x18' + type);
}

std::string setting(int number, char value) {
  std::string tag(1, static_cast<char>((number << 3 & 0x7F) | (number > 15 ? 0x80 : 0)));
  if (number > 15) tag += static_cast<char>(number >> 4);
  return tag + value;
}

const std::string kPieces = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3) +
                            piece("<0x78>", 0, 6) + piece("ab", -1, 1) + piece("\u2581ab", -2, 1) +
                            piece("bc", -3, 1) + piece("\u2581", -4, 1) + piece("a", -5, 1) +
                            piece("b", -6, 1) + piece("c", -7, 1) + piece("[X]", 0, 4);
const std::string kTrainer = setting(3, 2) + setting(35, 1);
const std::string kNormalizer = setting(3, 1) + setting(4, 0) + setting(5, 1);

class SentencePieceFile : public FormatTest {
 protected:
  Tokenizer open(const std::string& bytes) const {
    return Tokenizer::open(write_file("tokenizer.model", bytes));
  }
};

TEST_F(SentencePieceFile, MergesFollowTheScores) {
  const Tokenizer tokenizer = open(kPieces + block(2, kTrainer) + block(3, kNormalizer));
  Encoder encoder(tokenizer);
  EXPECT_EQ(encoder.encode("abc").ids, (Ids{5, 10}));                   // ab before bc
  EXPECT_EQ(encoder.encode("c ab").ids, (Ids{7, 10, 5}));               // a blank in front of the text
  EXPECT_EQ(encoder.encode("[X]bcx\xC3\xA9").ids, (Ids{11, 6, 3, 0}));  // only there
  EXPECT_EQ(encoder.encode("<s>").ids, (Ids{1}));
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_FALSE(tokenizer.is_special(11));
  EXPECT_EQ(tokenizer.prefix(), (Ids{1}));
  EXPECT_EQ(tokenizer.suffix(), Ids{});
  EXPECT_EQ(tokenizer.decode(Ids{1, 7, 10, 5, 3}, true), "c abx");
}

TEST_F(SentencePieceFile, SettingsCount) {
  write_file("tokenizer_config.json", R"({"add_bos_token": false, "add_eos_token": true})");
  const Tokenizer tokenizer = open(kPieces + block(2, kTrainer) + block(3, setting(3, 0) + setting(4, 0)));
  EXPECT_EQ(tokenizer.prefix(), Ids{});
  EXPECT_EQ(tokenizer.suffix(), (Ids{2}));
  EXPECT_EQ(Encoder(tokenizer).encode("ab").ids, (Ids{4}));
  EXPECT_EQ(tokenizer.decode(Ids{7, 4}, false), " ab");
  write_file("tokenizer_config.json", "[");
  expect_error(ExitCode::malformed_file, {"tokenizer_config.json: it ends in the middle of its JSON."},
               [&] { open(kPieces + block(2, kTrainer) + block(3, kNormalizer)); });
}

TEST_F(SentencePieceFile, WhatIsNotSupportedOrDamagedIsNamed) {
  const std::string whole = kPieces + block(2, kTrainer) + block(3, kNormalizer);
  const struct {
    std::string bytes, clause;
  } cases[] = {
      {kPieces + block(2, setting(3, 1)) + block(3, kNormalizer),
       "a model of type Unigram is not supported."},
      {kPieces + block(2, setting(3, 4)) + block(3, kNormalizer), "a model that is not of type BPE"},
      {kPieces + block(2, kTrainer), "remove_extra_whitespaces is not supported."},
      {kPieces + block(2, kTrainer) + block(3, kNormalizer + block(2, "map")), "(precompiled_charsmap)"},
      {kPieces + block(2, kTrainer) + block(3, setting(4, 0) + setting(5, 0)), "escape_whitespaces"},
      {whole.substr(0, whole.size() - 1), "tokenizer.model: it ends in the middle of a field."},
      {kPieces + kPieces + block(2, kTrainer) + block(3, kNormalizer), "piece \"<unk>\" is given twice."},
      {kPieces + "\x0F", "a field has an unknown type."},
      {std::string(11, '\xFF'), "an integer has more than 64 bits."},
      {piece("\xFF", 0, 1), "a piece is empty or not UTF-8."},
      {std::string("\x02"), "a field has the number 0."},
      {"", "it has no pieces."},
  };
  const std::string longest = block(1, std::string(2048, 'a')).replace(1, 1, "\x80\x10");
  const std::string longer = block(1, std::string(2049, 'a')).replace(1, 1, "\x81\x10");
  const auto as_piece = [](const std::string& content) {
    const auto size = static_cast<int>(content.size());
    return std::string{'\x0A', static_cast<char>(0x80 | (size & 0x7F)), static_cast<char>(size >> 7)} +
           content;
  };
  EXPECT_NO_THROW(open(whole + as_piece(longest)));
  expect_error(ExitCode::malformed_file, {"a piece has more than 2048 bytes."},
               [&] { open(whole + as_piece(longer)); });
  for (const auto& c : cases)
    expect_error(ExitCode::malformed_file, {"tokenizer.model", c.clause}, [&] { open(c.bytes); });
}

}  // namespace
}  // namespace sluice
