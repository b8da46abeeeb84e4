#include "models/weights/hf_export.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/simd/convert.h"
#include "models/files/safetensors.h"
#include "models/files/tokenizer_files.h"
#include "models/weights/peft.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceElements = 1 << 20;  // weights in memory at once: 4 MiB in fp32, 2 MiB in 16 bits

struct Rows {  // some rows of a tensor; a tensor without dimensions counts as one row
  size_t tensor = 0;
  int64_t first = 0, count = 1;
};

struct File {
  std::string name;
  std::vector<Rows> rows;
};

int64_t rows_of(const ExportTensor& tensor) { return tensor.shape.empty() ? 1 : tensor.shape.front(); }

uint64_t row_elements(const ExportTensor& tensor) {
  Shape row = tensor.shape;
  if (!row.empty()) row.front() = 1;
  return static_cast<uint64_t>(element_count(row));
}

Shape shape_of(const ExportTensor& tensor, const Rows& rows) {
  Shape shape = tensor.shape;
  if (!shape.empty()) shape.front() = rows.count;
  return shape;
}

std::vector<File> cut_into_files(std::span<const ExportTensor> tensors, std::span<const Rows> all,
                                 const ExportOptions& options) {
  std::vector<File> files(1);
  uint64_t filled = 0;
  for (const Rows& rows : all) {
    const uint64_t bytes = static_cast<uint64_t>(element_count(shape_of(tensors[rows.tensor], rows))) *
                           dtype_bytes(options.dtype);
    if (!files.back().rows.empty() && !options.adapters &&
        (filled > options.file_bytes_max || bytes > options.file_bytes_max - filled)) {
      files.emplace_back();
      filled = 0;
    }
    files.back().rows.push_back(rows);
    filled += bytes;
  }
  return files;
}

// Files of whole tensors.
std::vector<File> plain_files(std::span<const ExportTensor> tensors, const ExportOptions& options) {
  std::vector<Rows> all;
  for (size_t t = 0; t < tensors.size(); ++t) all.push_back({t, 0, rows_of(tensors[t])});
  std::vector<File> files = cut_into_files(tensors, all, options);
  if (options.adapters) files.front().name = std::string(kAdapterWeights) + ".safetensors";
  for (size_t k = 0; k < files.size() && !options.adapters; ++k)
    files[k].name = files.size() == 1 ? "model.safetensors"
                                      : fmt::format("model-{:05}-of-{:05}.safetensors", k + 1, files.size());
  return files;
}

// Files of the shards' rows. A shard without rows has no file.
std::vector<File> shard_files(std::span<const ExportTensor> tensors, const ExportOptions& options) {
  std::vector<File> files;
  const auto shards = static_cast<int64_t>(options.shards);
  for (int64_t shard = 0; shard < shards; ++shard) {
    std::vector<Rows> all;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const int64_t rows = rows_of(tensors[t]), first = rows * shard / shards;
      if (const int64_t last = rows * (shard + 1) / shards; last > first)
        all.push_back({t, first, last - first});
    }
    if (all.empty()) continue;
    std::vector<File> of_shard = cut_into_files(tensors, all, options);
    for (size_t k = 0; k < of_shard.size(); ++k) {
      of_shard[k].name =
          fmt::format("shard-{:05}-model-{:05}-of-{:05}.safetensors", shard + 1, k + 1, of_shard.size());
      files.push_back(std::move(of_shard[k]));
    }
  }
  return files;
}

// The metadata from which PyTorch reads where the parts of tensors begin.
std::map<std::string, std::string> shard_metadata(const File& file, std::span<const ExportTensor> tensors) {
  nlohmann::json parts = nlohmann::json::object();
  for (const Rows& rows : file.rows) {
    const ExportTensor& tensor = tensors[rows.tensor];
    std::vector<int64_t> offsets(tensor.shape.size());
    if (!offsets.empty()) offsets.front() = rows.first;
    parts[tensor.name]["saved_offsets"] = offsets;
  }
  return {{"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", parts.dump()}};
}

// Makes the directory. A file marks it until the export is finished, so that what a killed export has left
// there may be written over. The file's lock tells a killed export from one that is running. The destructor
// removes the directory again if it is empty, as after an export that failed before its first file; parents
// that were made stay.
class ExportDirectory {
 public:
  explicit ExportDirectory(const std::string& path) : path_(path), mark_(path + "/.unfinished-export") {
    std::error_code error;
    made_ = fs::create_directories(path, error);
    if (error)
      throw Error(ExitCode::environment,
                  fmt::format("Cannot create {}: {}.", printable(path), error.message()),
                  "Give a directory that can be written.");
    const bool was_begun = fs::is_regular_file(fs::symlink_status(mark_, error));
    if (!was_begun && !fs::is_empty(path, error) && !error)
      throw Error(ExitCode::usage, fmt::format("{} exists and is not empty.", printable(path)),
                  "Name a new directory: an export writes over nothing.");
    mark();
    if (was_begun) remove_weights();
  }
  ~ExportDirectory() {
    std::error_code error;
    const auto entries = std::distance(fs::directory_iterator(path_, error), fs::directory_iterator());
    if (finished_ || (!error && entries == 1)) ::unlink(mark_.c_str());
    if (made_) ::rmdir(path_.c_str());  // fails where there are files
  }
  ExportDirectory(const ExportDirectory&) = delete;
  ExportDirectory& operator=(const ExportDirectory&) = delete;

