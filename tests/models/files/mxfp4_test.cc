// Blocks of MXFP4 made by hand: every value, scales, the order of the decoded values, and ranges of them.
#include "models/files/mxfp4.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

class Mxfp4Test : public FormatTest {
 protected:
  // Writes a file with the tensor of blocks and the tensor of scales, and opens it.
  void store(const Shape& blocks_shape, const std::string& blocks, const std::string& scales) {
    const Shape of_scales(blocks_shape.begin(), blocks_shape.end() - 1);
    const std::vector<TensorSpec> specs = {{"m_blocks", DType::u8, blocks_shape},
                                           {"m_scales", DType::u8, of_scales}};
    SafetensorsWriter writer(path("file"), specs, {}, kExportAlignment);
    writer.write(blocks.data(), blocks.size());
    writer.write(scales.data(), scales.size());
    writer.finish();
    file_.emplace(SafetensorsFile::open(path("file")));
    tensor_ = {&*file_, file_->find("m_blocks"), &*file_, file_->find("m_scales")};
    reader_.emplace();
  }
  std::vector<float> read(uint64_t first, uint64_t step, uint64_t count) {
    std::vector<float> values(count, -99);
    reader_->read(tensor_, first, step, count, values.data());
    return values;
  }
  Shape shape() const { return mxfp4_shape(*tensor_.blocks, *tensor_.scales); }

  std::optional<SafetensorsFile> file_;
  std::optional<Mxfp4Reader> reader_;  // of that file
  Mxfp4Tensor tensor_;
};

// A block that has every value twice: bytes 0x10, 0x32, ..., 0xfe, twice.
std::string every_value() {
  std::string bytes;
  for (int i = 0; i < 16; ++i) bytes += static_cast<char>(0x10 + 0x22 * (i % 8));
  return bytes;
}

TEST_F(Mxfp4Test, EveryValueAndTheLowBitsFirst) {
  store({1, 1, 1, 16}, every_value(), std::string(1, 127));
  ASSERT_EQ(shape(), (Shape{1, 32, 1}));
  const std::vector<float> once = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const std::vector<float> values = read(0, 1, 32);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(values[i], once[i % 16]) << i;
    EXPECT_EQ(std::signbit(values[i]), i % 16 >= 8) << i;
  }
}

TEST_F(Mxfp4Test, ScalesArePowersOfTwo) {
  const std::string ones(16, 0x22);
  store({1, 1, 5, 16}, ones + ones + ones + ones + ones, {126, char(128), 0, char(254), 127});
  const std::vector<float> values = read(0, 1, 5 * 32);
  const float wanted[] = {0.5f, 2, std::ldexp(1.0f, -127), std::ldexp(1.0f, 127), 1};
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], wanted[i / 32]) << i;
}

// Rows that a range of few rows does not need are not read.
TEST_F(Mxfp4Test, AScaleThatIsNoNumberIsRefused) {
  std::string scales(2 * 20, 127);
  scales[19] = static_cast<char>(255);
  store({2, 20, 1, 16}, std::string(2 * 20 * 16, 0x22), scales);
  EXPECT_EQ(read(20, 1, 2), std::vector<float>(2, 1)) << "the first two rows";
  for (int repeat = 0; repeat < 2; ++repeat)
    expect_error(ExitCode::malformed_file, {"'m_scales' holds the scale 255"}, [&] { read(0, 1, 64); });
  EXPECT_EQ(read(20 * 32, 1, 20 * 32), std::vector<float>(20 * 32, 1)) << "the other expert";
}

// Scales 253 and 254 are 2^126 and 2^127.
TEST_F(Mxfp4Test, AValueBeyondBf16IsRefused) {
  const auto made = [&](uint8_t scale, int value) {
    std::string block(16, 0);
    block[7] = static_cast<char>(value << 4);
    store({1, 1, 1, 16}, block, std::string(1, static_cast<char>(scale)));
    return read(0, 1, 32)[15];
  };
  EXPECT_EQ(made(252, 7), 6 * std::ldexp(1.0f, 125));
  EXPECT_EQ(made(253, 5), 3 * std::ldexp(1.0f, 126));
  EXPECT_EQ(made(254, 0xb), -1.5f * std::ldexp(1.0f, 127));
  for (const auto& [scale, value] :
       std::vector<std::pair<uint8_t, int>>{{253, 6}, {253, 0xf}, {254, 4}, {254, 0xc}})
    expect_error(ExitCode::malformed_file, {fmt::format("the scale {}, by which a value is 2^128", scale)},
                 [&] { made(scale, value); });
}

