// Model families: one file and one row of the registry each.
//
// A family says everything about itself: how its config.json is read and written, its presets and the sizes
// that an inline description may give, how its checkpoints name tensors, how its layers are built. Whatever
// lists families (help, messages, tests) reads the registry. A new family is models/families/NAME.cc and its
// row in family.cc; decoder.h, rotary.h and config_reader.h help.
#pragma once

#include <algorithm>
#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/graph/graph.h"
#include "models/families/config.h"

namespace sluice {

class ConfigReader;

struct Preset {
  const char* name;
  ModelConfig config;      // without the family, which config_from_name sets
  uint64_t parameters;     // as published
  const char* alias = "";  // a second name; "": none
};

// A KEY=VALUE of an inline description. Numbers are written as integers from 1 to `most`.
struct SizeKey {
  const char* name;
  std::variant<int64_t ModelConfig::*, double ModelConfig::*, bool ModelConfig::*,
               std::vector<int64_t> ModelConfig::*>
      field;
  int64_t most;
  const char* help;
  const char *yes = "true", *no = "false";  // of a flag: what its values are called
  bool is_factor = false;  // the number is positive and may have a fraction, or is "none", which is 0
};

// `keys`, then `more`.
template <size_t N, size_t M>
constexpr std::array<SizeKey, N + M> with_keys(const std::array<SizeKey, N>& keys, const SizeKey (&more)[M]) {
  std::array<SizeKey, N + M> all{};
  std::ranges::copy(more, std::ranges::copy(keys, all.begin()).out);
  return all;
}

// A tensor of a file, [experts, ...], that has one or two parameters of every expert of a layer. Of two
// parameters, the rows of the first come before the rows of the second, or columns of the two alternate.
struct Stacked {
  const char* tensor;       // its name behind the layer's name
  const char* first;        // a parameter's name behind the expert's name
  const char* second = "";  // "": there is only the first
  enum class Order : uint8_t { rows, columns } order = Order::rows;
};

struct Family {
  const char* name;          // model_type of config.json
  const char* title;         // as people write it
  const char* architecture;  // transformers' class

  std::vector<Preset> (*presets)();  // published sizes that people train; plain_preset is one of them
  // The preset that NAME:KEY=VALUE changes. Where the preset's kv_heads differ from its heads, a description
  // with heads and no kv_heads keeps the preset's kv_heads. These must divide the heads of the description,
  // so a preset with few kv_heads suits most descriptions.
  const char* plain_preset;
  std::span<const SizeKey> keys;  // beyond those of every family
  // For a description that gives another width and no ffn: the paper's rule, or a ratio near the presets'.
  int64_t (*ffn)(int64_t width);

  void (*read)(const ConfigReader& file, ModelConfig& config);
  void (*write)(const ModelConfig& config, nlohmann::ordered_json& file);

  // The name of a layer's experts behind the layer's name, such as "mlp.experts": expert e has parameters
  // model.layers.i.mlp.experts.e.*
  const char* experts = "";
  std::span<const Stacked> stacked;  // what files may have, or with `stacks` do have, for experts' parameters
  bool stacks = false;
  bool peft_joins = false;  // PEFT 0.21.2 turns adapters of single experts into those of `stacked`
  bool mxfp4 = false;       // files may have matrices of `stacked` in MXFP4 (models/files/mxfp4.h)
  // Some files have a parameter of a layer, `name`, under the name `stored`. Both are without the layer's
  // name. "": no file does.
  struct Alias {
    const char* stored = "";
    const char* name = "";
  } alias;

  bool matrices_in_out = false;  // matrices of layers are [in, out], as Conv1D has them
  // A prefix of the modules' names in transformers' class, which some checkpoints therefore have before all
  // names; "": there is none.
  const char* tensor_prefix = "";
  // Whether a tensor is no parameter: older transformers saved it beside the parameters, or it is a part of
  // the larger model of `nested`.
  bool (*is_buffer)(std::string_view tensor);

  // Fills in a model. The caller has set its precision, its vocabulary and its readings without their
  // layers; for a model to be trained, also micro_batch, sequence and documents.
  void (*build)(const ModelConfig& config, Model& model);

  // A larger model of which the family is the text part; "": there is none.
  struct Nested {
    const char* name = "";           // model_type of its config.json; the family's keys are under text_config
    const char* defaults = "{}";     // for keys that text_config may lack, as JSON
    const char* tensor_prefix = "";  // what its modules and checkpoints have in place of "model."
    const char* older_prefix = "";   // what older checkpoints have before all names
  } nested;
};

std::span<const Family* const> families();
std::vector<std::string> family_names();
const Family* find_family(const std::string& name);  // nullptr: unknown
// Values of config.json's model_type that are known and have no family yet.
std::span<const std::string_view> planned_families();

std::span<const SizeKey> common_size_keys();           // of every family
std::vector<SizeKey> size_keys(const Family& family);  // common_size_keys(), then its own

// How a model generates text.
struct GenerationSizes {
  int64_t sequences = 1;  // at once
  int64_t context = 1;    // tokens of a sequence at most
  int64_t chunk = 1;      // tokens of each prompt that are read at once
};

// The model for micro-batches of `micro_batch` sequences in working precision `precision`; its parameter
// groups are laid out, and the model is checked. `documents`: see Model. With `samples`, it also has the
// readings of build_generation_model(). Throws Error(usage) when the sequence is longer than the context and
// positions are learned, or when a micro-batch has 2^31 or more tokens or logits of a router, or about 2^30
// or more choices of experts.
Model build_model(const ModelConfig& config, DType precision, int64_t micro_batch, int64_t sequence,
                  bool documents = false, const std::optional<GenerationSizes>& samples = {});

// A sentence if sequences of `length` tokens, which `option` gives, are longer than the context and
// build_model() does not refuse them; else nothing. Rotary positions go on beyond the context, as they are or
// as the config.json scales them.
std::optional<std::string> length_note(const ModelConfig& config, int64_t length, const char* option);

// The model that only generates text. Its readings are "decode", of one token, and "prefill"; they have
// document begins (OpAttributes::context). Logits are without the soft cap, ModelConfig::logits_cap. Nothing
// is trainable. Throws as build_model() does.
Model build_generation_model(const ModelConfig& config, DType precision, int64_t sequences, int64_t context,
                             int64_t chunk);

}  // namespace sluice
