// Inputs that fuzzers and tests start from: fixtures, texts made here, and tests/fuzz/corpus.
//
// Files are read from the repository root. Callers: parser_fuzz_test, and write_seeds for the fuzzers.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace sluice::fuzzing {

// Names of the functions of targets.h, without fuzz_.
inline constexpr std::array kTargetNames = {"tokenizer",         "chat_template", "records",
                                            "text_model",        "safetensors",   "model_config",
                                            "model_description", "machine",       "config_file"};

std::vector<std::string> seeds_of(const std::string& target);

}  // namespace sluice::fuzzing
