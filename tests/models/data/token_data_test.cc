// Token files and the order in which a run reads them.
#include "models/data/token_data.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "models/data/data_order.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

class TokenDataTest : public FormatTest {
 protected:
  std::string write_u16(const std::string& name, const std::vector<uint16_t>& tokens) const {
    std::string bytes;
    for (const uint16_t token : tokens) bytes += bytes_of(token);
    return write_file(name, bytes);
  }
  std::vector<int32_t> all(const TokenData& data) const {
    std::vector<int32_t> tokens(data.tokens());
    data.read(0, tokens.size(), tokens.data());
    return tokens;
  }
  void rejects(const std::string& file, int64_t vocabulary, ExitCode code, const std::string& part) const {
    expect_error(code, {file, part}, [&] { TokenData::open({file}, vocabulary); });
  }
};

std::string shard_header(int32_t magic, int32_t version, int32_t tokens) {
  std::string header = bytes_of(magic) + bytes_of(version) + bytes_of(tokens);
  header.resize(1024, '\0');
  return header;
}

TEST_F(TokenDataTest, TextIsBytes) {
  const auto data = TokenData::open({write_file("a.txt", "A\x01\xFF")}, 256);
  EXPECT_EQ(all(data), (std::vector<int32_t>{65, 1, 255}));
  rejects(path("a.txt"), 257, ExitCode::malformed_file, "vocabulary of 256, but the model's has 257");
  rejects(path("a.txt"), 255, ExitCode::malformed_file, "but the model's has 255");
}

TEST_F(TokenDataTest, AByteOrderMarkIsNoText) {
  const auto data = TokenData::open({write_file("a.txt", "\xef\xbb\xbfHi")}, 256);
  EXPECT_EQ(all(data), (std::vector<int32_t>{'H', 'i'}));
  write_file("a.txt", "\xef\xbb\xbf");
  rejects(path("a.txt"), 256, ExitCode::malformed_file, "a.txt is empty");
}

// UTF-16, whose every second byte is 0.
TEST_F(TokenDataTest, TextWithBytesOfZeroIsAskedAbout) {
  const std::string file = write_file("a.txt", std::string("A\0B\0", 4));
  rejects(file, 256, ExitCode::usage, "has bytes of 0 and does not look like text");
  EXPECT_EQ(all(TokenData::open({file}, 256, TokenType::text)), (std::vector<int32_t>{65, 0, 66, 0}));
}

