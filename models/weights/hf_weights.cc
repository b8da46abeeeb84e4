#include "models/weights/hf_weights.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"
#include "models/families/family.h"
#include "models/weights/peft.h"
#include "models/weights/peft_experts.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr uint64_t kIndexBytesMax = 64 << 20;  // a million tensors
// Bytes of memory that a byte of a header or index may take. A tensor with a name of four letters takes 55
// bytes of the header and 480 to 560 bytes of memory.
constexpr uint64_t kTableBytes = 16;
// Memory for each parameter of a stacked tensor, for which kTableBytes does not suffice: the header has one
// name for all these parameters.
constexpr uint64_t kStackedBytes = 640;
constexpr int64_t kRowsMax = int64_t{1} << 40;

[[noreturn]] void malformed(const std::string& where, const std::string& sentence,
                            const std::string& remedy) {
  throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(where), sentence), remedy);
}

constexpr const char* kDownloadAgain = "Download or export the directory again.";

// A dangling link counts as existing, so that opening it is an error.
bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

std::string parameter_name(const Family& family, const std::string& stored) {
  const std::string_view nested = family.nested.tensor_prefix;
  if (!nested.empty() && stored.starts_with(nested)) return "model." + stored.substr(nested.size());
  for (const std::string_view prefix : {family.tensor_prefix, family.nested.older_prefix})
    if (!prefix.empty() && stored.starts_with(prefix)) return stored.substr(prefix.size());
  const std::string alias = std::string(".") + family.alias.stored;
  if (alias.size() > 1 && stored.ends_with(alias))
    return stored.substr(0, stored.size() - alias.size() + 1) + family.alias.name;
  return stored;
}

Json parse_index(const std::string& path, const std::string& text) {
  try {
    return parse_strict_json(text);
  } catch (const std::invalid_argument& error) {
    malformed(path, error.what(), kDownloadAgain);
  }
}

// Returns for each tensor the name of its file, without directories.
std::map<std::string, std::string> read_index(const std::string& path) {
  const Json index = parse_index(path, read_text_file(path, kIndexBytesMax));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    malformed(path, "it has no weight_map", kDownloadAgain);
  std::map<std::string, std::string> map;
  for (const auto& [tensor, value] : index["weight_map"].items()) {
    if (!value.is_string())
      malformed(path, fmt::format("weight_map of '{}' is not a file name", shown_name(tensor)),
                kDownloadAgain);
    const auto file = value.get<std::string>();
    if (file.empty() || file == "." || file.find('/') != std::string::npos ||
        file.find("..") != std::string::npos || file.find('\0') != std::string::npos)
      malformed(path,
                fmt::format("weight_map of '{}' is '{}', which is no bare file name", shown_name(tensor),
                            shown_name(file)),
                "Do not use this directory: its index points outside of it.");
    map.emplace(tensor, file);
  }
  if (map.empty()) malformed(path, "its weight_map is empty", kDownloadAgain);
  return map;
}

// The shard's real path. Links are followed: Hugging Face's cache links to files in another folder.
std::string path_of_shard(const std::string& directory, const std::string& file,
                          const std::string& index_path) {
  std::error_code error;
  const fs::path real = fs::canonical(fs::path(directory) / file, error);
  if (error)
    malformed(index_path, fmt::format("it names {}, which is not there", shown_name(file)), kDownloadAgain);
  return real.string();
}

