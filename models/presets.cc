// Models by name, and descriptions that change a preset's sizes. Shapes as published in the models'
// config.json files.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "engine/suggest.h"
#include "models/config.h"
#include "models/config_reader.h"

namespace sluice {
namespace {

ModelConfig gpt2(int64_t layers, int64_t width, int64_t heads) {
  ModelConfig c{.family = "gpt2", .vocabulary = 50257, .context = 1024, .width = width, .layers = layers};
  c.heads = c.kv_heads = heads;
  c.head_size = width / heads;
  c.ffn = 4 * width;
  c.tied = c.attention_bias = c.mlp_bias = true;
  c.special_tokens = {{"bos_token_id", "50256"}, {"eos_token_id", "50256"}};
  return c;
}

struct LlamaSizes {
  int64_t layers, width, heads, kv_heads, ffn;
};

ModelConfig llama_shape(const LlamaSizes& sizes) {
  ModelConfig c{.family = "llama", .width = sizes.width, .layers = sizes.layers};
  c.heads = sizes.heads;
  c.kv_heads = sizes.kv_heads;
  c.head_size = sizes.width / sizes.heads;
  c.ffn = sizes.ffn;
  return c;
}

ModelConfig llama2(const LlamaSizes& sizes) {
  ModelConfig c = llama_shape(sizes);
  c.vocabulary = 32000;
  c.context = 4096;
  c.rope_theta = 10000;
  c.special_tokens = {{"bos_token_id", "1"}, {"eos_token_id", "2"}};
  return c;
}

ModelConfig llama3(const LlamaSizes& sizes) {
  ModelConfig c = llama_shape(sizes);
  c.vocabulary = 128256;
  c.context = 8192;
  c.rope_theta = 500000;
  c.special_tokens = {{"bos_token_id", "128000"}, {"eos_token_id", "128001"}};
  return c;
}

ModelConfig llama32(const LlamaSizes& sizes) {
  ModelConfig c = llama3(sizes);
  c.context = 131072;
  c.tied = true;
  c.rope_scaling = {.factor = 32, .low = 1, .high = 4, .original_context = 8192};
  return c;
}

struct Preset {
  std::string name;
  ModelConfig config;
};

std::vector<Preset> presets() {
  return {
      {"gpt2", gpt2(12, 768, 12)},
      {"gpt2-medium", gpt2(24, 1024, 16)},
      {"gpt2-large", gpt2(36, 1280, 20)},
      {"gpt2-xl", gpt2(48, 1600, 25)},
      {"llama-1b", llama32({16, 2048, 32, 8, 8192})},    // Llama 3.2 1B
      {"llama-3b", llama32({28, 3072, 24, 8, 8192})},    // Llama 3.2 3B
      {"llama-7b", llama2({32, 4096, 32, 32, 11008})},   // Llama 2 7B
      {"llama-8b", llama3({32, 4096, 32, 8, 14336})},    // Llama 3 8B
      {"llama-13b", llama2({40, 5120, 40, 40, 13824})},  // Llama 2 13B
      {"llama-70b", llama3({80, 8192, 64, 8, 28672})},   // Llama 3 70B
  };
}

[[noreturn]] void reject(const std::string& what, const std::string& remedy) {
  throw Error(ExitCode::usage, what, remedy);
}

int64_t parse_size(const std::string& where, const std::string& key, const std::string& value, int64_t most) {
  int64_t size = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, size);
  if (error != std::errc{} || stop != end || size < 1 || size > most)
    reject(fmt::format("{}: {}={} is not an integer from 1 to {}.", where, key, printable(value), most),
           "Give a plain decimal number.");
  return size;
}

bool parse_flag(const std::string& where, const std::string& key, const std::string& value) {
  if (value != "0" && value != "1" && value != "true" && value != "false")
    reject(fmt::format("{}: {}={} is neither true nor false.", where, key, printable(value)),
           fmt::format("Give {}=true or {}=false.", key, key));
  return value == "1" || value == "true";
}

struct SizeKey {
  std::string name;
  int64_t ModelConfig::*size;
  int64_t most;
  bool llama_only = false;
};

const std::vector<SizeKey>& size_keys() {
  static const std::vector<SizeKey> kKeys = {
      {"layers", &ModelConfig::layers, kLayersMax},
      {"width", &ModelConfig::width, kWidthMax},
      {"heads", &ModelConfig::heads, kHeadsMax},
      {"ffn", &ModelConfig::ffn, kFfnMax},
      {"vocab", &ModelConfig::vocabulary, kVocabularyMax},
      {"context", &ModelConfig::context, kContextMax},
      {"kv_heads", &ModelConfig::kv_heads, kHeadsMax, true},
      {"head_size", &ModelConfig::head_size, kWidthMax, true},
  };
  return kKeys;
}

// Sets one value; false when the family has no such key.
bool set_value(ModelConfig& c, const std::string& where, const std::string& key, const std::string& value) {
  const bool llama = c.family == "llama";
  for (const SizeKey& known : size_keys())
    if (key == known.name && (llama || !known.llama_only)) {
      c.*known.size = parse_size(where, key, value, known.most);
      return true;
    }
  if (key == "tied") {
    c.tied = parse_flag(where, key, value);
    return true;
  }
  if (llama && key == "rope_theta") {
    c.rope_theta = static_cast<double>(parse_size(where, key, value, int64_t{1} << 40));
    return true;
  }
  return false;
}

std::vector<std::string> known_keys(const std::string& family) {
  std::vector<std::string> keys = {"tied"};
  for (const SizeKey& known : size_keys())
    if (family == "llama" || !known.llama_only) keys.push_back(known.name);
  if (family == "llama") keys.push_back("rope_theta");
  return keys;
}

// Reads "key=value,key=value" into the config; returns the keys that were given.
std::set<std::string> set_values(ModelConfig& c, const std::string& where, const std::string& description) {
  std::set<std::string> given;
  for (size_t begin = 0; begin <= description.size();) {
    const size_t end = std::min(description.find(',', begin), description.size());
    const std::string item = description.substr(begin, end - begin);
    const size_t equals = item.find('=');
    if (equals == std::string::npos)
      reject(fmt::format("{}: \"{}\" is not of the form key=value.", where, printable(item)),
             "Write for example layers=6,width=384,heads=6.");
    const std::string key = item.substr(0, equals);
    if (!set_value(c, where, key, item.substr(equals + 1)))
      reject(fmt::format("{}: \"{}\" is no size of a {} model.", where, printable(key), c.family),
             suggestion(key, known_keys(c.family)));
    if (!given.insert(key).second) reject(fmt::format("{}: {} is given twice.", where, key), "Remove one.");
    begin = end + 1;
  }
  return given;
}

// What was not given follows from what was.
void derive(ModelConfig& c, const ModelConfig& preset, const std::string& where,
            const std::set<std::string>& given) {
  const bool reshaped = given.contains("width") || given.contains("heads");
  if (reshaped && !given.contains("head_size")) {
    if (c.width % c.heads != 0)
      reject(fmt::format("{}: {} heads do not divide the width {}.", where, c.heads, c.width),
             "Give a width that is a multiple of the heads.");
    c.head_size = c.width / c.heads;
  }
  if (!given.contains("kv_heads") && preset.kv_heads == preset.heads) c.kv_heads = c.heads;
  if (given.contains("width") && !given.contains("ffn"))
    c.ffn = c.family == "gpt2" ? 4 * c.width : llama_ffn(c.width);
  if (given.contains("vocab")) c.special_tokens = {{"bos_token_id", "null"}, {"eos_token_id", "null"}};
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

ModelConfig config_from_name(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  // The family's name alone, before sizes: its first preset without peculiarities.
  const std::string wanted = name == "llama" && colon != std::string::npos ? "llama-7b" : name;
  const std::vector<Preset> known = presets();
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const Preset& p) { return p.name == wanted; });
  if (found == known.end())
    reject(fmt::format("There is no model preset \"{}\".", printable(name)),
           suggestion(name, preset_names()));
  ModelConfig config = found->config;
  const std::string where = "--model " + printable(name);
  if (colon != std::string::npos) {
    const std::set<std::string> given = set_values(config, where, text.substr(colon + 1));
    derive(config, found->config, where, given);
  }
  check_config(config, where, ExitCode::usage);
  return config;
}

}  // namespace sluice