TEST_F(TokenDataTest, FilesThatAreWrittenToAreNamed) {
  const auto data = TokenData::open({write_file("a.txt", "AB"), write_file("b.txt", "CD")}, 256);
  EXPECT_TRUE(data.changed_files().empty());
  std::filesystem::last_write_time(path("b.txt"),
                                   std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_EQ(data.changed_files(), std::vector<std::string>{path("b.txt")});
}

TEST_F(TokenDataTest, RawUint16) {
  const auto data = TokenData::open({write_u16("a.bin", {1, 50256, 0})}, 50257);
  EXPECT_EQ(all(data), (std::vector<int32_t>{1, 50256, 0}));
  EXPECT_EQ(TokenData::open({write_u16("one.bin", {7})}, 8).tokens(), 1u);
  rejects(write_file("odd.bin", "12345"), 256, ExitCode::malformed_file, "5 bytes, no multiple of 2");
  rejects(write_file("empty.bin", ""), 256, ExitCode::malformed_file, "is empty");
  rejects(write_file("empty.txt", ""), 256, ExitCode::malformed_file, "is empty");
  rejects(path("absent.bin"), 256, ExitCode::usage, "Cannot open");
  rejects(write_file("a.json", "{}"), 256, ExitCode::usage, "neither a .txt, a .md nor a .bin");
  expect_error(ExitCode::usage, {"no data file"}, [] { TokenData::open({}, 256); });
}

// Files whose bytes look like another format are not read as raw uint16 unless the type is given.
TEST_F(TokenDataTest, FilesThatLookLikeSomethingElseAreAskedAbout) {
  std::string wide, text;
  for (uint32_t i = 0; i < 200; ++i) wide += bytes_of(i), text += "In the beginning ";
  const std::string a = write_file("wide.bin", wide), b = write_file("text.bin", text);
  rejects(a, 50257, ExitCode::usage, "looks like raw uint32 tokens");
  rejects(b, 50257, ExitCode::usage, "looks like text");
  std::vector<int32_t> counted(200);
  std::iota(counted.begin(), counted.end(), 0);
  EXPECT_EQ(all(TokenData::open({a}, 50257, TokenType::uint32)), counted);
  EXPECT_EQ(TokenData::open({a}, 50257, TokenType::uint16).tokens(), 400u);
  EXPECT_EQ(TokenData::open({b}, 256, TokenType::text).tokens(), text.size());
  EXPECT_EQ(TokenData::open({b}, 65536, TokenType::uint16).tokens(), text.size() / 2);
  std::string wider;
  for (uint64_t i = 0; i < 200; ++i) wider += bytes_of(i);
  const std::string c = write_file("int64.bin", wider);
  for (const TokenType type : {TokenType::automatic, TokenType::uint32})
    expect_error(ExitCode::malformed_file, {"looks like integers of 64 bits"},
                 [&] { TokenData::open({c}, 50257, type); });
  for (const auto& [begin, name] : {std::pair{"\x93NUMPY\x01", "a NumPy file"},
                                    {"\x1f\x8b\x08", "a gzip file"},
                                    {"PK\x03\x04", "a zip archive"},
                                    {"PAR1", "a Parquet file"}})
    rejects(write_file("other.bin", begin + std::string(100, 'x')), 50257, ExitCode::malformed_file, name);
  // If tokens begin like such a file, their type must be given.
  EXPECT_EQ(TokenData::open({write_u16("like_gzip.bin", {0x8b1f, 8})}, 50257, TokenType::uint16).tokens(),
            2u);
  const std::string few = write_u16("few.bin", {1, 2, 3, 4});
  rejects(few, 128256, ExitCode::usage, "vocabulary of 128256 needs more than uint16");
  EXPECT_EQ(TokenData::open({few}, 128256, TokenType::uint16).tokens(), 4u);
  const std::string named = write_u16("tokens.dat", {1, 2});  // any name, if the type is given
  EXPECT_EQ(TokenData::open({named}, 50257, TokenType::uint16).tokens(), 2u);
  const std::string shard = write_file("s.bin", shard_header(20240520, 1, 1) + bytes_of(uint16_t{9}));
  EXPECT_EQ(all(TokenData::open({shard}, 10, TokenType::uint16)), std::vector<int32_t>{9});
  expect_error(ExitCode::usage, {"is an llm.c shard of uint16 tokens"},
               [&] { TokenData::open({shard}, 10, TokenType::uint32); });
  EXPECT_EQ(TokenData::open({write_u16("zeros.bin", std::vector<uint16_t>(400))}, 50257).tokens(), 400u);
}

TEST_F(TokenDataTest, ShardsOfBothWidths) {
  const auto narrow =
      write_file("n.bin", shard_header(20240520, 1, 2) + bytes_of(uint16_t{9}) + bytes_of(uint16_t{65535}));
  EXPECT_EQ(all(TokenData::open({narrow}, 65536)), (std::vector<int32_t>{9, 65535}));
  const auto wide =
      write_file("w.bin", shard_header(20240801, 7, 2) + bytes_of(uint32_t{128255}) + bytes_of(uint32_t{1}));
  EXPECT_EQ(all(TokenData::open({wide}, 128256)), (std::vector<int32_t>{128255, 1}));
}

TEST_F(TokenDataTest, LyingShardsAreRejected) {
  const auto shard = [&](const std::string& bytes, const std::string& part) {
    rejects(write_file("s.bin", bytes), 50257, ExitCode::malformed_file, part);
  };
  const std::string four(4, '\0');
  shard(shard_header(20240520, 1, 3) + four, "claims 3 tokens, 1030 bytes in all, but has 1028");
  shard(shard_header(20240520, 1, 1) + four, "claims 1 tokens, 1026 bytes in all, but has 1028");
  shard(shard_header(20240801, 7, 2) + four, "claims 2 tokens, 1032 bytes in all, but has 1028");
  shard(shard_header(20240520, 1, -1) + four, "claims -1 tokens");
  shard(shard_header(20240520, 1, 0), "without tokens");
  shard(shard_header(20240520, 7, 2) + four, "version 7, not 1");
  shard(shard_header(20240801, 1, 1) + four, "version 1, not 7");
  const std::string whole = shard_header(20240801, 7, 1) + four;
  for (size_t n = 4; n < whole.size(); ++n) shard(whole.substr(0, n), "llm.c shard");
}

TEST_F(TokenDataTest, MegatronIsPlanned) {
  const std::string index = write_file("m.idx", std::string("MMIDIDX\0\0", 9) + std::string(40, '\0'));
  rejects(index, 256, ExitCode::usage, "planned");
  rejects(write_u16("m.bin", {1, 2}), 256, ExitCode::usage, "planned");
  write_file("other.idx", "something else altogether");
  EXPECT_EQ(TokenData::open({write_u16("other.bin", {1, 2})}, 256).tokens(), 2u);
}

TEST_F(TokenDataTest, IdsOutsideTheVocabularyAreNamed) {
  std::vector<uint16_t> tokens(20000, 3);  // more than one piece of the reader
  tokens[12345] = 300;
  const std::string file = write_u16("a.bin", tokens);
  const auto data = TokenData::open({file}, 300);
  std::vector<int32_t> out(20000);
  data.read(12346, 20000 - 12346, out.data());
  expect_error(ExitCode::malformed_file, {file, "token id 300 at position 12345 (byte 24690)", "300 ids"},
               [&] { data.read(0, 20000, out.data()); });
  const auto shard = write_file("s.bin", shard_header(20240801, 7, 1) + bytes_of(uint32_t{0xFFFFFFFF}));
  expect_error(ExitCode::malformed_file, {shard, "token id 4294967295 at position 0 (byte 1024)"},
               [&] { TokenData::open({shard}, std::numeric_limits<int32_t>::max()).read(0, 1, out.data()); });
}

TEST_F(TokenDataTest, FilesAreJoinedInOrder) {
  const auto a = write_u16("a.bin", {0, 1, 2});
  const auto b = write_file("b.txt", std::string("\3\4"));
  const auto c = write_file("c.bin", shard_header(20240801, 7, 3) + bytes_of(5) + bytes_of(6) + bytes_of(7));
  const auto data = TokenData::open({a, b, c, a}, 256);
  const std::vector<int32_t> joined = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2};
  EXPECT_EQ(all(data), joined);
  for (uint64_t first = 0; first <= joined.size(); ++first)
    for (uint64_t count = 0; first + count <= joined.size(); ++count) {
      std::vector<int32_t> out(count);
      data.read(first, count, out.data());
      EXPECT_TRUE(std::equal(out.begin(), out.end(), joined.begin() + static_cast<int64_t>(first)));
    }
  expect_error(ExitCode::malformed_file, {"the 2 files from", "holds 6 tokens; one sequence of 6 needs 7"},
               [&] {
                 make_data_order(TokenData::open({a, a}, 256), 6, true, 0);
               });
}

