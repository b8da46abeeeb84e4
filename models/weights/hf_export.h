// Writes a Hugging Face directory for other software: config.json, safetensors (several files when large) and
// the tokenizer's files. With shards, PyTorch's distributed checkpoint can read and reshard it
// (torch.distributed.checkpoint.HuggingFaceStorageReader): the rows of every tensor are divided among files
// shard-RRRRR-model-IIIII-of-NNNNN.safetensors, whose metadata say where the rows begin.
//
// The export is streamed, so its memory is bounded whatever the model's size. Every file appears complete or
// not at all, and config.json comes last: without it no reader takes the directory for a model. Caller: the
// verb export, one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/op.h"

namespace sluice {

struct ExportTensor {
  std::string name;
  Shape shape;
};

// Yields elements [first, first + count) of tensor number `tensor` as fp32. May throw.
using ReadTensor = std::function<void(size_t tensor, uint64_t first, uint64_t count, float* out)>;

struct ExportOptions {
  DType dtype = DType::bf16;                // bf16, f16 or f32
  uint64_t file_bytes_max = 5'000'000'000;  // of a file's tensors; a larger tensor has a file of its own
  uint64_t shards = 1;                      // above 1: for PyTorch's distributed checkpoint
  std::string config_json;                  // written as config.json
  bool adapters = false;            // a PEFT directory (peft.h): adapter_config.json and one file of weights
  std::string tokenizer_directory;  // the tokenizer's files are copied from here; empty: none
  std::optional<std::string> chat_template;  // written in place of the copied one
  std::vector<uint32_t> ends;                // end tokens for generation_config.json; empty: no change
  std::map<std::string, std::string> special_tokens;  // for a generation_config.json, if none was copied
};

// Creates the directory when it is missing. Values are rounded to nearest even. Throws Error: usage when the
// directory is not empty, environment when it cannot be made, numerics when a finite value does not fit fp16,
// io when writing fails.
void write_hf_directory(const std::string& directory, std::span<const ExportTensor> tensors,
                        const ExportOptions& options, const ReadTensor& read);

}  // namespace sluice
