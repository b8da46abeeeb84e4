#include "models/family.h"

#include <fmt/format.h>

#include <array>

namespace sluice {

std::span<const Family* const> families() {
  static constexpr std::array<const Family*, 2> kFamilies = {&kGpt2, &kLlama};
  return kFamilies;
}

const Family* find_family(const std::string& name) {
  for (const Family* family : families())
    if (name == family->name) return family;
  return nullptr;
}

Model build_model(const ModelConfig& config, DType precision, int64_t micro_batch, int64_t sequence) {
  const Family* family = find_family(config.family);
  CHECK(family != nullptr, config.family);
  CHECK(micro_batch >= 1 && sequence >= 1, "a slice has at least one token");
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
