// GPT-2 with experts as numbers; see gpt2_moe.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "models/families/config_reader.h"
#include "models/families/experts_config.h"

namespace sluice {

// GPT-2's sizes with 64 experts in every other layer, as Switch, GShard and DeepSpeed-MoE have them, and
// Switch's factors. A token uses `top` experts.
ModelConfig gpt2_moe_config(int64_t top);
void read_gpt2_moe(const ConfigReader& file, ModelConfig& config);
void write_gpt2_moe(const ModelConfig& config, nlohmann::ordered_json& file);

inline constexpr SizeKey kGpt2MoeKeys[] = {
    {"experts", &ModelConfig::expert_counts, kExpertsMax,
     "experts of a layer; 8/16: of layers in the first half, and in the second"},
    kTopKey,
    kExpertFfnKey,
    {"capacity", &ModelConfig::capacity_factor, 0,
     "capacity factor: an expert takes at most so many times its even share of a sequence's choices", "", "",
     true},
    {"every", &ModelConfig::expert_interval, kLayersMax, "one layer of so many has experts"},
    {"second", &ModelConfig::random_second, 0,
     "whether the second of two experts is used with a probability of twice its weight", "random", "always"},
    {"noise", &ModelConfig::noisy_router, 0, "whether the routers' logits get noise", "yes", "no"},
    {"residual", &ModelConfig::residual_experts, 0, "whether a feed-forward part stands beside the experts",
     "yes", "no"},
    kRouterLossKey};

}  // namespace sluice
