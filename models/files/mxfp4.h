// MXFP4: 4-bit floats in blocks of 32 that share a power of two (Open Compute Project, "OCP Microscaling
// Formats (MX) Specification v1.0", 2023), in which gpt-oss's files store the matrices of all experts of a
// layer.
//
// Such a matrix NAME is two tensors of a file, NAME_blocks, U8 [experts, out, groups, 16], and NAME_scales,
// U8 [experts, out, groups]: a byte has two values, the low four bits first, and a scale s stands for 2^(s -
// 127). transformers 5.23 (convert_moe_packed_tensors in integrations/mxfp4.py) makes [experts, 32 * groups,
// out] of them. Every value is exact in bf16; one of 2^128 or more, which bf16 does not have, is refused.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string_view>

#include "models/files/safetensors.h"

namespace sluice {

constexpr std::string_view kMxfp4Blocks = "_blocks", kMxfp4Scales = "_scales";

struct Mxfp4Tensor {
  const SafetensorsFile* block_file = nullptr;
  const SafetensorsTensor* blocks = nullptr;
  const SafetensorsFile* scale_file = nullptr;
  const SafetensorsTensor* scales = nullptr;
};

// The shape of the matrices that the two make; empty where they do not fit each other.
Shape mxfp4_shape(const SafetensorsTensor& blocks, const SafetensorsTensor& scales);

// Reads such matrices. A matrix is the transpose of what is stored: each of its rows has a part of every
// stored row. So the reader keeps the stored bytes of an expert's matrix, and later ranges of that matrix
// cost no reads. It keeps two such matrices, since threads that load an expert may read its first and its
// last matrix at the same time. Any thread; the files outlive the reader.
class Mxfp4Reader {
 public:
  // Elements first, first + step, ..., `count` of them, of the matrices that `tensor` makes, as fp32. All
  // belong to one expert, and `step` divides the last dimension. What is not kept is read: all stored rows of
  // the expert, or the range's rows alone if they are few. Throws Error(malformed_file) where a scale that it
  // reads stands for no number or makes a value of 2^128 or more, Error(io) as InputFile.
  void read(const Mxfp4Tensor& tensor, uint64_t first, uint64_t step, uint64_t count, float* out);

  // The memory that it keeps at most, where an expert's matrix has at most `elements`.
  static uint64_t bytes_most(uint64_t elements);

 private:
  // Stored rows [row, row + rows) of an expert: their blocks, then their scales.
  struct Kept {
    const SafetensorsTensor* blocks = nullptr;  // whose rows they are; nullptr: there are none
    uint64_t expert = 0, row = 0, rows = 0;
    bool is_whole = false;  // else it is the first to be replaced
    std::unique_ptr<uint8_t[]> bytes;
    uint64_t bytes_allocated = 0;
  };
  struct Range;
  const Kept* find(const Mxfp4Tensor& tensor, const Range& range) const;
  const Kept& fetch(const Mxfp4Tensor& tensor, const Range& range);

  std::shared_mutex mutex_;  // held exclusively to replace what is kept
  std::array<Kept, 2> kept_;
  size_t oldest_ = 0;
};

}  // namespace sluice
