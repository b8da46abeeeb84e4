// safetensors: every rejection that the reader lists, from hand-made bytes; round trips; files damaged at
// random.
#include "models/files/safetensors.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <random>
#include <vector>

#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

std::string file_bytes(const std::string& json, const std::string& data) {
  return bytes_of(uint64_t{json.size()}) + json + data;
}

class SafetensorsTest : public FormatTest {
 protected:
  // Opening a file with this header and so many bytes of data must fail with an error that names `part` and
  // the file.
  void rejects(const std::string& json, size_t data_bytes, const std::string& part) const {
    const std::string file = write_file("bad.safetensors", file_bytes(json, std::string(data_bytes, 'x')));
    SCOPED_TRACE(json.substr(0, 200));
    expect_error(ExitCode::malformed_file, {"bad.safetensors", part}, [&] { SafetensorsFile::open(file); });
  }
};

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   uint64_t begin, uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin,
                     end);
}

TEST_F(SafetensorsTest, ReadsEveryTypeRankZeroAndEmptyTensors) {
  const std::string json =
      "  \n{" + tensor("b", "BF16", "[3]", 8, 14) + "," + tensor("a", "F32", "[1,2]", 0, 8) + "," +
      tensor("scalar", "F64", "[]", 14, 22) + "," + tensor("empty", "F32", "[0,7]", 14, 14) + "," +
      tensor("h", "F16", "[2]", 22, 26) + "," + tensor("i", "I64", "[1]", 26, 34) + "," +
      tensor("j", "I32", "[1]", 34, 38) + "," + tensor("m", "BOOL", "[2]", 38, 40) + "," +
      tensor("u", "U8", "[1]", 40, 41) + R"(,"__metadata__":{"format":"pt","x":"y"}}  )";
  const std::string data = bytes_of(1.5f) + bytes_of(-2.0f) + bytes_of(uint16_t{0x3F80}) +
                           bytes_of(uint16_t{0xC000}) + bytes_of(uint16_t{0x0001}) + bytes_of(0.1) +
                           bytes_of(uint16_t{0x3C00}) + bytes_of(uint16_t{0x0001}) + bytes_of(int64_t{7}) +
                           bytes_of(int32_t{-7}) + std::string("\1\0", 2) + "\xFF";
  const auto file = SafetensorsFile::open(write_file("all.safetensors", file_bytes(json, data)));
  ASSERT_EQ(file.tensors().size(), 9u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.metadata().at("x"), "y");
  EXPECT_EQ(file.find("nothing"), nullptr);
  const auto read = [&](const char* name, uint64_t first, uint64_t count) {
    std::vector<float> values(count);
    file.read_f32(*file.find(name), first, count, values.data());
    return values;
  };
  EXPECT_EQ(file.find("a")->shape, (Shape{1, 2}));
  EXPECT_EQ(read("a", 0, 2), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(read("a", 1, 1), (std::vector<float>{-2.0f}));
  EXPECT_EQ(read("b", 0, 3), (std::vector<float>{1.0f, -2.0f, std::bit_cast<float>(0x00010000u)}));
  EXPECT_EQ(read("scalar", 0, 1), (std::vector<float>{0.1f}));
  EXPECT_EQ(read("h", 0, 2), (std::vector<float>{1.0f, std::ldexp(1.0f, -24)}));
  EXPECT_EQ(file.find("empty")->elements(), 0u);
  EXPECT_TRUE(read("empty", 0, 0).empty());
  EXPECT_EQ(file.find("scalar")->shape, Shape{});
  EXPECT_EQ(file.find("scalar")->elements(), 1u);
  int32_t j = 0;
  file.read_raw(*file.find("j"), 0, sizeof j, &j);
  EXPECT_EQ(j, -7);
  expect_error(ExitCode::malformed_file, {"all.safetensors", "'i'", "I64"}, [&] { read("i", 0, 1); });
}

TEST_F(SafetensorsTest, ReadsWithoutTensors) {
  EXPECT_TRUE(SafetensorsFile::open(write_file("none", file_bytes("{}", ""))).tensors().empty());
}

TEST_F(SafetensorsTest, LongTensorsAreReadInPieces) {
  // 100,003 elements of 2 bytes need several of the reader's 64 KiB pieces, the last one partial.
  const uint64_t n = 100'003;
  std::string data;
  for (uint64_t i = 0; i < n; ++i) data += bytes_of(static_cast<uint16_t>(0x3F80 + i % 128));
  const std::string json = "{" + tensor("t", "BF16", fmt::format("[{}]", n), 0, 2 * n) + "}";
  const auto file = SafetensorsFile::open(write_file("long", file_bytes(json, data)));
  std::vector<float> values(n - 5);
  file.read_f32(file.tensors()[0], 5, values.size(), values.data());
  for (uint64_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], 1.0f + static_cast<float>((i + 5) % 128) / 128.0f) << i;
}

