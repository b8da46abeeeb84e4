#include "models/files/mxfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mutex>

#include "engine/base/error.h"

namespace sluice {
namespace {

constexpr uint64_t kValues = 32, kBlockBytes = kValues / 2;  // of a block
constexpr uint64_t kStoredBytes = kBlockBytes + 1;           // of a block with its scale
// If a range has less than 1 / kFew of an expert's rows, only the rows of the range are read.
constexpr uint64_t kFew = 8;
constexpr uint8_t kNoNumber = 255, kLargest = 252;  // 6 * 2^(252 - 127) < 2^128, and no other value is larger
constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

constexpr std::array<float, kNoNumber + 1> kPowers = [] {  // by scale; all are exact in fp32
  std::array<float, kNoNumber + 1> powers{};
  powers[127] = 1;
  for (size_t s = 128; s < kNoNumber; ++s) powers[s] = powers[s - 1] * 2;
  for (size_t s = 127; s-- > 0;) powers[s] = powers[s + 1] / 2;
  return powers;
}();

float value_of(const uint8_t* block, uint64_t i) { return kMagnitudes[block[i / 2] >> (i % 2 * 4) & 15]; }

[[noreturn]] void refuse(const Mxfp4Tensor& tensor, const std::string& what) {
  throw Error(ExitCode::malformed_file,
              fmt::format("{}: tensor '{}' holds {}.", printable(tensor.scale_file->path()),
                          shown_name(tensor.scales->name), what),
              "Download the file again; it is damaged or was written wrongly.");
}

void check_scales(const Mxfp4Tensor& tensor, const uint8_t* blocks, const uint8_t* scales, uint64_t count) {
  if (count == 0 || *std::max_element(scales, scales + count) <= kLargest) return;
  for (uint64_t i = 0; i < count; ++i) {
    if (scales[i] == kNoNumber) refuse(tensor, "the scale 255, which stands for no number");
    if (scales[i] <= kLargest) continue;
    for (uint64_t v = 0; v < kValues; ++v)
      if (std::isinf(value_of(blocks + i * kBlockBytes, v) * kPowers[scales[i]]))
        refuse(tensor, fmt::format("the scale {}, by which a value is 2^128 or more", scales[i]));
  }
}

}  // namespace

Shape mxfp4_shape(const SafetensorsTensor& blocks, const SafetensorsTensor& scales) {
  const Shape& b = blocks.shape;
  const bool fits = blocks.type == SafetensorsType::u8 && scales.type == SafetensorsType::u8 &&
                    b.size() == 4 && b[3] == static_cast<int64_t>(kBlockBytes) &&
                    scales.shape == Shape(b.begin(), b.end() - 1);
  if (!fits) return {};
  return {b[0], b[2] * static_cast<int64_t>(kValues), b[1]};
}

// A range of elements of an expert, which has `rows` stored rows of `groups` blocks. Element i of the expert
// is value i / rows of stored row i % rows.
struct Mxfp4Reader::Range {
  uint64_t expert, rows, groups;
  uint64_t begin, last, step;

  uint64_t first_value() const { return begin / rows; }
  uint64_t last_value() const { return last / rows; }
  // The stored rows that have the elements, and the rows in between: [row_begin, row_end).
  bool in_one_row() const { return first_value() == last_value(); }
  uint64_t row_begin() const { return in_one_row() ? begin % rows : 0; }
  uint64_t row_end() const { return in_one_row() ? last % rows + 1 : rows; }

  // Values [value, value_end), all of one group, of rows row, row + step, ... below row_end.
  struct Part {
    uint64_t value, value_end, row, row_end;
  };
  // Returns how many elements the part has.
  uint64_t decode(const Kept& kept, const Part& part, float* out) const {
    const uint64_t of_value = (part.row_end - part.row + step - 1) / step;
    const uint8_t* const blocks = kept.bytes.get();
    const uint8_t* const scales = blocks + kept.rows * groups * kBlockBytes;
    for (uint64_t r = 0; r < of_value; ++r) {
      const uint64_t at = (part.row + r * step - kept.row) * groups + part.value / kValues;
      const float power = kPowers[scales[at]];
      for (uint64_t v = part.value; v < part.value_end; ++v)
        out[(v - part.value) * of_value + r] = value_of(blocks + at * kBlockBytes, v % kValues) * power;
    }
    return (part.value_end - part.value) * of_value;
  }

