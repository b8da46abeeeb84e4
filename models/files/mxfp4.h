// MXFP4: 4-bit floats in blocks of 32 that share a power of two (Open Compute Project, "OCP Microscaling
// Formats (MX) Specification v1.0", 2023), as gpt-oss's files have the matrices of all experts of a layer.
//
// Such a matrix NAME is two tensors of a file, NAME_blocks, U8 [experts, out, groups, 16], and NAME_scales,
// U8 [experts, out, groups]: a byte has two values, the low four bits first, and a scale s stands for 2^(s -
// 127). transformers 5.23 (convert_moe_packed_tensors in integrations/mxfp4.py) makes [experts, 32 * groups,
// out] of them. Every value is exact in bf16. Any thread.
#pragma once

#include <cstdint>
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

// The shape of what they make; empty where the two do not fit each other.
Shape mxfp4_shape(const SafetensorsTensor& blocks, const SafetensorsTensor& scales);

// Elements first, first + step, ..., `count` of them, of what they make, as fp32. All belong to one expert,
// and `step` divides its last dimension. Reads the stored rows of that expert that it needs, for some groups
// at a time, and allocates nothing: what it reads is on the stack. Throws Error(malformed_file) for a scale
// that stands for no number, Error(io) as InputFile.
void read_mxfp4(const Mxfp4Tensor& tensor, uint64_t first, uint64_t step, uint64_t count, float* out);

}  // namespace sluice
