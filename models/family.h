// Model families: one row each, one file each. A family reads its part of a config.json, writes it, and
// builds layers.
//
// A new family is one file with those three functions (segment_builder.h and config_reader.h help) and one
// row in family.cc. Set-up code, any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "engine/graph.h"
#include "models/config.h"

namespace sluice {

class ConfigReader;

struct Family {
  const char* name;          // model_type of config.json
  const char* architecture;  // transformers' class
  void (*read)(const ConfigReader& file, ModelConfig& config);
  void (*write)(const ModelConfig& config, nlohmann::ordered_json& file);
  void (*build)(const ModelConfig& config,
                Model& model);  // precision, micro_batch, sequence, vocabulary are set
};

extern const Family kGpt2, kLlama;

std::span<const Family* const> families();
const Family* find_family(const std::string& name);  // nullptr: unknown

// The model for slices of micro_batch x sequence tokens, working in `precision`; groups laid out and the
// whole checked. Throws Error(usage) when the sequence is longer than the context or a slice has 2^31 tokens
// or more.
Model build_model(const ModelConfig& config, DType precision, int64_t micro_batch, int64_t sequence);

}  // namespace sluice