  // Decodes the whole range. The first value may lack the first rows, and the last value the last rows.
  // Values in between have all rows, and are decoded together as far as they are of one group.
  void decode(const Kept& kept, float* out) const {
    for (uint64_t value = first_value(); value <= last_value();) {
      const bool is_first = value == first_value(), is_last = value == last_value();
      Part part{value, value + 1, is_first ? begin % rows : begin % step, is_last ? last % rows + 1 : rows};
      if (!is_first && !is_last) part.value_end = std::min((value / kValues + 1) * kValues, last_value());
      out += decode(kept, part, out);
      value = part.value_end;
    }
  }
};

const Mxfp4Reader::Kept* Mxfp4Reader::find(const Mxfp4Tensor& tensor, const Range& range) const {
  for (const Kept& kept : kept_)
    if (kept.blocks == tensor.blocks && kept.expert == range.expert && kept.row <= range.row_begin() &&
        range.row_end() <= kept.row + kept.rows)
      return &kept;
  return nullptr;
}

const Mxfp4Reader::Kept& Mxfp4Reader::fetch(const Mxfp4Tensor& tensor, const Range& range) {
  size_t place = oldest_;
  for (size_t i = 0; i < kept_.size(); ++i)
    if (!kept_[i].is_whole) place = i;
  oldest_ = (place + 1) % kept_.size();
  Kept& kept = kept_[place];
  kept.blocks = nullptr;  // until it is read
  kept.is_whole = false;
  kept.expert = range.expert;
  const bool few = (range.row_end() - range.row_begin()) * kFew < range.rows;
  kept.row = few ? range.row_begin() : 0;
  kept.rows = few ? range.row_end() - range.row_begin() : range.rows;
  const uint64_t blocks = kept.rows * range.groups;
  if (kept.bytes_allocated < blocks * kStoredBytes) {
    kept.bytes.reset();  // first, so that old and new bytes are never there together
    kept.bytes_allocated = 0;
    kept.bytes = std::make_unique_for_overwrite<uint8_t[]>(blocks * kStoredBytes);
    kept.bytes_allocated = blocks * kStoredBytes;
  }
  const uint64_t from = (range.expert * range.rows + kept.row) * range.groups;
  uint8_t* const scales = kept.bytes.get() + blocks * kBlockBytes;
  tensor.block_file->read_raw(*tensor.blocks, from * kBlockBytes, blocks * kBlockBytes, kept.bytes.get());
  tensor.scale_file->read_raw(*tensor.scales, from, blocks, scales);
  check_scales(tensor, kept.bytes.get(), scales, blocks);
  kept.blocks = tensor.blocks;
  kept.is_whole = !few;
  return kept;
}

void Mxfp4Reader::read(const Mxfp4Tensor& tensor, uint64_t first, uint64_t step, uint64_t count, float* out) {
  if (count == 0) return;
  const Shape shape = mxfp4_shape(*tensor.blocks, *tensor.scales);
  CHECK(shape.size() == 3, "blocks and scales of " + shown_name(tensor.blocks->name));
  const auto in = static_cast<uint64_t>(shape[1]), rows = static_cast<uint64_t>(shape[2]);
  const uint64_t begin = first % (in * rows);
  const Range range{first / (in * rows), rows, in / kValues, begin, begin + (count - 1) * step, step};
  CHECK(range.last < in * rows && rows % step == 0, "a range of one expert");
  {
    const std::shared_lock lock(mutex_);
    if (const Kept* const kept = find(tensor, range)) return range.decode(*kept, out);
  }
  const std::unique_lock lock(mutex_);
  const Kept* const kept = find(tensor, range);
  range.decode(kept != nullptr ? *kept : fetch(tensor, range), out);
}

uint64_t Mxfp4Reader::bytes_most(uint64_t elements) {
  return std::tuple_size_v<decltype(kept_)> * (elements / kValues) * kStoredBytes;
}

}  // namespace sluice