// Each of 2 experts has 6 stored rows of 70 groups, more than are read at once. A value tells its place.
TEST_F(Mxfp4Test, RowsBecomeColumnsAndRangesArePartsOfTheWhole) {
  constexpr uint64_t kExperts = 2, kRows = 6, kGroups = 70, kIn = 32 * kGroups;
  std::string blocks, scales;
  const auto nibble = [](uint64_t e, uint64_t row, uint64_t in) { return (e * 5 + row * 3 + in * 7) % 16; };
  const auto scale = [](uint64_t e, uint64_t row, uint64_t group) { return 120 + (e + row + group) % 10; };
  for (uint64_t e = 0; e < kExperts; ++e)
    for (uint64_t row = 0; row < kRows; ++row)
      for (uint64_t in = 0; in < kIn; in += 2) {
        blocks += static_cast<char>(nibble(e, row, in) | nibble(e, row, in + 1) << 4);
        if (in % 32 == 0) scales += static_cast<char>(scale(e, row, in / 32));
      }
  store({kExperts, kRows, kGroups, 16}, blocks, scales);
  ASSERT_EQ(shape(), (Shape{kExperts, kIn, kRows}));
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const auto wanted = [&](uint64_t element) {
    const uint64_t e = element / (kIn * kRows), in = element / kRows % kIn, row = element % kRows;
    return std::ldexp(kValues[nibble(e, row, in)], static_cast<int>(scale(e, row, in / 32)) - 127);
  };
  for (const uint64_t expert : {0, 1})
    for (const uint64_t step : {1, 2, 3})
      for (const uint64_t begin : {0, 1, 5, 31 * 6 + 4, 63 * 32 * 6, 65 * 32 * 6 - 1}) {
        const uint64_t first = expert * kIn * kRows + begin, most = (kIn * kRows - begin - 1) / step + 1;
        for (const uint64_t count : {uint64_t{1}, uint64_t{7}, most / 2, most}) {
          const std::vector<float> values = read(first, step, count);
          for (uint64_t i = 0; i < count; ++i)
            ASSERT_EQ(values[i], wanted(first + i * step)) << first << " " << step << " " << i;
        }
      }
}

// A row is longer than what is read at once.
TEST_F(Mxfp4Test, LongRows) {
  constexpr int64_t kGroups = 3000;
  store({1, 2, kGroups, 16}, std::string(kGroups * 16, 0x22) + std::string(kGroups * 16, 0x44),
        std::string(2 * kGroups, 127));
  const std::vector<float> values = read(0, 1, 2 * 32 * kGroups);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], i % 2 == 0 ? 1 : 2) << i;
}

TEST_F(Mxfp4Test, WhatIsNoPairHasNoShape) {
  const auto shape_of = [](SafetensorsType type, const Shape& blocks, const Shape& scales) {
    return mxfp4_shape({.name = "b", .type = type, .shape = blocks},
                       {.name = "s", .type = SafetensorsType::u8, .shape = scales});
  };
  EXPECT_EQ(shape_of(SafetensorsType::u8, {3, 4, 2, 16}, {3, 4, 2}), (Shape{3, 64, 4}));
  EXPECT_EQ(shape_of(SafetensorsType::u8, {3, 4, 2, 16}, {3, 4, 3}), Shape{});
  EXPECT_EQ(shape_of(SafetensorsType::u8, {3, 4, 2, 8}, {3, 4, 2}), Shape{});
  EXPECT_EQ(shape_of(SafetensorsType::u8, {3, 4, 16}, {3, 4}), Shape{});
  EXPECT_EQ(shape_of(SafetensorsType::bf16, {3, 4, 2, 16}, {3, 4, 2}), Shape{});
}

}  // namespace
}  // namespace sluice