TEST_F(SafetensorsTest, RejectsFilesWithoutARoomyEnoughHeader) {
  const auto rejected = [&](const std::string& bytes, const std::string& part) {
    const std::string file = write_file("bad.safetensors", bytes);
    expect_error(ExitCode::malformed_file, {"bad.safetensors", part}, [&] { SafetensorsFile::open(file); });
  };
  rejected("", "0 bytes");
  rejected("1234567", "7 bytes");
  rejected(bytes_of(uint64_t{100'000'001}) + "{}", "100000001");
  rejected(bytes_of(~uint64_t{0}) + "{}", "18446744073709551615");
  rejected(bytes_of(uint64_t{3}) + "{}", "claims 3 bytes");
  rejected(bytes_of(uint64_t{0}), "not valid JSON");
  expect_error(ExitCode::usage, {"absent"}, [&] { SafetensorsFile::open(path("absent")); });
  expect_error(ExitCode::malformed_file, {"not a regular file"},
               [&] { SafetensorsFile::open(directory.string()); });
}

TEST_F(SafetensorsTest, RejectsBadJson) {
  const std::string good = tensor("a", "U8", "[1]", 0, 1);
  rejects("{" + good, 1, "not valid JSON");
  rejects("{" + good + "}}", 1, "not valid JSON");
  rejects("{" + good + "} x", 1, "not valid JSON");
  rejects("{" + good + "}" + std::string(2, '\0'), 1, "not valid JSON");
  rejects("\xEF\xBB\xBF{" + good + "}", 1, "byte-order mark");
  rejects("{" + tensor("a\xFF", "U8", "[1]", 0, 1) + "}", 1, "not valid UTF-8");
  rejects("{" + tensor("\xED\xA0\x80", "U8", "[1]", 0, 1) + "}", 1, "not valid UTF-8");
  rejects("[]", 0, "an array where an object belongs");
  rejects("null", 0, "null where an object belongs");
  rejects("7", 0, "a number where an object belongs");
  rejects(std::string(50'000'000, '['), 0, "an array where an object belongs");
}

TEST_F(SafetensorsTest, RejectsDuplicatesAndWrongKinds) {
  const std::string good = tensor("a", "U8", "[1]", 0, 1);
  rejects("{" + good + "," + good + "}", 1, "'a' twice");
  rejects("{" + good + "," + tensor("\\u0061", "U8", "[1]", 0, 1) + "}", 1, "'a' twice");
  rejects(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "its dtype twice");
  rejects(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, "lacks its dtype");
  rejects(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "lacks its shape");
  rejects(R"({"a":{"dtype":"U8","shape":[1]}})", 1, "lacks its data_offsets");
  rejects(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"scale":2}})", 1, "unknown field 'scale'");
  rejects(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "not two numbers");
  rejects(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", 1, "data_offsets of tensor 'a'");
  rejects(R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1, "dtype of tensor 'a'");
  rejects(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "shape of tensor 'a'");
  rejects(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1, "shape of tensor 'a'");
  rejects(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "a negative number");
  rejects(R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "no 64-bit integer");
  rejects(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616]}})", 1,
          "no 64-bit integer");
  rejects(R"({"a":[1]})", 1, "'a' is an array");
  rejects(R"({"a":"U8"})", 1, "'a' is a string");
  rejects(R"({"__metadata__":{"n":1}})", 0, "'n' is a number, not a string");
  rejects(R"({"__metadata__":{"n":{}}})", 0, "'n' is an object, not a string");
  rejects(R"({"__metadata__":{"n":"1","n":"2"}})", 0, "'n' twice");
  rejects(R"({"__metadata__":{},"__metadata__":{}})", 0, "'__metadata__' twice");
  rejects(R"({"__metadata__":"pt"})", 0, "'__metadata__' is a string");
}

