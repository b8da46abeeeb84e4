#include "models/families/family.h"

#include <fmt/format.h>

#include <array>

#include "models/families/config_reader.h"

namespace sluice {

// The registry, in the order in which help and messages list it.
extern const Family kGpt2, kLlama;
std::span<const Family* const> families() {
  static constexpr std::array kFamilies = {&kGpt2, &kLlama};
  return kFamilies;
}

std::span<const std::string_view> planned_families() {
  static constexpr std::array<std::string_view, 2> kPlanned = {"mixtral", "bert"};
  return kPlanned;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family* family : families()) names.push_back(family->name);
  return names;
}

const Family* find_family(const std::string& name) {
  for (const Family* family : families())
    if (name == family->name) return family;
  return nullptr;
}

std::span<const SizeKey> common_size_keys() {
  static constexpr SizeKey kKeys[] = {
      {"layers", &ModelConfig::layers, kLayersMax, "transformer layers"},
      {"width", &ModelConfig::width, kWidthMax, "columns of the residual stream"},
      {"heads", &ModelConfig::heads, kHeadsMax, "attention heads"},
      {"ffn", &ModelConfig::ffn, kFfnMax, "columns inside the feed-forward part; follows a new width"},
      {"vocab", &ModelConfig::vocabulary, kVocabularyMax, "tokens in the vocabulary"},
      {"context", &ModelConfig::context, kContextMax, "longest sequence, in tokens"},
      {"tied", &ModelConfig::tied, 0, "whether the head's weight is the token embedding"}};
  return kKeys;
}

std::vector<SizeKey> size_keys(const Family& family) {
  const auto common = common_size_keys();
  std::vector<SizeKey> keys(common.begin(), common.end());
  keys.insert(keys.end(), family.keys.begin(), family.keys.end());
  return keys;
}

Model build_model(const ModelConfig& config, DType precision, int64_t micro_batch, int64_t sequence) {
  const Family* family = find_family(config.family);
  CHECK(family != nullptr, config.family);
  CHECK(micro_batch >= 1 && sequence >= 1, "a micro-batch has at least one token");
  if (sequence > config.context)
    throw Error(
        ExitCode::usage,
        fmt::format("--seq {} is longer than the model's context of {} tokens.", sequence, config.context),
        fmt::format("Use --seq {} or less.", config.context));
  if (micro_batch > INT32_MAX / sequence)
    throw Error(
        ExitCode::usage,
        fmt::format("A micro-batch of {} x {} tokens has 2^31 tokens or more.", micro_batch, sequence),
        "Use a smaller --micro-batch.");
  Model model{.family = config.family,
              .precision = precision,
              .micro_batch = micro_batch,
              .sequence = sequence,
              .vocabulary = config.vocabulary};
  family->build(config, model);
  check_model(model);
  return model;
}

}  // namespace sluice
