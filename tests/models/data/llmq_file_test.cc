// LLMQ's token files: ids, masks as labels, and what is refused.
#include "models/data/llmq_file.h"

#include <limits>
#include <random>
#include <vector>

#include "engine/graph/op.h"
#include "models/data/data_order.h"
#include "models/data/window_rows.h"
#include "tests/support/format_test_support.h"
#include "tests/support/llmq_file.h"

namespace sluice {
namespace {

class LlmqFile : public FormatTest {
 protected:
  static constexpr int32_t kVocabulary = 1000;

  // Token i is i + 1.
  static std::vector<int32_t> counted(size_t tokens) {
    std::vector<int32_t> all(tokens);
    for (size_t i = 0; i < tokens; ++i) all[i] = static_cast<int32_t>(i % 999 + 1);
    return all;
  }
  static std::vector<bool> random_masks(size_t tokens, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<bool> masks(tokens);
    for (size_t i = 0; i < tokens; ++i) masks[i] = random() % 3 == 0;
    masks[tokens / 2] = true;
    return masks;
  }
  std::string write(const std::string& name, size_t tokens, const std::vector<bool>& masks) const {
    return write_file(name, llmq_bytes(counted(tokens), masks, kVocabulary));
  }
  void rejects(const std::string& bytes, const std::string& part, int64_t vocabulary = kVocabulary) const {
    const std::string file = write_file("bad.bin", bytes);
    expect_error(ExitCode::malformed_file, {file, part}, [&] { TokenData::open({file}, vocabulary); });
  }
};

TEST_F(LlmqFile, TokensAndMasksAreRead) {
  const std::vector<bool> masks = {false, false, true, true, false, true, false, false, false, true, false};
  const auto data = TokenData::open({write("a.bin", 11, masks)}, kVocabulary);
  EXPECT_EQ(data.tokens(), 11u);
  EXPECT_EQ(data.trained(), 4u);
  EXPECT_TRUE(data.has_masks());
  std::vector<int32_t> out(11);
  data.read(0, 11, out.data());
  EXPECT_EQ(out, counted(11));
  data.mask(0, 11, out.data());
  const int32_t no = kIgnoreLabel;
  EXPECT_EQ(out, (std::vector<int32_t>{no, no, 3, 4, no, 6, no, no, no, 10, no}));
}

TEST_F(LlmqFile, WithoutMasksEveryTokenIsTrained) {
  const auto data = TokenData::open({write("a.bin", 11, {})}, kVocabulary);
  EXPECT_FALSE(data.has_masks());
  EXPECT_EQ(data.trained(), 11u);
  std::vector<int32_t> out(11);
  data.read(0, 11, out.data());
  data.mask(0, 11, out.data());
  EXPECT_EQ(out, counted(11));
  // A model's vocabulary may have more rows than the tokenizer has tokens.
  EXPECT_EQ(TokenData::open({path("a.bin")}, kVocabulary + 24).tokens(), 11u);
}

// A read may begin within a byte and need several pieces of the reader. The last byte is not full.
TEST_F(LlmqFile, MasksAreFoundFromEveryPlaceOn) {
  const size_t tokens = 20003;  // more than two pieces of the reader, which have 8192 masks
  const std::vector<bool> masks = random_masks(tokens, 1);
  const auto data = TokenData::open({write("a.bin", tokens, masks)}, kVocabulary);
  EXPECT_EQ(data.trained(), static_cast<uint64_t>(std::count(masks.begin(), masks.end(), true)));
  for (const size_t first : {0u, 1u, 7u, 8u, 13u, 8191u, 12345u})
    for (const size_t count : {size_t{1}, size_t{2}, size_t{9}, tokens - first}) {
      std::vector<int32_t> out(count, 7);
      data.mask(first, std::min(count, tokens - first), out.data());
      for (size_t i = 0; i < std::min(count, tokens - first); ++i)
        ASSERT_EQ(out[i], masks[first + i] ? 7 : kIgnoreLabel) << first << " " << count << " " << i;
    }
}

// A label is the next token, trained if the mask of that token is set. The file's first token is none.
TEST_F(LlmqFile, RowsHaveTheLabelsThatAreTrained) {
  std::vector<bool> masks(13);
  masks[0] = masks[3] = masks[4] = masks[8] = masks[12] = true;
  const auto data = TokenData::open({write("a.bin", 13, masks)}, kVocabulary);
  const DataOrder order = make_data_order(data, 4, false, 0);
  WindowRows rows(data, order);
  EXPECT_FALSE(rows.has_documents());
  std::vector<int32_t> inputs(12), labels(12), documents(12);
  rows.read(0, 3, inputs.data(), labels.data(), documents.data());
  const int32_t no = kIgnoreLabel;
  EXPECT_EQ(inputs, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(labels, (std::vector<int32_t>{no, no, 4, 5, no, no, no, 9, no, no, no, 13}));
  EXPECT_EQ(documents, std::vector<int32_t>(12));
}

TEST_F(LlmqFile, FilesWithAndWithoutMasksAreJoined) {
  const std::string masked = write("a.bin", 3, {false, true, false}), open = write("b.bin", 2, {});
  const std::string text = write_file("c.txt", "\1\2");
  const std::string all = write_file("d.bin", llmq_bytes({9, 8}, {true, false}, 256));
  const auto data = TokenData::open({masked, open, all}, kVocabulary);
  EXPECT_TRUE(data.has_masks());
  EXPECT_EQ(data.trained(), 4u);
  std::vector<int32_t> out(7);
  data.read(0, 7, out.data());
  EXPECT_EQ(out, (std::vector<int32_t>{1, 2, 3, 1, 2, 9, 8}));
  data.mask(0, 7, out.data());
  EXPECT_EQ(out, (std::vector<int32_t>{kIgnoreLabel, 2, kIgnoreLabel, 1, 2, 9, kIgnoreLabel}));
  const auto mixed = TokenData::open({text, path("d.bin")}, 256);
  EXPECT_EQ(mixed.trained(), 3u);
}

TEST_F(LlmqFile, TheChecksumTellsMasksApart) {
  const auto checksum = [&](const std::vector<bool>& masks) {
    return TokenData::open({write("a.bin", 100, masks)}, kVocabulary).sample_checksum();
  };
  std::vector<bool> masks = random_masks(100, 2);
  const uint64_t first = checksum(masks);
  EXPECT_EQ(checksum(masks), first);
  masks[99] = !masks[99];
  EXPECT_NE(checksum(masks), first);
  EXPECT_NE(checksum({}), first);
}

TEST_F(LlmqFile, TheTypeThatIsGivenMustAgree) {
  const std::string file = write("a.bin", 5, {});
  EXPECT_EQ(TokenData::open({file}, kVocabulary, TokenType::uint32).tokens(), 5u);
  expect_error(ExitCode::usage, {file, "whose tokens have 32 bits"},
               [&] { TokenData::open({file}, kVocabulary, TokenType::uint16); });
  EXPECT_EQ(TokenData::open({file}, 256, TokenType::text).tokens(), 1024u + 20);  // as bytes, if asked to
}

TEST_F(LlmqFile, BadHeadersAreRefused) {
  const std::string four(4, '\1');
  const auto with = [&](const LlmqNumbers& numbers) { return llmq_header(numbers) + four; };
  const LlmqNumbers good{.tokens = 1, .vocabulary = 1000};
  const auto changed = [&](auto&& change) {
    LlmqNumbers numbers = good;
    change(numbers);
    return with(numbers);
  };
  rejects(changed([](LlmqNumbers& n) { n.version = 1; }), "of version 1, not 2");
  rejects(changed([](LlmqNumbers& n) { n.version = -3; }), "of version -3, not 2");
  rejects(changed([](LlmqNumbers& n) { n.token_bytes = 2; }), "claims 2 bytes a token, not 4");
  rejects(changed([](LlmqNumbers& n) { n.tokens = 0; }), "claims 0 tokens");
  rejects(changed([](LlmqNumbers& n) { n.tokens = -1; }), "claims -1 tokens");
  rejects(changed([](LlmqNumbers& n) { n.tokens = 2; }), "claims 2 tokens without masks, 1032 bytes in all");
  rejects(changed([](LlmqNumbers& n) { n.tokens = std::numeric_limits<int32_t>::max(); }), "but has 1028");
  rejects(changed([](LlmqNumbers& n) { n.vocabulary = 0; }), "claims a vocabulary of 0");
  rejects(changed([](LlmqNumbers& n) { n.vocabulary = 1001; }),
          "for a vocabulary of 1001, but the model's has 1000");
  rejects(changed([](LlmqNumbers& n) { n.has_masks = 2; }), "says 2 where 0 or 1");
  rejects(changed([](LlmqNumbers& n) { n.has_masks = 1; }),
          "claims 1 tokens with masks, 1029 bytes in all, but has 1028");
  rejects(with(good) + '\1', "without masks, 1028 bytes in all, but has 1029");
  const std::string whole = with(good);
  for (size_t n = 8; n < whole.size(); n += 7) rejects(whole.substr(0, n), "LLMQ");
}

TEST_F(LlmqFile, MasksThatTrainNothingAreRefused) {
  rejects(llmq_bytes(counted(11), std::vector<bool>(11), kVocabulary), "trains no token");
  // Bits behind the last token do not count.
  std::string bytes = llmq_bytes(counted(11), std::vector<bool>(11), kVocabulary);
  bytes.back() = '\xF8';
  rejects(bytes, "trains no token");
  bytes.back() = '\x04';
  EXPECT_EQ(TokenData::open({write_file("a.bin", bytes)}, kVocabulary).trained(), 1u);
}

TEST_F(LlmqFile, IdsAreCheckedAsTheyAreRead) {
  const std::string file = write_file("a.bin", llmq_bytes({1, 2, 1000, 4, -1}, {}, kVocabulary));
  const auto data = TokenData::open({file}, kVocabulary);
  int32_t out[5];
  data.read(0, 2, out);
  expect_error(ExitCode::malformed_file, {file, "token id 1000 at position 2 (byte 1032)"},
               [&] { data.read(0, 5, out); });
  expect_error(ExitCode::malformed_file, {file, "token id 4294967295 at position 4"},
               [&] { data.read(3, 2, out); });
}

TEST_F(LlmqFile, RandomFilesNeverCrash) {
  std::mt19937 random(3);
  int opened = 0, rejected = 0;
  for (int round = 0; round < 2000; ++round) {
    const size_t tokens = 1 + random() % 9;
    std::string bytes = llmq_bytes(
        counted(tokens), random() % 2 ? random_masks(tokens, round) : std::vector<bool>{}, kVocabulary);
    if (random() % 2) bytes[8 + random() % 20] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(8 + random() % (bytes.size() - 8));
    try {
      const auto data = TokenData::open({write_file("r.bin", bytes)}, kVocabulary);
      std::vector<int32_t> out(data.tokens());
      data.read(0, out.size(), out.data());
      data.mask(0, out.size(), out.data());
      ++opened;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ExitCode::malformed_file) << error.what();
      ++rejected;
    }
  }
  EXPECT_GT(opened, 500);
  EXPECT_GT(rejected, 500);
}

}  // namespace
}  // namespace sluice