TEST_F(SafetensorsTest, RejectsLyingOffsetsAndShapes) {
  const auto both = [](uint64_t b, uint64_t c, uint64_t d) {
    return "{" + tensor("a", "U8", "[4]", 0, 4) + "," + tensor("b", "U8", fmt::format("[{}]", d), b, c) + "}";
  };
  rejects(both(5, 9, 4), 9,
          "'b' begins at byte 5 of the data, which leaves a hole or an overlap after byte 4");
  rejects(both(3, 8, 5), 8,
          "'b' begins at byte 3 of the data, which leaves a hole or an overlap after byte 4");
  rejects("{" + tensor("a", "U8", "[4]", 2, 6) + "}", 6, "'a' begins at byte 2");
  rejects(both(4, 2, 2), 8, "'b' ends before it begins");
  rejects(both(4, 8, 4), 7, "'b' ends at byte 8 of the data, but the file has only 7 bytes of data");
  rejects(both(4, 8, 4), 9, "but the file has 9");
  rejects("{}", 1, "but the file has 1");
  rejects(both(4, 8, 3), 8, "'b' has 4 bytes, but its shape and dtype make 3");
  rejects("{" + tensor("a", "F32", "[2]", 0, 4) + "}", 4, "its shape and dtype make 8");
  rejects("{" + tensor("a", "F32", "[4294967296,4294967296]", 0, 4) + "}", 4,
          "the shape of tensor 'a' overflows");
  rejects("{" + tensor("a", "F32", "[4611686018427387905]", 0, 4) + "}", 4,
          "the shape of tensor 'a' overflows");
  rejects("{" + tensor("a", "U8", "[18446744073709551615]", 0, 4) + "}", 4,
          "the shape of tensor 'a' overflows");
  rejects("{" + tensor("a", "U8", "[4]", 0, 18446744073709551615u) + "}", 4,
          "but the file has only 4 bytes of data");
  rejects("{" + tensor("a\\n\\u001b", "F8_E4M3", "[1]", 0, 1) + "}", 1, "'a\\x0a\\x1b' has dtype 'F8_E4M3'");
}

TEST_F(SafetensorsTest, EveryTruncationAndExtensionIsRejected) {
  const std::string whole = file_bytes("{" + tensor("a", "F32", "[2]", 0, 8) + "}", "12345678");
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::string file = write_file("cut", whole.substr(0, n));
    expect_error(ExitCode::malformed_file, {"cut"}, [&] { SafetensorsFile::open(file); });
  }
  const std::string file = write_file("cut", whole + "9");
  expect_error(ExitCode::malformed_file, {"cut"}, [&] { SafetensorsFile::open(file); });
}

TEST_F(SafetensorsTest, RandomDamageEndsInAnErrorOrReadableTensors) {
  const std::string whole =
      file_bytes("{" + tensor("a", "F32", "[2,1]", 0, 8) + "," + tensor("b", "F64", "[]", 8, 16) + "," +
                     tensor("c", "BF16", "[3]", 16, 22) + R"(,"__metadata__":{"format":"pt"}})",
                 std::string(22, '\1'));
  const std::string alphabet = "{}[]\",:0123456789-.eE\\u \n\xFF\0F";
  std::mt19937 random(1);
  int opened = 0, rejected = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = whole;
    for (uint32_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = alphabet[random() % alphabet.size()];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 3);
          break;
        default:
          bytes.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
      }
    }
    try {
      const auto file = SafetensorsFile::open(write_file("damaged", bytes));
      for (const SafetensorsTensor& t : file.tensors()) {
        std::vector<char> raw(t.bytes);
        ASSERT_LE(t.begin + t.bytes, bytes.size());
        file.read_raw(t, 0, t.bytes, raw.data());
      }
      ++opened;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ExitCode::malformed_file) << error.what();
      ++rejected;
    }
  }
  EXPECT_GT(opened, 100);     // damage to the data alone goes unseen: the format has no checksum
  EXPECT_GT(rejected, 2000);  // most of the file is header
}

