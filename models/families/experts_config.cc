#include "models/families/experts_config.h"

#include <nlohmann/json.hpp>

namespace sluice {

void read_experts(const ConfigReader& file, const char* experts, int64_t experts_per_token,
                  double router_loss, ModelConfig& c) {
  c.experts = file.integer(experts, kExpertsMax);
  c.experts_per_token = file.integer_or("num_experts_per_tok", kExpertsMax, experts_per_token);
  c.router_loss = file.number_or("router_aux_loss_coef", router_loss);
  c.has_router_loss = file.flag_or("output_router_logits", false);
}

void write_experts(const ModelConfig& c, const char* experts, nlohmann::ordered_json& file) {
  file[experts] = c.experts;
  file["num_experts_per_tok"] = c.experts_per_token;
  file["router_aux_loss_coef"] = c.router_loss;
  file["output_router_logits"] = c.has_router_loss;
}

}  // namespace sluice
