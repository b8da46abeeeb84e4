// GPT-2 with the classic forms of mixtures of experts. A token uses one expert, as in Switch (Fedus et al.
// 2021, arXiv:2101.03961), two, as in GShard and GLaM (Lepikhin et al. 2020, arXiv:2006.16668), or more.
// Routers may have the noise of Shazeer et al. 2017 (arXiv:1701.06538), eq. 4. Residual experts, and
// different numbers of experts by layer, are DeepSpeed-MoE's (Rajbhandari et al. 2022, arXiv:2201.05596).
// transformers has no such model: tensors have GPT-2's names where GPT-2 has the tensor, and config.json has
// the keys of other families where these have such a key.
#include <algorithm>

#include "models/families/family.h"
#include "models/families/gpt2_form.h"
#include "models/families/gpt2_moe_config.h"

namespace sluice {
namespace {

using Tensor = SegmentBuilder::Tensor;

std::vector<Parameter> layer_parameters(const ModelConfig& c, const std::string& prefix, int64_t experts) {
  std::vector<Parameter> parameters = gpt2_parameters(c, prefix);
  if (experts == 0 || c.residual_experts) add_gpt2_mlp(c, prefix + "mlp.", c.ffn, parameters);
  if (experts == 0) return parameters;
  parameters.push_back(matrix(prefix + "mlp.router.weight", experts, c.width));
  if (c.noisy_router) parameters.push_back(matrix(prefix + "mlp.router_noise.weight", experts, c.width));
  if (!c.residual_experts) return parameters;
  parameters.push_back(matrix(prefix + "mlp.coefficient.weight", 2, c.width));
  parameters.push_back(bias(prefix + "mlp.coefficient.bias", 2));
  return parameters;
}

Mixture::Routed route(const ModelConfig& c, SegmentBuilder& b, Tensor x, Routing routing) {
  const auto [middle, rows] = gpt2_attended(c, b, x);
  const auto logits_of = [&](const std::string& name) {
    std::vector<SegmentBuilder::Weight> parameters = {b.weight(name + ".weight")};
    if (b.has(name + ".bias")) parameters.push_back(b.weight(name + ".bias"));
    return b.op(OpKind::router, name, {rows}, std::move(parameters));
  };
  routing.experts = b.shape("mlp.router.weight")[0];
  const OpAttributes attributes{.routing = b.routing(routing)};
  Tensor logits = logits_of("mlp.router");
  if (const auto draws = c.noisy_router ? b.draws() : std::nullopt)
    logits = b.op(OpKind::add_noise, "mlp.router.noisy", {logits, logits_of("mlp.router_noise"), *draws});
  std::vector<Tensor> inputs = {logits};
  if (attributes.routing.random_second) inputs.push_back(*b.draws());
  const Tensor weights = b.op(OpKind::route, "mlp.router.weights", std::move(inputs), {}, attributes);
  Mixture::Routed routed{middle, rows, {{weights, weights + 1}}, logits, {}};
  if (c.residual_experts) routed.beside = {gpt2_mlp(b, "mlp", rows), logits_of("mlp.coefficient")};
  return routed;
}

// A row's weight multiplies the input of the last product, and that product's bias.
Tensor expert(SegmentBuilder& b, Tensor rows, Tensor weights, Tensor of_rows, const Routing& routing) {
  OpAttributes attributes{.gelu_gate = true, .ungated = true, .routing = routing};
  attributes.routing.weighted = true;
  const Tensor wide = b.expert_linear("c_fc", of_rows, rows, false, routing);
  const Tensor h = b.op(OpKind::expert_swiglu, "act", {of_rows, wide, weights}, {}, attributes);
  return b.expert_linear("c_proj", of_rows, h, false, routing, weights);
}

void build(const ModelConfig& c, Model& model) {
  Decoder decoder = gpt2_decoder();
  decoder.parameters = [&](const std::string& prefix, int64_t experts) {
    return layer_parameters(c, prefix, experts);
  };
  decoder.layer = [&](SegmentBuilder& b, Tensor x, LayerType) {
    const auto [middle, rows] = gpt2_attended(c, b, x);
    return b.op(OpKind::add, "y", {middle, gpt2_mlp(b, "mlp", rows)});
  };
  // The weight of a single expert is its probability; the weights of several sum to 1. The balance loss
  // counts the first choice of each token only.
  Routing routing{.experts = c.experts, .chosen = c.experts_per_token, .normalized = c.experts_per_token > 1};
  routing.capacity_factor = c.capacity_factor;
  routing.least_capacity = c.least_capacity;
  routing.random_second = c.random_second;
  routing.counted = 1;
  routing.balance_loss = c.has_router_loss ? c.router_loss : 0;
  // The routers' balance loss is a sum over layers, and the z-loss a mean over layers.
  int64_t layers = 0;
  for (int64_t i = 0; i < c.layers; ++i) layers += has_experts(c, i);
  routing.z_loss = c.router_z_loss / static_cast<double>(std::max<int64_t>(layers, 1));
  decoder.mixture.experts = {{.routing = routing,
                              .name = "mlp.experts",
                              .router = "mlp.router",
                              .further_routers = {"mlp.router_noise", "mlp.coefficient"},
                              .parameters =
                                  [&](const std::string& prefix) {
                                    std::vector<Parameter> parameters;
                                    add_gpt2_mlp(c, prefix, c.expert_ffn, parameters);
                                    return parameters;
                                  },
                              .ops = expert}};
  decoder.mixture.loss_by_layer = true;
  decoder.mixture.draws = c.noisy_router || c.random_second;
  decoder.mixture.route = [&](SegmentBuilder& b, Tensor x, LayerType) { return route(c, b, x, routing); };
  build_decoder(c, decoder, model);
}

std::vector<Preset> presets() {
  const ModelConfig one = gpt2_moe_config(1);
  ModelConfig two = gpt2_moe_config(2);
  two.random_second = true;
  two.capacity_factor = 2;
  return {{"gpt2-moe", one, 1'909'814'016}, {"gpt2-moe-top2", two, 1'909'814'016}};
}

}  // namespace

extern const Family kGpt2Moe = {.name = "gpt2-moe",
                                .title = "GPT-2 MoE",
                                .architecture = "Gpt2MoeLMHeadModel",
                                .presets = presets,
                                .plain_preset = "gpt2-moe",
                                .keys = kGpt2MoeKeys,
                                .ffn = gpt2_ffn,
                                .read = read_gpt2_moe,
                                .write = write_gpt2_moe,
                                .matrices_in_out = true,
                                .tensor_prefix = "transformer.",
                                .is_buffer = is_gpt2_buffer,
                                .build = build};

}  // namespace sluice
