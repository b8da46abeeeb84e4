#include "models/families/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/families/config_reader.h"

namespace sluice {

// The registry, in the order in which help and messages list it.
extern const Family kGpt2, kLlama, kQwen2, kQwen3, kMistral, kGemma, kGemma2, kGemma3Text, kPhi3, kOlmo2,
    kOlmo3, kSmolLm3, kGranite, kMixtral, kQwen2Moe, kQwen3Moe, kOlmoe, kGptOss, kGpt2Moe;
std::span<const Family* const> families() {
  static constexpr std::array kFamilies = {&kGpt2,     &kLlama,   &kQwen2,      &kQwen3,   &kMistral,
                                           &kGemma,    &kGemma2,  &kGemma3Text, &kPhi3,    &kOlmo2,
                                           &kOlmo3,    &kSmolLm3, &kGranite,    &kMixtral, &kQwen2Moe,
                                           &kQwen3Moe, &kOlmoe,   &kGptOss,     &kGpt2Moe};
  return kFamilies;
}

std::span<const std::string_view> planned_families() {
  static constexpr std::array<std::string_view, 1> kPlanned = {"bert"};
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

namespace {

// `option`: the name under which users know the length.
void check_length(const ModelConfig& config, int64_t length, const char* option) {
  CHECK(length >= 1, "a sequence has at least one token");
  if (length > config.context && config.rope_theta == 0)
    throw Error(
        ExitCode::usage,
        fmt::format("{} {} is longer than the model's context of {} tokens, whose positions are learned.",
                    option, length, config.context),
        fmt::format("Use {} {} or less.", option, config.context));
}

// Throws unless 2^31 - 1 is enough for twice the choices of experts plus the experts (routing.h), and for a
// router's logits.
void check_choices(const ModelConfig& config, int64_t sequences, int64_t tokens, const char* remedy) {
  if (config.experts == 0) return;
  const int64_t most =
      std::min((INT32_MAX - 1 - config.experts) / 2 / config.experts_per_token, INT32_MAX / config.experts);
  if (sequences * tokens <= most) return;
  throw Error(
      ExitCode::usage,
      fmt::format(
          "{} x {} tokens at once, each with {} of {} experts, are too many: at most {} tokens are possible.",
          sequences, tokens, config.experts_per_token, config.experts, most),
      remedy);
}

Model built(const ModelConfig& config, Model model) {
  const Family* family = find_family(config.family);
  CHECK(family != nullptr, config.family);
  model.family = config.family;
  model.mesh = config.mesh;
  model.vocabulary = config.vocabulary;
  family->build(config, model);
  const bool generates = model.generates();
  if (generates || config.adapters.rank > 0)
    for (Group& group : model.groups) group.trainable = group.adapter && !generates;
  if (generates) {
    model.micro_batch = model.readings.front().sequences;
    model.sequence = model.readings.front().context;
    model.documents = true;
  }
  check_model(model);
  return model;
}

std::vector<Reading> readings_of(const GenerationSizes& sizes) {
  Reading decode{.name = "decode", .sequences = sizes.sequences, .context = sizes.context};
  Reading prefill = decode;
  prefill.name = "prefill";
  prefill.tokens = std::min(sizes.chunk, sizes.context);
  return {std::move(decode), std::move(prefill)};
}

// The context, in tokens, to which YaRN stretches positions; 0: there is no YaRN.
int64_t stretched_context(const ModelConfig& config) {
  const RopeScaling& s = config.rope_scaling;
  return s.type == RopeType::yarn ? static_cast<int64_t>(s.factor * s.original_context) : 0;
}

}  // namespace

std::optional<std::string> length_note(const ModelConfig& config, int64_t length, const char* option) {
  if (length <= config.context || config.rope_theta == 0) return std::nullopt;
  const std::string is_longer =
      fmt::format("{} {} is longer than the model's context of {} tokens: ", option, length, config.context);
  if (length <= stretched_context(config))
    return is_longer + fmt::format("the model's rope_scaling (yarn) stretches its positions to {} tokens.",
                                   stretched_context(config));
  if (config.rope_scaling.type == RopeType::dynamic)
    return is_longer + fmt::format(
                           "the model's rope_scaling (dynamic) stretches its positions to {} tokens, "
                           "in shorter sequences as well.",
                           length);
  return is_longer + "the model has not learned positions beyond it, and no rope_scaling stretches them.";
}

Model build_model(const ModelConfig& config, DType precision, int64_t micro_batch, int64_t sequence,
                  bool documents, const std::optional<GenerationSizes>& samples) {
  if (micro_batch > INT32_MAX / sequence)
    throw Error(
        ExitCode::usage,
        fmt::format("A micro-batch of {} x {} tokens has 2^31 tokens or more.", micro_batch, sequence),
        "Use a smaller --micro-batch.");
  check_length(config, sequence, "--seq");
  check_choices(config, micro_batch, sequence, "Use a smaller --micro-batch or --seq.");
  Model model{
      .precision = precision, .micro_batch = micro_batch, .sequence = sequence, .documents = documents};
  if (samples) model.readings = readings_of(*samples);
  return built(config, std::move(model));
}

Model build_generation_model(const ModelConfig& config, DType precision, int64_t sequences, int64_t context,
                             int64_t chunk) {
  if (sequences > INT32_MAX / context)
    throw Error(ExitCode::usage,
                fmt::format("{} sequences of {} tokens have 2^31 tokens or more.", sequences, context),
                "Use a smaller --batch or --max-context.");
  check_length(config, context, "--max-context");
  check_choices(config, sequences, std::min(chunk, context), "Use a smaller --batch or --prompt-chunk.");
  Model model{.precision = precision};
  model.readings = readings_of({sequences, context, chunk});
  return built(config, std::move(model));
}

}  // namespace sluice
