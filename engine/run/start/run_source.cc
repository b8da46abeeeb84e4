#include "engine/run/start/run_source.h"

#include <filesystem>

#include "models/weights/initial_weights.h"

namespace sluice {

Error only_damaged(const std::string& run, const std::vector<std::string>& damaged) {
  return Error(ExitCode::malformed_file,
               "Every checkpoint of " + printable(run) + " is damaged: " + damaged.front(),
               "Restore one from a copy, or train anew into another --out.");
}

std::optional<std::string> find_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(std::filesystem::path(path) / "manifest.json", ignored)) return path;
  std::vector<std::string> damaged;
  const std::optional<std::string> newest = newest_checkpoint(path, &damaged);
  if (!newest && !damaged.empty()) throw only_damaged(path, damaged);
  return newest;
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
