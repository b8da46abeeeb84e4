#include "models/families/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/strict_json.h"
#include "models/families/config_reader.h"
#include "models/families/family.h"

namespace sluice {
namespace {

const char* const kSpecialTokens[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

// Ids of tokens that generation needs and training does not: null, an integer or a list of integers, kept as
// written.
void read_special_tokens(const nlohmann::json& object, ModelConfig& config) {
  for (const char* key : kSpecialTokens) {
    const auto found = object.find(key);
    if (found == object.end()) continue;
    bool integers = found->is_null() || found->is_number_integer() || found->is_array();
    if (found->is_array())
      for (const auto& element : *found) integers &= element.is_number_integer();
    if (integers) config.special_tokens[key] = found->dump();
  }
}

// Keys that do not change the model's mathematics here. An export has the file's value of such a key, or else
// the value that other software takes.
bool is_unused(const std::string& key) {
  const std::vector<const char*> keys = {"resid_pdrop",       "embd_pdrop",     "attn_pdrop",
                                         "attention_dropout", "hidden_dropout", "initializer_range",
                                         "use_cache"};
  return std::ranges::find(keys, key) != keys.end();
}

// Keys about weights, versions or files that would be wrong in an export, and keys that config_to_json()
// writes in another form.
bool is_of_the_original(const std::string& key) {
  const std::vector<const char*> keys = {"architectures",
                                         "model_type",
                                         "auto_map",
                                         "torch_dtype",
                                         "dtype",
                                         "transformers_version",
                                         "_name_or_path",
                                         "quantization_config",
                                         "partial_rotary_factor"};
  return std::ranges::find(keys, key) != keys.end() || key.starts_with("rope_");
}

nlohmann::ordered_json used_keys(const ModelConfig& config, DType weights) {
  const Family* family = find_family(config.family);
  CHECK(family != nullptr, config.family);
  nlohmann::ordered_json object;
  object["architectures"] = {family->architecture};
  object["model_type"] = family->name;
  object["vocab_size"] = config.vocabulary;
  family->write(config, object);
  object["tie_word_embeddings"] = config.tied;
  object["initializer_range"] = 0.02;
  object["use_cache"] = true;
  object["torch_dtype"] = weights == DType::bf16 ? "bfloat16" : weights == DType::f16 ? "float16" : "float32";
  for (const auto& [key, value] : config.special_tokens) object[key] = nlohmann::ordered_json::parse(value);
  return object;
}

void read_unused(const nlohmann::json& object, ModelConfig& config) {
  const nlohmann::ordered_json used = used_keys(config, DType::f32);
  for (const auto& [key, value] : object.items())
    if (!is_of_the_original(key) &&
        (!used.contains(key) || (is_unused(key) && nlohmann::json(used[key]) != value)))
      config.unused[key] = value.dump();
}

// Notes the file's values that training does not apply.
void read_notes(const ConfigReader& file, const std::string& name, ModelConfig& config) {
  std::vector<std::string> dropouts;
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout"})
    if (file.number_or(key, 0) != 0) dropouts.push_back(fmt::format("{} {}", key, file.number(key)));
  if (!dropouts.empty())
    config.notes.push_back(fmt::format("{}: dropout is not applied ({}).", name, fmt::join(dropouts, ", ")));
  if (file.number_or("initializer_range", 0.02) != 0.02)
    config.notes.push_back(
        fmt::format("{}: initializer_range {} is not applied; random weights start from 0.02.", name,
                    file.number("initializer_range")));
}

nlohmann::json parse_object(const std::string& text, const std::string& name) {
  constexpr const char* kRemedy = "Give the config.json that Hugging Face stores with a model.";
  try {
    nlohmann::json object = parse_strict_json(text);
    if (object.is_object()) return object;
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", name, error.what()), kRemedy);
  }
  throw Error(ExitCode::malformed_file, fmt::format("{} is not a JSON object.", name), kRemedy);
}

// The family that is the text part of the file's model; nullptr: there is none.
const Family* larger_family(const ConfigReader& reader) {
  const std::string type = reader.text("model_type");
  for (const Family* family : families())
    if (*family->nested.name != '\0' && type == family->nested.name) return family;
  return nullptr;
}

// Makes the family's own config.json from the larger model's.
nlohmann::json text_part(const nlohmann::json& whole, const std::string& name, const Family& family) {
  ConfigReader(whole, name).section("text_config");  // complains where there is none
  nlohmann::json part = nlohmann::json::parse(family.nested.defaults);
  for (const char* key : kSpecialTokens)
    if (whole.contains(key)) part[key] = whole[key];
  part.update(whole["text_config"]);
  if (whole.contains("quantization_config")) part["quantization_config"] = whole["quantization_config"];
  return part;
}

[[noreturn]] void refuse_type(const ConfigReader& reader, const std::string& name, const std::string& type) {
  const std::string remedy =
      fmt::format("Use a model of a supported type: {}.", fmt::join(family_names(), ", "));
  const auto planned = planned_families();
  if (std::find(planned.begin(), planned.end(), type) != planned.end())
    throw Error(ExitCode::usage, fmt::format("{}: model type {} is planned, not built yet.", name, type),
                remedy);
  reader.complain(fmt::format("model type \"{}\" is not supported.", printable(type)), remedy);
}

// Quantized weights are read if they are in MXFP4 (models/files/mxfp4.h) and the family has them.
void check_quantization(const ConfigReader& reader, const Family& family) {
  constexpr const char* kKey = "quantization_config";
  if (!family.mxfp4) return reader.reject_present(kKey);
  if (!reader.has(kKey)) return;
  const ConfigReader section = reader.section(kKey);
  section.text("quant_method");  // complains where there is none
  section.require_text("quant_method", {"mxfp4"});
}

double parameters_in_total(const ModelConfig& c) {
  const auto width = static_cast<double>(c.width), ffn = static_cast<double>(c.ffn);
  const double attention = 2 * width * static_cast<double>((c.heads + c.kv_heads) * c.head_size);
  const double tables = width * static_cast<double>(c.vocabulary) * (c.tied ? 1 : 2) +
                        (c.rope_theta == 0 ? width * static_cast<double>(c.context) : 0);
  // An upper bound: counts a feed-forward part and experts in every layer.
  const double experts =
      width * static_cast<double>(c.experts) * (3 * static_cast<double>(c.expert_ffn) + 1) +
      width * (3 * static_cast<double>(c.shared_expert_ffn) + 1);
  return tables + static_cast<double>(c.layers) * (attention + 3 * width * ffn + experts);
}

// A sentence on a value that makes no sense in the scaling; empty: there is none.
std::string wrong_scaling(const RopeScaling& s, int64_t head_size) {
  if (!(s.partial > 0 && s.partial <= 1))
    return fmt::format("partial_rotary_factor {} is not above 0 and at most 1.", s.partial);
  if (rope_pairs(s, head_size) < 1)
    return fmt::format("partial_rotary_factor {} leaves no column of {} to turn.", s.partial, head_size);
  const bool named = s.type == RopeType::linear || s.type == RopeType::dynamic || s.type == RopeType::llama3;
  if (!(s.factor >= 1 || (s.factor == 0 && !named)) || !(s.low > 0 && s.high > s.low) ||
      !(s.original_context == 0 || s.original_context >= 1))
    return fmt::format("RoPE scaling factor {}, low {}, high {}, original context {} make no sense.",
                       s.factor, s.low, s.high, s.original_context);
  if (!(s.beta_slow > 0 && s.beta_fast > s.beta_slow))
    return fmt::format("beta_fast {} and beta_slow {} make no sense.", s.beta_fast, s.beta_slow);
  if (!(s.attention_factor >= 0)) return fmt::format("attention_factor {} is negative.", s.attention_factor);
  if (s.type != RopeType::longrope) return "";
  const auto pairs = static_cast<size_t>(rope_pairs(s, head_size));
  for (const std::vector<double>* factors : {&s.short_factor, &s.long_factor}) {
    if (factors->size() != pairs)
      return fmt::format("a list of RoPE factors has {} numbers, a head {} pairs.", factors->size(), pairs);
    for (const double factor : *factors)
      if (!(factor > 0)) return fmt::format("a RoPE factor {} is not positive.", factor);
  }
  return "";
}

}  // namespace

LayerType layer_type(const ModelConfig& config, int64_t layer) {
  const auto& types = config.layer_types;
  return types.empty() ? LayerType::full : types[static_cast<size_t>(layer) % types.size()];
}

bool has_experts(const ModelConfig& config, int64_t layer) {
  return config.experts > 0 && !std::ranges::binary_search(config.dense_layers, layer);
}

int64_t experts_of(const ModelConfig& config, int64_t layer) {
  if (!has_experts(config, layer)) return 0;
  if (config.expert_counts.empty()) return config.experts;
  int64_t before = 0, all = 0;  // layers with experts
  for (int64_t i = 0; i < config.layers; ++i) {
    if (!has_experts(config, i)) continue;
    before += i < layer;
    ++all;
  }
  return config
      .expert_counts[static_cast<size_t>(before) * config.expert_counts.size() / static_cast<size_t>(all)];
}

std::string expert_counts_text(const ModelConfig& config) {
  if (config.expert_counts.empty()) return std::to_string(config.experts);
  return fmt::format("{}", fmt::join(config.expert_counts, "/"));
}

void place_experts(ModelConfig& config) {
  CHECK(config.expert_interval > 0, "a rule for which layers have experts");
  config.dense_layers.clear();
  for (int64_t i = 0; i < config.layers; ++i)
    if ((i + 1) % config.expert_interval != 0) config.dense_layers.push_back(i);
}

ModelConfig config_from_json(const std::string& text, const std::string& file) {
  const std::string name = printable(file);
  const nlohmann::json whole = parse_object(text, name);
  const Family* const larger = larger_family(ConfigReader(whole, name));
  const nlohmann::json object = larger == nullptr ? whole : text_part(whole, name, *larger);
  const ConfigReader reader(object, name);
  const std::string type = larger == nullptr ? reader.text("model_type") : larger->name;
  const Family* family = find_family(type);
  if (family == nullptr) refuse_type(reader, name, type);
  ModelConfig config{.family = type};
  config.nested = larger != nullptr;
  if (larger != nullptr)
    config.notes.push_back(
        fmt::format("{}: of this {} model, only the text part is read.", name, larger->nested.name));
  config.vocabulary = reader.integer("vocab_size", kVocabularyMax);
  check_quantization(reader, *family);
  reader.reject_flag("is_encoder_decoder");
  reader.reject_flag("add_cross_attention");
  if (!reader.flag_or("is_causal", true))
    reader.complain("is_causal is false, which is not supported.",
                    "Use a model whose tokens see only those before.");
  family->read(reader, config);
  read_special_tokens(object, config);
  read_notes(reader, name, config);
  check_config(config, name, ExitCode::malformed_file);
  read_unused(object, config);
  return config;
}

std::string config_to_json(const ModelConfig& config, DType weights) {
  nlohmann::ordered_json object = used_keys(config, weights);
  for (const auto& [key, value] : config.unused)
    if (is_unused(key) || !object.contains(key)) object[key] = nlohmann::ordered_json::parse(value);
  return object.dump(2) + "\n";
}

void check_config(const ModelConfig& c, const std::string& where, ExitCode code) {
  const std::string remedy = code == ExitCode::usage ? "Change the sizes." : "Correct the file.";
  const auto require = [&](bool condition, const std::string& what) {
    if (!condition) throw Error(code, where + ": " + what, remedy);
  };
  const auto in_range = [&](const char* what, int64_t value, int64_t most) {
    require(value >= 1 && value <= most, fmt::format("{} is {}, outside 1 to {}.", what, value, most));
  };
  in_range("the vocabulary", c.vocabulary, kVocabularyMax);
  in_range("the context", c.context, kContextMax);
  in_range("the width", c.width, kWidthMax);
  in_range("the number of layers", c.layers, kLayersMax);
  in_range("the number of heads", c.heads, kHeadsMax);
  in_range("the number of key/value heads", c.kv_heads, kHeadsMax);
  in_range("the head size", c.head_size, kWidthMax);
  in_range("the feed-forward width", c.ffn, kFfnMax);
  if (c.experts > 0) {
    in_range("the number of experts", c.experts, kExpertsMax);
    in_range("the number of experts of a token", c.experts_per_token,
             c.expert_counts.empty() ? c.experts : std::ranges::min(c.expert_counts));
    in_range("the feed-forward width of an expert", c.expert_ffn, kFfnMax);
    require(c.router_loss >= 0 && c.router_loss <= 1e6,
            fmt::format("the factor {} of the routers' loss is not from 0 to 1000000.", c.router_loss));
    require(std::isfinite(c.capacity_factor) && c.capacity_factor >= 0,
            fmt::format("the capacity {} of experts is not positive.", c.capacity_factor));
    require(!c.random_second || c.experts_per_token == 2,
            fmt::format("the second expert is random, but a token uses {}.", c.experts_per_token));
    for (const int64_t count : c.expert_counts) in_range("the number of experts", count, kExpertsMax);
    int64_t mixed = 0;
    for (int64_t i = 0; i < c.layers; ++i) mixed += has_experts(c, i);
    require(
        c.expert_interval == 0 || mixed > 0,
        fmt::format("one layer of {} has experts, and there are {} layers.", c.expert_interval, c.layers));
    require(c.expert_counts.size() <= static_cast<size_t>(mixed),
            fmt::format("there are {} numbers of experts for {} layers that have experts.",
                        c.expert_counts.size(), mixed));
  }
  require(c.heads % c.kv_heads == 0,
          fmt::format("{} key/value heads do not divide {} heads.", c.kv_heads, c.heads));
  require(c.heads * c.head_size <= kWidthMax,
          fmt::format("{} heads of size {} exceed {} columns.", c.heads, c.head_size, kWidthMax));
  require(c.epsilon > 0 && c.epsilon < 1, fmt::format("epsilon {} is not between 0 and 1.", c.epsilon));
  if (c.rope_theta != 0) {
    require(c.head_size % 2 == 0, fmt::format("head size {} is odd, rotation needs pairs.", c.head_size));
    require(c.rope_theta > 0, fmt::format("rope_theta {} is not positive.", c.rope_theta));
    require(c.sliding_rope_theta >= 0,
            fmt::format("the sliding layers' rope_theta {} is not positive.", c.sliding_rope_theta));
    for (const RopeScaling* scaling : {&c.rope_scaling, &c.sliding_rope_scaling})
      if (const std::string wrong = wrong_scaling(*scaling, c.head_size); !wrong.empty())
        require(false, wrong);
  }
  const bool slides = std::ranges::count(c.layer_types, LayerType::sliding) > 0;
  require(!slides || c.window > 0, "layers slide, and no window says how far they see.");
  for (const double factor : {c.embedding_scale, c.residual_scale, c.attention_scale, c.logits_divisor,
                              c.attention_cap, c.logits_cap})
    require(std::isfinite(factor) && factor >= 0, fmt::format("a factor {} is not positive.", factor));
  // 2^45 parameters have 2^49 bytes of training state: no product with layers or micro-batches overflows 64
  // bits.
  require(parameters_in_total(c) < std::ldexp(1, 45), "the model has more than 2^45 parameters.");
}

}  // namespace sluice