TEST_F(TokenDataTest, PositionsBeyond32Bits) {
  // A sparse file: 5 GiB of zeros, of which a few bytes are read.
  const std::string file = write_file("big.bin", "");
  const uint64_t bytes = uint64_t{5} << 30;
  std::filesystem::resize_file(file, bytes);
  const auto data = TokenData::open({file}, 256);
  EXPECT_EQ(data.tokens(), bytes / 2);
  int32_t out[2] = {1, 1};
  data.read(bytes / 2 - 2, 2, out);
  EXPECT_EQ(out[0] + out[1], 0);
}

TEST_F(TokenDataTest, RandomFilesNeverCrash) {
  std::mt19937 random(2);
  int opened = 0, rejected = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = shard_header(random() % 2 ? 20240520 : 20240801, random() % 2 ? 1 : 7,
                                     static_cast<int32_t>(random() % 8));
    bytes.append(random() % 40, '\0');
    if (random() % 2) bytes[random() % 12] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    try {
      const auto data = TokenData::open({write_file("r.bin", bytes)}, 50257);
      all(data);
      ++opened;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ExitCode::malformed_file) << error.what();
      ++rejected;
    }
  }
  EXPECT_GT(opened, 20);
  EXPECT_GT(rejected, 500);
}

TEST(DataOrder, PermutationIsABijectionForEverySeedAndEpoch) {
  for (const uint64_t size : {1u, 2u, 3u, 37u, 64u, 1000u})
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}})
      for (const uint64_t epoch : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
        std::set<uint64_t> seen;
        for (uint64_t i = 0; i < size; ++i) seen.insert(permuted(i, size, seed, epoch));
        EXPECT_EQ(seen.size(), size);
        EXPECT_EQ(*seen.rbegin(), size - 1);
      }
}