  void finish() { finished_ = true; }

 private:
  void mark() {
    constexpr mode_t kMode = S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;
    fd_ = FileDescriptor(::open(mark_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kMode));
    if (fd_.get() < 0)
      throw Error(ExitCode::environment,
                  fmt::format("Cannot create {}: {}.", printable(mark_), std::strerror(errno)),
                  "Give a directory that can be written.");
    if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw Error(ExitCode::environment, fmt::format("Another process exports to {}.", printable(path_)),
                  "Let it end, or name another directory.");
  }
  void remove_weights() const {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(path_, ignored)) {
      const std::string name = entry.path().filename().string();
      const bool of_export = name.find(".safetensors") != std::string::npos || name.ends_with(".tmp");
      if (of_export && entry.is_regular_file(ignored)) fs::remove(entry.path(), ignored);
    }
  }

  std::string path_, mark_;
  bool made_ = false, finished_ = false;
  FileDescriptor fd_;
};

// Without this, a weight beyond fp16's range would silently become infinity.
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

void write_file(const fs::path& path, const File& file, std::span<const ExportTensor> tensors,
                const ExportOptions& options, const ReadTensor& read, Pieces& pieces) {
  const DType dtype = options.dtype;
  std::vector<TensorSpec> specs;
  for (const Rows& rows : file.rows)
    specs.push_back({tensors[rows.tensor].name, dtype, shape_of(tensors[rows.tensor], rows)});
  std::map<std::string, std::string> metadata;
  if (options.shards > 1) metadata = shard_metadata(file, tensors);
  SafetensorsWriter writer(path.string(), specs, metadata, kExportAlignment);
  for (const Rows& rows : file.rows) {
    const ExportTensor& tensor = tensors[rows.tensor];
    const uint64_t row = row_elements(tensor), begin = static_cast<uint64_t>(rows.first) * row;
    const uint64_t elements = static_cast<uint64_t>(rows.count) * row;
    for (uint64_t first = 0; first < elements; first += kPieceElements) {
      const uint64_t n = std::min(kPieceElements, elements - first);
      read(rows.tensor, begin + first, n, pieces.values.data());
      if (dtype == DType::f32) {
        writer.write(pieces.values.data(), n * sizeof(float));
        continue;
      }
      if (dtype == DType::f16) check_fp16_range(tensor.name, std::span(pieces.values).first(n));
      round_to(dtype, pieces.values.data(), pieces.rounded.data(), n);
      writer.write(pieces.rounded.data(), n * sizeof(uint16_t));
    }
  }
  writer.finish();
}

std::string index_json(std::span<const File> files, std::span<const ExportTensor> tensors, DType dtype) {
  uint64_t total = 0;
  std::map<std::string, std::string> map;
  for (const File& file : files)
    for (const Rows& rows : file.rows) {
      map[tensors[rows.tensor].name] = file.name;
      total += static_cast<uint64_t>(element_count(tensors[rows.tensor].shape)) * dtype_bytes(dtype);
    }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return index.dump(2) + "\n";
}

}  // namespace

void write_hf_directory(const std::string& directory, std::span<const ExportTensor> tensors,
                        const ExportOptions& options, const ReadTensor& read) {
  CHECK(options.dtype == DType::bf16 || options.dtype == DType::f16 || options.dtype == DType::f32,
        "type of an export");
  ExportDirectory out(directory);
  const fs::path to(directory);
  copy_tokenizer(options.tokenizer_directory, directory);
  if (options.chat_template) replace_chat_template(directory, *options.chat_template);
  if (!options.ends.empty()) replace_ends(directory, options.ends, options.special_tokens);
  const std::vector<File> files =
      options.shards > 1 ? shard_files(tensors, options) : plain_files(tensors, options);
  Pieces pieces;
  for (const File& file : files) write_file(to / file.name, file, tensors, options, read, pieces);
  if (options.shards == 1 && files.size() > 1)  // PyTorch finds its shards by their names
    write_text_file((to / "model.safetensors.index.json").string(),
                    index_json(files, tensors, options.dtype));
  write_text_file((to / (options.adapters ? kAdapterConfig : "config.json")).string(), options.config_json);
  out.finish();
}

}  // namespace sluice
