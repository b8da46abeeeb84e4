#include "tools/run_source.h"

#include <filesystem>

#include "models/initial_weights.h"

namespace sluice {

std::optional<std::string> find_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(std::filesystem::path(path) / "manifest.json", ignored)) return path;
  return newest_checkpoint(path);
}

ParameterSource source_of(const CheckpointReader& checkpoint) {
  return [&checkpoint](const Parameter& p, uint64_t first, uint64_t count, float* out) {
    checkpoint.read_weights(p.name, first, count, out);
  };
}

ParameterSource source_of(const HfWeights& weights) {
  return [&weights](const Parameter& p, uint64_t first, uint64_t count, float* out) {
    weights.read(p.name, first, count, out);
  };
}

ParameterSource source_of(uint64_t seed) {
  return [seed](const Parameter& p, uint64_t first, uint64_t count, float* out) {
    fill_initial(p, seed, first, count, out);
  };
}

}  // namespace sluice