TEST(DataOrder, PermutationsLookRandom) {
  // Of 1000 places, one stays put on average: 20 in 20 epochs, with a deviation of 4.5. Displacements average
  // 1000/3; that mean has a deviation of 1000/sqrt(18 * 20000) = 1.7.
  int fixed = 0;
  double distance = 0;
  for (uint64_t epoch = 0; epoch < 20; ++epoch)
    for (uint64_t i = 0; i < 1000; ++i) {
      const uint64_t to = permuted(i, 1000, 7, epoch);
      fixed += to == i;
      distance += std::abs(static_cast<double>(to) - static_cast<double>(i));
    }
  EXPECT_NEAR(fixed, 20, 5 * 4.5);
  EXPECT_NEAR(distance / 20000, 1000.0 / 3, 5 * 1.7);
  // All six orders of three windows occur about equally often: 100 times of 600, with a deviation of 9.1.
  std::map<uint64_t, int> orders;
  for (uint64_t epoch = 0; epoch < 600; ++epoch)
    ++orders[permuted(0, 3, 5, epoch) * 9 + permuted(1, 3, 5, epoch) * 3 + permuted(2, 3, 5, epoch)];
  ASSERT_EQ(orders.size(), 6u);
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, 100, 5 * 9.1) << order;
}

TEST(DataOrder, LargeSizesStayInside) {
  for (const uint64_t size : {(uint64_t{1} << 33) + 1, uint64_t{1} << 63, ~uint64_t{0}})
    for (uint64_t i = 0; i < 100; ++i) EXPECT_LT(permuted(size - 1 - i, size, 1, 2), size);
}

TEST_F(TokenDataTest, WindowsAndLabels) {
  std::string text;
  for (int i = 0; i < 23; ++i) text += static_cast<char>(i);
  const auto data = TokenData::open({write_file("a.txt", text)}, 256, TokenType::text);
  const DataOrder order = make_data_order(data, 5, false, 0);
  EXPECT_EQ(order.windows, 4u);  // floor(22 / 5): tokens 0..20 are read, 21 and 22 are not
  std::vector<int32_t> inputs(10), labels(10);
  read_rows(order, data, 3, 2, inputs.data(), labels.data());  // the last window, then the first again
  EXPECT_EQ(inputs, (std::vector<int32_t>{15, 16, 17, 18, 19, 0, 1, 2, 3, 4}));
  EXPECT_EQ(labels, (std::vector<int32_t>{16, 17, 18, 19, 20, 1, 2, 3, 4, 5}));
  EXPECT_EQ(make_data_order(data, 22, false, 0).windows, 1u);
  expect_error(ExitCode::malformed_file, {"holds 23 tokens; one sequence of 23 needs 24"},
               [&] { make_data_order(data, 23, false, 0); });
}

TEST_F(TokenDataTest, ShuffledEpochsVisitEveryWindowOnce) {
  const auto data = TokenData::open({write_file("a.txt", std::string(101, 'x'))}, 256);
  const DataOrder order = make_data_order(data, 4, true, 3);
  ASSERT_EQ(order.windows, 25u);
  std::vector<std::vector<uint64_t>> epochs;
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<uint64_t> visited;
    for (uint64_t i = 0; i < 25; ++i) visited.push_back(window_of_row(order, epoch * 25 + i));
    EXPECT_EQ(std::set<uint64_t>(visited.begin(), visited.end()).size(), 25u);
    epochs.push_back(visited);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST_F(TokenDataTest, ValidationReadsTheFirstWindowsOrSaysHowManyThereAre) {
  const auto data = TokenData::open({write_file("v.txt", std::string(101, 'x'))}, 256);
  const DataOrder order = make_validation_order(data, 10, 5, 2);
  for (uint64_t row = 0; row < 10; ++row) EXPECT_EQ(window_of_row(order, row), row);
  expect_error(ExitCode::usage, {"4 batches of 3 sequences", "holds 10 sequences"},
               [&] { make_validation_order(data, 10, 4, 3); });
  expect_error(ExitCode::usage, {"holds 10 sequences"},
               [&] { make_validation_order(data, 10, uint64_t{1} << 63, 4); });
}

}  // namespace
}  // namespace sluice
