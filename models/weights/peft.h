// Adapters as PEFT 0.21.2 keeps them: a directory with adapter_config.json and adapter_model.safetensors. The
// weights are read by HfWeights::open_adapters() and written by write_hf_directory().
#pragma once

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "models/families/adapters.h"

namespace sluice {

struct Family;
struct Model;
struct ModelConfig;
struct PeftTargets;

constexpr const char* kAdapterConfig = "adapter_config.json";
constexpr const char* kAdapterWeights = "adapter_model";  // .safetensors

// What an adapter_config.json says. `notes` receives a sentence for each setting of the file that training
// does not apply. Throws Error(usage) where the directory has no such file, Error(malformed_file) for values
// that change the mathematics in ways that Sluice does not compute. `family`: the base's; nullptr: it is
// unknown, and experts' parameters (target_parameters) are refused.
Adapters read_adapter_config(const std::string& directory, std::vector<std::string>& notes,
                             const Family* family = nullptr);
// Reads the same file, and returns also the ranks with which files of weights are read (peft_experts.h).
PeftTargets read_peft_targets(const std::string& directory, const Family* family,
                              std::vector<std::string>& notes);

// Sets the targets to the ops that have factors in `parameters`, by the shortest names that match no other
// ops. adapter_config.json does not always say which ops these are: target_modules may be a pattern, a name
// may match experts here that PEFT keeps elsewhere, and other keys may leave layers out. `parameters`: names
// of all factors (HfWeights::names). If there are no such names, or the base cannot have such adapters, the
// targets stay, and check_weights() says what is wrong.
void settle_targets(const std::vector<std::string>& parameters, const ModelConfig& base, Adapters& adapters);

// Sentences, often none, on how target_modules of an adapter_config.json and the factors in `parameters`
// contradict each other. The factors decide which modules have adapters. `parameters` as for
// settle_targets().
std::vector<std::string> notes_on_targets(const std::string& directory,
                                          const std::vector<std::string>& parameters);

// An adapter_config.json. `base` is the directory of the base model.
std::string adapter_config_json(const Adapters& adapters, const Model& model, const std::string& base);

// peft_name(): "model.layers.0.self_attn.q_proj.lora_A.weight" with what PEFT puts before it.
// without_peft_prefix(): a tensor's name without PEFT's "base_model.model."; any other name stays as it is.
// `nested`: the base is the larger model of Family::nested, whose modules have other names. PEFT passes over
// adapters whose names it does not find, and only warns.
std::string peft_name(const Family& family, const std::string& parameter, bool nested);
std::string without_peft_prefix(const std::string& tensor);

}  // namespace sluice
