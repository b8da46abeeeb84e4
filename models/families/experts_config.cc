#include "models/families/experts_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice {

void read_experts(const ConfigReader& file, const char* experts, int64_t experts_per_token,
                  double router_loss, ModelConfig& c) {
  // transformers 5 writes one name for all families.
  c.experts = file.integer(file.has(experts) ? experts : "num_local_experts", kExpertsMax);
  c.experts_per_token = file.integer_or("num_experts_per_tok", kExpertsMax, experts_per_token);
  c.router_loss = file.number_or("router_aux_loss_coef", router_loss);
  c.has_router_loss = file.flag_or("output_router_logits", false);
}

void read_qwen_experts(const ConfigReader& file, int64_t expert_ffn, ModelConfig& c) {
  c.expert_ffn = file.integer_or("moe_intermediate_size", kFfnMax, expert_ffn);
  c.normalized_experts = file.flag_or("norm_topk_prob", false);
  const int64_t step = file.integer_or("decoder_sparse_step", kLayersMax, 1);
  std::vector<double> dense;
  if (file.has("mlp_only_layers")) dense = file.numbers("mlp_only_layers");
  for (int64_t i = 0; i < c.layers; ++i)
    if ((i + 1) % step != 0 || std::ranges::find(dense, static_cast<double>(i)) != dense.end())
      c.dense_layers.push_back(i);
}

void write_qwen_experts(const ModelConfig& c, nlohmann::ordered_json& file) {
  file["moe_intermediate_size"] = c.expert_ffn;
  file["norm_topk_prob"] = c.normalized_experts;
  file["decoder_sparse_step"] = 1;
  file["mlp_only_layers"] = c.dense_layers;
}

void write_experts(const ModelConfig& c, const char* experts, nlohmann::ordered_json& file) {
  file[experts] = c.experts;
  file["num_experts_per_tok"] = c.experts_per_token;
  file["router_aux_loss_coef"] = c.router_loss;
  file["output_router_logits"] = c.has_router_loss;
}

}  // namespace sluice
