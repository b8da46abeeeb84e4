#include "models/hf_export.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cpu_optim/optimizer.h"
#include "engine/error.h"
#include "models/safetensors.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceElements = 1 << 20;  // 4 MiB in fp32 and 2 MiB in 16-bit: the export's whole memory
constexpr uint64_t kCopyBytes = 1 << 20;

constexpr std::array<const char*, 8> kTokenizerFiles = {
    "tokenizer.json",  "tokenizer_config.json",  "vocab.json",       "merges.txt", "special_tokens_map.json",
    "tokenizer.model", "generation_config.json", "added_tokens.json"};

struct Shard {
  std::string file;
  size_t first = 0, last = 0;  // tensors [first, last)
};

uint64_t bytes_of(const ExportTensor& tensor, DType dtype) {
  return static_cast<uint64_t>(element_count(tensor.shape)) * dtype_bytes(dtype);
}

std::vector<Shard> cut_into_shards(std::span<const ExportTensor> tensors, const ExportOptions& options) {
  std::vector<Shard> shards(1);
  uint64_t filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = bytes_of(tensors[i], options.dtype);
    if (shards.back().first < i &&
        (filled > options.shard_bytes_max || bytes > options.shard_bytes_max - filled)) {
      shards.push_back({"", i, i});
      filled = 0;
    }
    shards.back().last = i + 1;
    filled += bytes;
  }
  for (size_t k = 0; k < shards.size(); ++k)
    shards[k].file = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", k + 1, shards.size());
  return shards;
}

void write_text(const fs::path& path, const std::string& text) {
  OutputFile file(path.string());
  file.write(text.data(), text.size());
  file.commit();
}

void copy_whole(const fs::path& from, const fs::path& to) {
  const InputFile input(from.string());
  OutputFile output(to.string());
  std::vector<std::byte> piece(std::min(kCopyBytes, input.bytes()));
  while (output.written() < input.bytes()) {
    const uint64_t n = std::min<uint64_t>(piece.size(), input.bytes() - output.written());
    input.read(output.written(), piece.data(), n);
    output.write(piece.data(), n);
  }
  output.commit();
}

void copy_tokenizer(const std::string& from, const fs::path& to) {
  std::error_code ignored;
  if (from.empty()) return;
  for (const char* name : kTokenizerFiles)
    if (fs::is_regular_file(fs::path(from) / name, ignored)) copy_whole(fs::path(from) / name, to / name);
}

void make_directory(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error)
    throw Error(ExitCode::environment,
                fmt::format("Cannot create {}: {}.", printable(directory), error.message()),
                "Give a directory that can be written.");
  if (!fs::is_empty(directory, error) && !error)
    throw Error(ExitCode::usage, fmt::format("{} exists and is not empty.", printable(directory)),
                "Name a new directory: an export writes over nothing.");
}

// A weight that training reached and fp16 cannot hold would become infinity without a word.
void check_fp16_range(const std::string& name, std::span<const float> values) {
  constexpr float kOverflow = 65520;  // halfway between fp16's largest value, 65504, and the next step
  for (const float value : values)
    if (std::isfinite(value) && std::abs(value) >= kOverflow)
      throw Error(ExitCode::numerics,
                  fmt::format("tensor {} holds {}, which fp16 cannot represent.", shown_name(name), value),
                  "Export with --dtype bf16 or fp32.");
}

struct Pieces {
  std::vector<float> values = std::vector<float>(kPieceElements);
  std::vector<uint16_t> rounded = std::vector<uint16_t>(kPieceElements);
};

void write_shard(const fs::path& path, const Shard& shard, std::span<const ExportTensor> tensors,
                 DType dtype, const ReadTensor& read, Pieces& pieces) {
  std::vector<TensorSpec> specs;
  for (size_t i = shard.first; i < shard.last; ++i)
    specs.push_back({tensors[i].name, dtype, tensors[i].shape});
  SafetensorsWriter writer(path.string(), specs, {}, kExportAlignment);
  for (size_t i = shard.first; i < shard.last; ++i) {
    const auto elements = static_cast<uint64_t>(element_count(tensors[i].shape));
    for (uint64_t first = 0; first < elements; first += kPieceElements) {
      const uint64_t n = std::min(kPieceElements, elements - first);
      read(i, first, n, pieces.values.data());
      if (dtype == DType::f32) {
        writer.write(pieces.values.data(), n * sizeof(float));
        continue;
      }
      if (dtype == DType::f16) check_fp16_range(tensors[i].name, std::span(pieces.values).first(n));
      round_to(dtype, pieces.values.data(), pieces.rounded.data(), n);
      writer.write(pieces.rounded.data(), n * sizeof(uint16_t));
    }
  }
  writer.finish();
}

std::string index_json(std::span<const Shard> shards, std::span<const ExportTensor> tensors, DType dtype) {
  uint64_t total = 0;
  std::map<std::string, std::string> map;
  for (const Shard& shard : shards)
    for (size_t i = shard.first; i < shard.last; ++i) {
      map[tensors[i].name] = shard.file;
      total += bytes_of(tensors[i], dtype);
    }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return index.dump(2) + "\n";
}

}  // namespace

void write_hf_directory(const std::string& directory, std::span<const ExportTensor> tensors,
                        const ExportOptions& options, const ReadTensor& read) {
  CHECK(options.dtype == DType::bf16 || options.dtype == DType::f16 || options.dtype == DType::f32,
        "type of an export");
  make_directory(directory);
  const fs::path to(directory);
  write_text(to / "config.json", options.config_json);
  copy_tokenizer(options.tokenizer_directory, to);
  const std::vector<Shard> shards = cut_into_shards(tensors, options);
  Pieces pieces;
  for (const Shard& shard : shards)
    write_shard(to / shard.file, shard, tensors, options.dtype, read, pieces);
  if (shards.size() > 1)
    write_text(to / "model.safetensors.index.json", index_json(shards, tensors, options.dtype));
}

}  // namespace sluice
