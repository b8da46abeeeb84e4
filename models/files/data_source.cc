#include "models/files/data_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>

#include "engine/base/error.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr double kWeightLeast = 1e-6, kWeightMost = 1e9, kUnits = 1e6;

std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const bool is_number = rest == end && !text.empty() && error != std::errc::invalid_argument;
  return is_number ? std::optional(value) : std::nullopt;
}

struct WeightedPath {
  std::string path;
  std::optional<std::string> weight;
};

WeightedPath split(const std::string& value) {
  const size_t equals = value.rfind('=');
  std::error_code ignored;
  if (equals == std::string::npos || equals == 0 || fs::exists(value, ignored)) return {value, {}};
  WeightedPath parts{value.substr(0, equals), value.substr(equals + 1)};
  if (number_of(*parts.weight) || fs::exists(parts.path, ignored)) return parts;
  return {value, {}};
}

uint64_t units_of(const WeightedPath& given) {
  const std::optional<double> weight = number_of(*given.weight);
  if (!weight || !(*weight >= kWeightLeast && *weight <= kWeightMost))
    throw Error(
        ExitCode::usage,
        fmt::format("`{}` is no weight for {} of --data.", printable(*given.weight), printable(given.path)),
        "Give a number from 0.000001 to 1e9, as in a.jsonl=0.7, or leave the file out.");
  return static_cast<uint64_t>(std::llround(*weight * kUnits));
}

}  // namespace

bool has_weight(const std::string& value) { return split(value).weight.has_value(); }

bool are_weighted(const std::vector<DataSource>& sources) {
  return std::any_of(sources.begin(), sources.end(), [](const DataSource& s) { return s.weight > 0; });
}

std::vector<DataSource> sources_of(const std::vector<std::string>& values) {
  std::vector<WeightedPath> given;
  for (const std::string& value : values) given.push_back(split(value));
  const auto has_one = [](const WeightedPath& one) { return one.weight.has_value(); };
  const auto weighted = std::find_if(given.begin(), given.end(), has_one);
  if (weighted == given.end()) return {{"", files_of(values).files, 0}};
  if (const auto other = std::find_if_not(given.begin(), given.end(), has_one); other != given.end())
    throw Error(ExitCode::usage,
                fmt::format("--data gives {} a weight, and {} none.", printable(weighted->path),
                            printable(other->path)),
                fmt::format("Give all of them weights, as in {}=1, or none.", printable(other->path)));
  std::vector<DataSource> sources;
  uint64_t common = 0;
  for (const WeightedPath& one : given) {
    sources.push_back({one.path, files_of({one.path}).files, units_of(one)});
    common = std::gcd(common, sources.back().weight);
  }
  for (DataSource& source : sources) source.weight /= common;
  return sources;
}

std::vector<std::string> files_of(const std::vector<DataSource>& sources) {
  std::vector<std::string> all;
  for (const DataSource& source : sources) all.insert(all.end(), source.files.begin(), source.files.end());
  return all;
}

}  // namespace sluice
