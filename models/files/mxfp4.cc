#include "models/files/mxfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/base/error.h"

namespace sluice {
namespace {

constexpr uint64_t kValues = 32, kBlockBytes = kValues / 2;  // of a block
constexpr uint64_t kGroupsMax = 64;                          // of a stored row that are read at once
constexpr uint64_t kWindow = 32 * 1024;                      // bytes of blocks that are read at once
constexpr uint8_t kNoNumber = 255;
constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

float scale_of(const Mxfp4Tensor& tensor, uint8_t scale) {
  if (scale == kNoNumber)
    throw Error(ExitCode::malformed_file,
                fmt::format("{}: tensor '{}' holds the scale 255, which stands for no number.",
                            printable(tensor.scale_file->path()), shown_name(tensor.scales->name)),
                "Download the file again; it is damaged or was written wrongly.");
  return std::ldexp(1.0f, scale - 127);
}

// One expert, as stored: `rows` rows of `groups` blocks. Of these, rows `row`, row + step, ... are read.
struct StoredRows {
  uint64_t expert = 0, rows = 0, groups = 0, row = 0, step = 1;
};

// Reads blocks and scales [group, group + count) of those rows, as many rows at once as fit, and calls
// use(row, blocks, scales) for each.
template <class Use>
void for_each_row(const Mxfp4Tensor& tensor, const StoredRows& s, uint64_t group, uint64_t count,
                  const Use& use) {
  alignas(64) uint8_t blocks[kWindow], scales[kWindow / kBlockBytes];
  const uint64_t apart = s.step * s.groups;  // blocks from one of the rows to the next
  const uint64_t fitting = 1 + (kWindow / kBlockBytes - count) / apart;
  for (uint64_t row = s.row; row < s.rows;) {
    const uint64_t n = std::min(fitting, (s.rows - row + s.step - 1) / s.step);
    const uint64_t from = (s.expert * s.rows + row) * s.groups + group, length = (n - 1) * apart + count;
    tensor.block_file->read_raw(*tensor.blocks, from * kBlockBytes, length * kBlockBytes, blocks);
    tensor.scale_file->read_raw(*tensor.scales, from, length, scales);
    for (uint64_t i = 0; i < n; ++i, row += s.step)
      use(row, blocks + i * apart * kBlockBytes, scales + i * apart);
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

void read_mxfp4(const Mxfp4Tensor& tensor, uint64_t first, uint64_t step, uint64_t count, float* out) {
  if (count == 0) return;
  const Shape shape = mxfp4_shape(*tensor.blocks, *tensor.scales);
  CHECK(shape.size() == 3, "blocks and scales of " + shown_name(tensor.blocks->name));
  const auto in = static_cast<uint64_t>(shape[1]), columns = static_cast<uint64_t>(shape[2]);
  const uint64_t expert = first / (in * columns), begin = first % (in * columns);
  const uint64_t last = begin + (count - 1) * step;
  CHECK(last < in * columns && columns % step == 0, "a range of one expert");
  const StoredRows stored{expert, columns, in / kValues, begin % step, step};
  const uint64_t groups_end = last / columns / kValues + 1;
  for (uint64_t group = begin / columns / kValues; group < groups_end; group += kGroupsMax) {
    const uint64_t n = std::min(kGroupsMax, groups_end - group);
    for_each_row(tensor, stored, group, n, [&](uint64_t row, const uint8_t* blocks, const uint8_t* scales) {
      for (uint64_t g = 0; g < n; ++g) {
        const float scale = scale_of(tensor, scales[g]);
        for (uint64_t i = 0; i < kValues; ++i) {
          const uint64_t element = ((group + g) * kValues + i) * columns + row;
          if (element < begin || element > last) continue;
          const uint8_t pair = blocks[g * kBlockBytes + i / 2];
          out[(element - begin) / step] = kMagnitudes[i % 2 == 0 ? pair & 15 : pair >> 4] * scale;
        }
      }
    });
  }
}

}  // namespace sluice
