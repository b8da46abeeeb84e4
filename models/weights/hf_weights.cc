#include "models/weights/hf_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"
#include "models/families/family.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kHeadName = "lm_head.weight";
constexpr uint64_t kIndexBytesMax = 64 << 20;  // a million tensors

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

bool is_floating_point(SafetensorsType type) {
  return type == SafetensorsType::f32 || type == SafetensorsType::f16 || type == SafetensorsType::bf16 ||
         type == SafetensorsType::f64;
}

std::string parameter_name(const Family& family, const std::string& stored) {
  const std::string_view prefix = family.tensor_prefix;
  return stored.starts_with(prefix) ? stored.substr(prefix.size()) : stored;
}

Json parse_index(const std::string& path, const std::string& text) {
  try {
    return parse_strict_json(text);
  } catch (const std::invalid_argument& error) {
    malformed(path, error.what(), kDownloadAgain);
  }
}

// From tensor to file name, without directories.
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

// The shard's real path, which must lie in the directory itself.
std::string path_inside(const std::string& directory, const std::string& file,
                        const std::string& index_path) {
  std::error_code error;
  const fs::path real = fs::canonical(fs::path(directory) / file, error);
  if (error)
    malformed(index_path, fmt::format("it names {}, which is not there", shown_name(file)), kDownloadAgain);
  if (real.parent_path() != fs::canonical(directory, error) || error)
    malformed(index_path, fmt::format("it names {}, a link that leaves the directory", shown_name(file)),
              "Copy the files themselves into one directory (cp -L).");
  return real.string();
}

struct Findings {
  const char* what;
  std::vector<std::string> names;
};

std::string listed(const Findings& findings) {
  constexpr size_t kShown = 10;
  const size_t n = findings.names.size();
  const std::vector<std::string> first(findings.names.begin(), findings.names.begin() + std::min(n, kShown));
  return fmt::format("{} {} ({}{})", n, findings.what, fmt::join(first, ", "),
                     n > kShown ? fmt::format(" and {} more", n - kShown) : "");
}

}  // namespace

bool has_weights(const std::string& directory) {
  const fs::path path(directory);
  if (is_there(path / kSingleName) || is_there(path / kIndexName)) return true;
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (is_there(path / pickle))
      throw Error(ExitCode::malformed_file,
                  fmt::format("{} holds weights in {} only, a format that can run code and is not read.",
                              printable(directory), pickle),
                  "Convert them to model.safetensors, or start afresh with --from-scratch.");
  return false;
}

HfWeights HfWeights::open(const std::string& directory, const std::string& family) {
  if (!has_weights(directory))
    throw Error(ExitCode::usage,
                fmt::format("{} holds neither {} nor {}.", printable(directory), kSingleName, kIndexName),
                "Give a directory with safetensors weights.");
  HfWeights weights;
  weights.directory_ = directory;
  const fs::path single = fs::path(directory) / kSingleName, index = fs::path(directory) / kIndexName;
  if (is_there(single))
    weights.files_.push_back(SafetensorsFile::open(single.string()));
  else
    weights.open_sharded(index.string());
  const Family* known = find_family(family);
  CHECK(known != nullptr, family);
  weights.add_tensors(*known);
  return weights;
}

void HfWeights::open_sharded(const std::string& index_path) {
  const std::map<std::string, std::string> map = read_index(index_path);
  std::map<std::string, size_t> file_numbers;
  for (const auto& [tensor, name] : map) {
    const auto [found, added] = file_numbers.emplace(name, files_.size());
    if (added) files_.push_back(SafetensorsFile::open(path_inside(directory_, name, index_path)));
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

void HfWeights::add_tensors(const Family& family) {
  for (size_t file = 0; file < files_.size(); ++file) {
    const std::vector<SafetensorsTensor>& tensors = files_[file].tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string name = parameter_name(family, tensors[i].name);
      if (family.is_buffer(name)) continue;
      if (!tensors_.emplace(name, Location{file, i}).second)
        malformed(directory_, fmt::format("it holds '{}' both with and without a prefix", shown_name(name)),
                  kDownloadAgain);
    }
  }
}

std::vector<std::string> HfWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, location] : tensors_) names.push_back(name);
  return names;
}

const SafetensorsTensor* HfWeights::find(const std::string& parameter) const {
  const auto found = tensors_.find(parameter);
  return found == tensors_.end() ? nullptr : &files_[found->second.file].tensors()[found->second.tensor];
}

void HfWeights::read(const std::string& parameter, uint64_t first, uint64_t count, float* out) const {
  const auto found = tensors_.find(parameter);
  CHECK(found != tensors_.end(), "no weights for " + shown_name(parameter));
  const SafetensorsFile& file = files_[found->second.file];
  file.read_f32(file.tensors()[found->second.tensor], first, count, out);
}

void check_weights(const HfWeights& weights, const Model& model) {
  Findings missing{"missing", {}}, unknown{"unknown", {}}, misshapen{"of another shape", {}},
      mistyped{"not floating-point", {}};
  std::set<std::string> expected;
  for (const Group& group : model.groups)
    for (const Parameter& parameter : group.parameters) {
      expected.insert(parameter.name);
      const SafetensorsTensor* tensor = weights.find(parameter.name);
      const std::string name = shown_name(parameter.name);
      if (tensor == nullptr)
        missing.names.push_back(name);
      else if (tensor->shape != parameter.shape)
        misshapen.names.push_back(fmt::format("{} {} instead of {}", name, shown_shape(tensor->shape),
                                              shown_shape(parameter.shape)));
      else if (!is_floating_point(tensor->type))
        mistyped.names.push_back(fmt::format("{} {}", name, safetensors_type_name(tensor->type)));
    }
  for (const std::string& name : weights.names())
    if (!expected.contains(name) && name != kHeadName) unknown.names.push_back(shown_name(name));
  std::vector<std::string> parts;
  for (const Findings* findings : {&missing, &unknown, &misshapen, &mistyped})
    if (!findings->names.empty()) parts.push_back(listed(*findings));
  if (!parts.empty())
    malformed(weights.directory(),
              fmt::format("its tensors do not fit the model: {}", fmt::join(parts, "; ")),
              "Give the config.json that belongs to these weights.");
}

}  // namespace sluice
