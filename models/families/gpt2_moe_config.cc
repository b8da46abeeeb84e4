// GPT-2 with experts as numbers: sizes of descriptions, and config.json, with the keys of other families
// where these have such a key.
#include "models/families/gpt2_moe_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/families/gpt2_form.h"

namespace sluice {

ModelConfig gpt2_moe_config(int64_t top) {
  ModelConfig c = gpt2_config(12, 768, 12);
  c.experts = 64;
  c.experts_per_token = top;
  c.expert_ffn = c.ffn;
  c.expert_interval = 2;
  c.capacity_factor = 1.25;
  c.router_loss = 0.01;
  c.has_router_loss = true;
  place_experts(c);
  return c;
}

void read_gpt2_moe(const ConfigReader& file, ModelConfig& c) {
  read_gpt2(file, c);
  if (file.is_list("num_experts")) {
    c.expert_counts = file.integers("num_experts", kExpertsMax);
    c.experts = std::ranges::max(c.expert_counts);
  } else {
    c.experts = file.integer("num_experts", kExpertsMax);
  }
  c.experts_per_token = file.integer_or("num_experts_per_tok", kExpertsMax, 1);
  c.expert_ffn = file.integer_or("moe_intermediate_size", kFfnMax, c.ffn);
  c.expert_interval = file.integer_or("expert_interval", kLayersMax, 2);
  if (file.has("capacity_factor")) {
    c.capacity_factor = file.number("capacity_factor");
    if (c.capacity_factor <= 0)
      file.complain(fmt::format("capacity_factor is {}, not positive.", c.capacity_factor),
                    "Take the key out where experts have no capacity.");
  }
  c.least_capacity = file.integer_or("min_capacity", kContextMax, 4);
  c.random_second = file.flag_or("random_second_expert", false);
  c.noisy_router = file.flag_or("noisy_router", false);
  c.residual_experts = file.flag_or("residual_experts", false);
  c.router_loss = file.number_or("router_aux_loss_coef", 0.01);
  c.has_router_loss = file.flag_or("output_router_logits", true);
  place_experts(c);
}

void write_gpt2_moe(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_gpt2(c, file);
  if (c.expert_counts.empty())
    file["num_experts"] = c.experts;
  else
    file["num_experts"] = c.expert_counts;
  file["num_experts_per_tok"] = c.experts_per_token;
  file["moe_intermediate_size"] = c.expert_ffn;
  file["expert_interval"] = c.expert_interval;
  if (c.capacity_factor > 0) file["capacity_factor"] = c.capacity_factor;
  file["min_capacity"] = c.least_capacity;
  file["random_second_expert"] = c.random_second;
  file["noisy_router"] = c.noisy_router;
  file["residual_experts"] = c.residual_experts;
  file["router_aux_loss_coef"] = c.router_loss;
  file["output_router_logits"] = c.has_router_loss;
}

}  // namespace sluice
