// generation_config.json of a model: how its authors would draw tokens. Source: transformers 5.23,
// generation/configuration_utils.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

// None: the file does not say.
struct GenerationSettings {
  // Set if do_sample. If it is not set, the others apply only if a user gives a temperature.
  std::optional<double> temperature;
  std::optional<double> top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;          // 0: all tokens
  std::optional<int64_t> max_tokens;     // of an answer: max_new_tokens
  std::optional<int64_t> max_length;     // of prompt and answer
  std::vector<std::string> stops;        // stop_strings
  std::vector<std::string> not_applied;  // "typical_p 0.9": what would change answers in transformers
};

// Reads the directory's file; where there is none, nothing is set. Throws Error(malformed_file) for a file
// that is no JSON.
GenerationSettings read_generation_settings(const std::string& directory);

}  // namespace sluice