TEST_F(SafetensorsTest, LayoutPadsTheHeaderToTheAlignment) {
  const std::vector<TensorSpec> specs = {
      {"x", DType::f32, {3, 5}}, {"y\n\"", DType::bf16, {7}}, {"z", DType::f64, {}}};
  for (const uint64_t alignment : {kExportAlignment, uint64_t{64}, kCheckpointAlignment}) {
    const SafetensorsLayout layout = lay_out_safetensors(specs, {{"step", "7"}}, alignment);
    EXPECT_EQ(layout.header.size() % alignment, 0u);
    EXPECT_LT(layout.header.size(), 512 + alignment);
    EXPECT_EQ(layout.offsets, (std::vector<uint64_t>{layout.header.size(), layout.header.size() + 60,
                                                     layout.header.size() + 74}));
    EXPECT_EQ(layout.file_bytes, layout.header.size() + 82);
    // A caller that writes the data itself gets a file that opens.
    const auto file = SafetensorsFile::open(write_file("f", layout.header + std::string(82, '\0')));
    EXPECT_EQ(file.find("y\n\"")->begin, layout.offsets[1]);
    EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"step", "7"}}));
  }
}

TEST_F(SafetensorsTest, HeaderBytesAreAsTheFormatSays) {
  const SafetensorsLayout layout =
      lay_out_safetensors(std::vector<TensorSpec>{{"w", DType::f16, {2, 3}}}, {}, 8);
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}})";
  ASSERT_EQ(json.size(), 88u);  // already a multiple of 8, as is the length before it
  EXPECT_EQ(layout.header, bytes_of(uint64_t{88}) + json);
}

TEST_F(SafetensorsTest, WriterRoundTripsAndLeavesNothingElse) {
  const std::vector<TensorSpec> specs = {
      {"a", DType::f32, {1000}}, {"none", DType::f32, {0}}, {"b", DType::u8, {3}}};
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 3;
  SafetensorsWriter writer(path("out.safetensors"), specs, {}, kExportAlignment);
  writer.write(values.data(), 1234);  // pieces need not end where elements do
  writer.write(reinterpret_cast<const char*>(values.data()) + 1234, 4000 - 1234);
  writer.write("xyz", 3);
  EXPECT_FALSE(std::filesystem::exists(path("out.safetensors")));
  writer.finish();
  EXPECT_EQ(files(), 1u);
  const auto file = SafetensorsFile::open(path("out.safetensors"));
  std::vector<float> read(1000);
  file.read_f32(*file.find("a"), 0, 1000, read.data());
  EXPECT_EQ(read, values);
  EXPECT_EQ(file.find("b")->bytes, 3u);
}

TEST_F(SafetensorsTest, UnfinishedAndFailedWritersRemoveTheirTemporary) {
  const std::vector<TensorSpec> specs = {{"a", DType::f32, {1 << 16}}};
  write_file("old.safetensors", "precious");
  {
    SafetensorsWriter writer(path("old.safetensors"), specs, {}, kExportAlignment);
    writer.write("1234", 4);
    EXPECT_EQ(files(), 2u);
  }
  EXPECT_EQ(files(), 1u);
  EXPECT_EQ(read_file("old.safetensors"), "precious");
  // A limit on file sizes stands for a full drive: both fail a write after part of it.
  const auto ignore = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{100'000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::vector<float> values(1 << 16);
  expect_error(ExitCode::io, {"Cannot write", "old.safetensors"}, [&] {
    SafetensorsWriter writer(path("old.safetensors"), specs, {}, kExportAlignment);
    writer.write(values.data(), values.size() * sizeof(float));
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, ignore);
  EXPECT_EQ(files(), 1u);
  EXPECT_EQ(read_file("old.safetensors"), "precious");
  expect_error(ExitCode::environment, {"Cannot create"},
               [&] { SafetensorsWriter(path("no/such/directory"), specs, {}, kExportAlignment); });
}

TEST_F(SafetensorsTest, AFileThatShrinksWhileOpenIsAnIoError) {
  const std::string name =
      write_file("f", file_bytes("{" + tensor("a", "U8", "[100]", 0, 100) + "}", std::string(100, 'x')));
  const auto file = SafetensorsFile::open(name);
  std::filesystem::resize_file(name, file.tensors()[0].begin + 10);
  char out[100];
  expect_error(ExitCode::io, {"became shorter"}, [&] { file.read_raw(file.tensors()[0], 0, 100, out); });
}

}  // namespace
}  // namespace sluice
