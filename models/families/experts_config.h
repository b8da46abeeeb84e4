// Keys of config.json that families with a mixture of experts share, and sizes for descriptions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "models/families/config_reader.h"
#include "models/families/family.h"
#include "models/families/rotary.h"

namespace sluice {

// Reads num_experts_per_tok, the number of experts (the key is `experts` or num_local_experts),
// router_aux_loss_coef, and output_router_logits, which says whether the routers' loss counts.
void read_experts(const ConfigReader& file, const char* experts, int64_t experts_per_token,
                  double router_loss, ModelConfig& config);
// Keys of Qwen: moe_intermediate_size and norm_topk_prob. Layer i has experts if i + 1 is a multiple of
// decoder_sparse_step and mlp_only_layers does not have i.
void read_qwen_experts(const ConfigReader& file, int64_t expert_ffn, ModelConfig& config);
void write_qwen_experts(const ModelConfig& config, nlohmann::ordered_json& file);
void write_experts(const ModelConfig& config, const char* experts, nlohmann::ordered_json& file);

// The tensors in which transformers 5 holds experts in memory and, on request, writes them.
inline constexpr Stacked kStackedExperts[] = {
    {"mlp.experts.gate_up_proj", "gate_proj.weight", "up_proj.weight"},
    {"mlp.experts.down_proj", "down_proj.weight"}};

inline constexpr SizeKey kTopKey = {"top", &ModelConfig::experts_per_token, kExpertsMax,
                                    "experts that a token uses"};
inline constexpr SizeKey kExpertFfnKey = {"expert_ffn", &ModelConfig::expert_ffn, kFfnMax,
                                          "columns inside an expert; follow a new width or ffn"};
inline constexpr SizeKey kRouterLossKey = {"router_loss", &ModelConfig::has_router_loss, 0,
                                           "whether the routers' loss counts"};
inline constexpr auto kExpertSizeKeys = with_keys(
    std::to_array(kRotarySizeKeys), {{"experts", &ModelConfig::experts, kExpertsMax, "experts of a layer"},
                                     kTopKey,
                                     kExpertFfnKey,
                                     kRouterLossKey});

}  // namespace sluice