// The files of an export with --shards, in order of shard and file: shard-RRRRR-model-IIIII-of-NNNNN.
std::vector<std::string> files_of_shards(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code ignored;
  for (fs::directory_iterator entry(directory, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("shard-") && name.ends_with(".safetensors")) paths.push_back(entry->path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// For each tensor of a shard's file: the row of the whole tensor with which the file's part begins. Empty for
// other files.
std::map<std::string, int64_t> first_rows_of(const SafetensorsFile& file) {
  std::map<std::string, int64_t> rows;
  const auto info = file.metadata().find("DCP_SHARDING_INFO");
  if (info == file.metadata().end()) return rows;
  const Json object = parse_index(file.path(), info->second);
  for (const SafetensorsTensor& tensor : file.tensors()) {
    const auto refuse = [&] {
      malformed(file.path(),
                fmt::format("its metadata do not say where '{}' begins", shown_name(tensor.name)),
                kDownloadAgain);
    };
    if (!object.is_object() || !object.contains(tensor.name) || !object[tensor.name].is_object() ||
        !object[tensor.name].contains("saved_offsets"))
      refuse();
    const Json& offsets = object[tensor.name]["saved_offsets"];
    if (!offsets.is_array() || offsets.size() != tensor.shape.size()) refuse();
    for (size_t d = 0; d < offsets.size(); ++d)
      if (!offsets[d].is_number_unsigned() || (d > 0 && offsets[d] != 0) || offsets[d] > kRowsMax) refuse();
    if (!offsets.empty()) rows[tensor.name] = offsets[0].get<int64_t>();
  }
  return rows;
}

std::string without_suffix(const std::string& name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
}

// Blocks of MXFP4 and their scales, which may be in different files.
class PairsOfFiles {
 public:
  PairsOfFiles(const Family& family, const std::vector<SafetensorsFile>& files) {
    if (!family.mxfp4) return;
    for (size_t file = 0; file < files.size(); ++file)
      for (size_t i = 0; i < files[file].tensors().size(); ++i) {
        const std::string name = parameter_name(family, files[file].tensors()[i].name);
        if (name.ends_with(kMxfp4Blocks)) blocks_.insert(without_suffix(name, kMxfp4Blocks));
        if (name.ends_with(kMxfp4Scales)) scales_[without_suffix(name, kMxfp4Scales)] = {file, i};
      }
  }
  // Whether the tensor of that name has scales, and some file has the blocks that belong to them.
  bool are_scales(const std::string& name) const {
    return name.ends_with(kMxfp4Scales) && blocks_.contains(without_suffix(name, kMxfp4Scales));
  }
  // The scales of the blocks of that name; nothing: it names no blocks, or they have no scales.
  std::optional<HfPlace> scales_of(const std::string& name) const {
    const auto found =
        name.ends_with(kMxfp4Blocks) ? scales_.find(without_suffix(name, kMxfp4Blocks)) : scales_.end();
    if (found == scales_.end()) return {};
    return found->second;
  }

 private:
  std::set<std::string> blocks_;
  std::map<std::string, HfPlace> scales_;
};

}  // namespace

bool has_weights(const std::string& directory) {
  const fs::path path(directory);
  if (is_there(path / kSingleName) || is_there(path / kIndexName) || !files_of_shards(directory).empty())
    return true;
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (is_there(path / pickle))
      throw Error(ExitCode::malformed_file,
                  fmt::format("{} holds weights in {} only, a format that can run code and is not read.",
                              printable(directory), pickle),
                  "Convert them to model.safetensors; sluice train --from-scratch starts without them.");
  return false;
}

uint64_t table_bytes_at_most(const std::string& directory, uint64_t stacked) {
  uint64_t bytes = kStackedBytes * stacked / kTableBytes;
  std::error_code ignored;
  for (fs::directory_iterator entry(directory, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const fs::path& path = entry->path();
    const uint64_t size = fs::file_size(path, ignored);
    if (ignored) continue;
    if (path.filename() == kIndexName) bytes += std::min(size, kIndexBytesMax);
    if (path.extension() == ".safetensors") bytes += SafetensorsFile::header_bytes(path.string());
  }
  return kTableBytes * bytes;
}

HfWeights HfWeights::open(const std::string& directory, const std::string& family, const ExpertCounts& most) {
  if (!has_weights(directory))
    throw Error(ExitCode::usage,
                fmt::format("{} holds neither {} nor {}.", printable(directory), kSingleName, kIndexName),
                "Give a directory with safetensors weights.");
  HfWeights weights;
  weights.directory_ = directory;
  weights.most_ = most;
  const fs::path single = fs::path(directory) / kSingleName, index = fs::path(directory) / kIndexName;
  if (is_there(single))
    weights.files_.push_back(SafetensorsFile::open(single.string()));
  else if (is_there(index))
    weights.open_indexed(index.string());
  else
    for (const std::string& path : files_of_shards(directory))
      weights.files_.push_back(SafetensorsFile::open(path));
  const Family* known = find_family(family);
  CHECK(known != nullptr, family);
  weights.add_tensors(*known);
  return weights;
}

HfWeights HfWeights::open_adapters(const std::string& directory, const std::string& family,
                                   const ExpertCounts& most) {
  const fs::path path = fs::path(directory) / (std::string(kAdapterWeights) + ".safetensors");
  if (!is_there(path))
    throw Error(ExitCode::usage, fmt::format("{} lacks {}.", printable(directory), path.filename().string()),
                "Give a directory that PEFT or `sluice export` has written, with safetensors weights.");
  HfWeights weights;
  weights.directory_ = directory;
  weights.most_ = most;
  weights.are_adapters_ = true;
  weights.files_.push_back(SafetensorsFile::open(path.string()));
  weights.add_adapters(*find_family(family));
  return weights;
}

void HfWeights::open_indexed(const std::string& index_path) {
  const std::map<std::string, std::string> map = read_index(index_path);
  std::map<std::string, size_t> file_numbers;
  for (const auto& [tensor, name] : map) {
    const auto [found, added] = file_numbers.emplace(name, files_.size());
    if (added) files_.push_back(SafetensorsFile::open(path_of_shard(directory_, name, index_path)));
    if (files_[found->second].find(tensor) == nullptr)
      malformed(
          index_path,
          fmt::format("it says that '{}' is in {}, where it is not", shown_name(tensor), shown_name(name)),
          kDownloadAgain);
  }
  for (const auto& [name, number] : file_numbers)
    for (const SafetensorsTensor& tensor : files_[number].tensors()) {
      const auto found = map.find(tensor.name);
      if (found == map.end() || found->second != name)
        malformed(index_path,
                  fmt::format("{} holds '{}', which the index does not place there", shown_name(name),
                              shown_name(tensor.name)),
                  kDownloadAgain);
    }
}

// Adds one tensor of one file: all of a parameter, or the parameter's rows from `first_row` on.
void HfWeights::add_rows(const std::string& name, const SafetensorsTensor& tensor, HfTensor::Piece piece,
                         int64_t first_row) {
  HfTensor& whole = tensors_[name];
  if (whole.pieces.empty()) {
    whole.type = tensor.type;
    whole.shape = tensor.shape;
  }
  const auto refuse = [&](const char* what) {
    malformed(directory_, fmt::format("its files {} of '{}'", what, shown_name(name)), kDownloadAgain);
  };
  if (tensor.type != whole.type || tensor.shape.size() != whole.shape.size() ||
      !std::equal(tensor.shape.begin() + 1, tensor.shape.end(), whole.shape.begin() + 1))
    refuse("disagree about the shape or type");
  const int64_t rows_before = whole.pieces.empty() ? 0 : whole.shape.front();
  if (first_row != rows_before) refuse(first_row < rows_before ? "hold rows twice" : "lack rows");
  piece.first = whole.pieces.empty() ? 0 : whole.elements();
  piece.elements = tensor.elements();
  if (!whole.pieces.empty()) whole.shape.front() += tensor.shape.front();
  whole.pieces.push_back(piece);
}

void HfWeights::add(const std::string& name, HfTensor tensor) {
  if (!tensors_.emplace(name, std::move(tensor)).second)
    malformed(directory_, fmt::format("it holds '{}' twice, under two names", shown_name(name)),
              kDownloadAgain);
}

// Admits a stacked tensor, or refuses it. `all_most`: how many parameters all such tensors may have.
void HfWeights::admit(const std::string& name, const StackSize& size, uint64_t all_most) {
  const auto refuse = [&](const std::string& what) {
    malformed(directory_, fmt::format("'{}' {}", shown_name(name), what),
              are_adapters_ ? "Give the --model on which the adapters were trained."
                            : "Give the config.json that belongs to these weights.");
  };
  if (size.experts > most_.experts)
    refuse(fmt::format("has {} experts, and the model has {}", size.experts, most_.experts));
  admitted_ += static_cast<uint64_t>(size.experts * size.of_expert);
  if (admitted_ > all_most)
    refuse(fmt::format("is one more of such tensors than {} layers of {} experts have", most_.layers,
                       most_.experts));
}

void HfWeights::add_adapters(const Family& family) {
  std::vector<std::string> notes;  // unused: whoever reads the settings gets them
  const PeftTargets targets = read_peft_targets(directory_, &family, notes);
  const uint64_t all_most = 2 * stacked_parameters(family, most_);  // each parameter has two factors
  const std::vector<SafetensorsTensor>& tensors = files_.front().tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = parameter_name(family, without_peft_prefix(tensors[i].name));
    admit(name, factor_stack_size(targets, name, tensors[i].shape), all_most);
    for (const FactorPart& part : factor_parts(family, targets, name, tensors[i].shape)) {
      HfTensor tensor{tensors[i].type, part.shape, {{.tensor = i, .skip = part.skip, .step = part.step}}};
      tensor.pieces.front().elements = tensor.elements();
      tensor.pieces.front().rows = part.rows;
      add(part.name, std::move(tensor));
    }
  }
}

// Adds the parameters that make up a tensor: a stored one, or one decoded from blocks and scales.
void HfWeights::add_parts(const Family& family, const std::string& name, const Shape& shape,
                          SafetensorsType type, const HfTensor::Piece& whole) {
  admit(name, stack_size(family, name, shape), stacked_parameters(family, most_));
  std::vector<TensorPart> parts = stacked_parts(family, name, shape);
  if (parts.empty()) parts.push_back({name, shape});
  add_experts(parts, type, whole);
}
void HfWeights::add_experts(std::span<const TensorPart> parts, SafetensorsType type,
                            const HfTensor::Piece& whole) {
  for (const TensorPart& part : parts) {
    HfTensor::Piece piece = whole;
    piece.elements = part.elements(), piece.skip = part.skip, piece.step = part.step;
    add(part.parameter, {type, part.shape, {piece}});
  }
}

void HfWeights::add_tensors(const Family& family) {
  const PairsOfFiles pairs(family, files_);
  for (size_t file = 0; file < files_.size(); ++file) {
    const std::map<std::string, int64_t> first_rows = first_rows_of(files_[file]);
    const std::vector<SafetensorsTensor>& tensors = files_[file].tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string& stored = tensors[i].name;
      const std::string name = parameter_name(family, stored);
      if (family.is_buffer(name)) continue;
      const auto row = first_rows.find(tensors[i].name);
      if (row != first_rows.end()) {
        // A row of a stacked tensor is an expert, so each expert is whole in one file.
        admit(name, stack_size(family, name, tensors[i].shape), stacked_parameters(family, most_));
        const auto experts = stacked_parts(family, name, tensors[i].shape, row->second);
        if (experts.empty())
          add_rows(name, tensors[i], {file, i}, row->second);
        else
          add_experts(experts, tensors[i].type, {.file = file, .tensor = i});
        continue;
      }
      if (pairs.are_scales(name)) continue;
      if (const auto scales = pairs.scales_of(name)) {
        const SafetensorsTensor& of_blocks = files_[scales->file].tensors()[scales->tensor];
        const Shape shape = mxfp4_shape(tensors[i], of_blocks);
        if (shape.empty())
          malformed(files_[file].path(),
                    fmt::format("'{}' {} {} and '{}' {} {} are no blocks of MXFP4 with their scales",
                                shown_name(stored), safetensors_type_name(tensors[i].type),
                                shown_shape(tensors[i].shape), shown_name(of_blocks.name),
                                safetensors_type_name(of_blocks.type), shown_shape(of_blocks.shape)),
                    kDownloadAgain);
        // Values in MXFP4 are exact in bf16.
        add_parts(family, without_suffix(name, kMxfp4Blocks), shape, SafetensorsType::bf16,
                  {.file = file, .tensor = i, .scales = scales});
        continue;
      }
      add_parts(family, name, tensors[i].shape, tensors[i].type, {.file = file, .tensor = i});
    }
  }
}

namespace {

// Reads `count` elements of the tensor: elements from, from + step, and so on.
void read_apart(const SafetensorsFile& file, const SafetensorsTensor& tensor, uint64_t from, uint64_t step,
                uint64_t count, float* out) {
  constexpr uint64_t kValues = 1 << 16;
  std::vector<float> values;
  for (uint64_t done = 0; done < count;) {
    const uint64_t n = std::min(count - done, kValues / step);
    values.resize((n - 1) * step + 1);
    file.read_f32(tensor, from + done * step, values.size(), values.data());
    for (uint64_t i = 0; i < n; ++i) out[done + i] = values[i * step];
    done += n;
  }
}

// Reads elements [first, first + count) of a parameter that has one piece, in which its rows are stored in
// part (HfRows).
void read_rows(const SafetensorsFile& file, const SafetensorsTensor& tensor, const HfTensor::Piece& piece,
               uint64_t first, uint64_t count, float* out) {
  const HfRows& rows = piece.rows;
  for (uint64_t done = 0; done < count;) {
    const uint64_t row = (first + done) / rows.columns, column = (first + done) % rows.columns;
    const uint64_t n = std::min(rows.columns - column, count - done);
    const uint64_t there = column < rows.stored ? std::min(rows.stored - column, n) : 0;
    read_apart(file, tensor, piece.skip + row * rows.apart + column * piece.step, piece.step, there,
               out + done);
    std::fill_n(out + done + there, n - there, 0.0f);
    done += n;
  }
}

}  // namespace

std::vector<std::string> HfWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

const HfTensor* HfWeights::find(const std::string& parameter) const {
  const auto found = tensors_.find(parameter);
  return found == tensors_.end() ? nullptr : &found->second;
}

void HfWeights::read(const std::string& parameter, uint64_t first, uint64_t count, float* out) const {
  const HfTensor* const tensor = find(parameter);
  CHECK(tensor != nullptr, "no weights for " + shown_name(parameter));
  for (const HfTensor::Piece& piece : tensor->pieces) {
    const SafetensorsFile& file = files_[piece.file];
    const SafetensorsTensor& stored = file.tensors()[piece.tensor];
    const uint64_t begin = std::max(first, piece.first);
    const uint64_t end = std::min(first + count, piece.first + piece.elements);
    if (begin >= end) continue;
    const uint64_t from = piece.skip + (begin - piece.first) * piece.step;
    if (piece.scales) {
      const SafetensorsFile& of_scales = files_[piece.scales->file];
      mxfp4_->read({&file, &stored, &of_scales, &of_scales.tensors()[piece.scales->tensor]}, from, piece.step,
                   end - begin, out + (begin - first));
      continue;
    }
    if (piece.rows.columns > 0)
      read_rows(file, stored, piece, begin - piece.first, end - begin, out + (begin - first));
    else if (piece.step == 1)
      file.read_f32(stored, from, end - begin, out + (begin - first));
    else
      read_apart(file, stored, from, piece.step, end - begin, out + (begin - first));
  }
}

bool holds(const HfWeights& weights, const Model& model, const Group& group) {
  return !has_adapters(model) || group.adapter == weights.are_adapters();
}

uint64_t sampled_checksum(const HfWeights& weights, const Model& model) {
  constexpr uint64_t kRange = 1024, kRanges = 8;
  std::vector<float> values(kRange);
  std::string sample;
  for (const Group& group : groups_of_all_ranks(model)) {
    if (!holds(weights, model, group)) continue;
    for (const Parameter& parameter : group.parameters) {
      const uint64_t elements = weights.find(parameter.name)->elements();
      sample += parameter.name + shown_shape(parameter.shape);
      const uint64_t ranges = std::min(kRanges, (elements + kRange - 1) / kRange);
      for (uint64_t k = 0; k < ranges; ++k) {
        const uint64_t count = std::min(kRange, elements);
        const uint64_t first = ranges == 1 ? 0 : (elements - count) / (ranges - 1) * k;
        weights.read(parameter.name, first, count, values.data());
        const uint64_t sum = XXH3_64bits(values.data(), count * sizeof(float));
        sample.append(reinterpret_cast<const char*>(&sum), sizeof sum);
      }
    }
  }
  return XXH3_64bits(sample.data(), sample.size());
}

}  // namespace sluice
