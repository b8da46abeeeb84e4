// gpt-oss: sinks in attention, windows in every other layer, and experts with biases whose activations are
// clamped. OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025); shapes as published in the models'
// config.json files.
#include <nlohmann/json.hpp>

#include "models/families/experts_config.h"
#include "models/families/rotary.h"

namespace sluice {
namespace {

constexpr double kAlpha = 1.702, kLimit = 7;
constexpr RopeKeys kRope{
    .theta = 150000,
    .scaling = {.type = RopeType::yarn, .factor = 32, .original_context = 4096, .truncate = false}};

ModelConfig preset(int64_t layers, int64_t experts) {
  ModelConfig c = rotary_config({layers, 2880, 64, 8, 2880});
  c.vocabulary = 201088;
  c.context = 131072;
  c.head_size = 64;
  c.attention_bias = true;
  c.rope_theta = kRope.theta;
  c.rope_scaling = kRope.scaling;
  c.window = 128;
  c.layer_types = {LayerType::sliding, LayerType::full};
  c.experts = experts;
  c.experts_per_token = 4;
  c.expert_ffn = c.ffn;
  c.swiglu_limit = kLimit, c.swiglu_alpha = kAlpha;
  c.router_loss = 0.9;
  c.special_tokens = {{"eos_token_id", "200002"}, {"pad_token_id", "199999"}};
  return c;
}

int64_t ffn(int64_t width) { return width; }

std::vector<Preset> presets() {
  return {{"gpt-oss-20b", preset(24, 32), 20'914'757'184},
          {"gpt-oss-120b", preset(36, 128), 116'829'156'672}};
}

void read(const ConfigReader& file, ModelConfig& c) {
  read_rotary_sizes(file, {.kv_heads = 8, .head_size = 64, .epsilon = 1e-5}, c);
  c.attention_bias = file.flag_or("attention_bias", true);
  c.expert_ffn = c.ffn;
  c.swiglu_limit = file.number_or("swiglu_limit", kLimit);
  c.swiglu_alpha = file.number_or("swiglu_alpha", kAlpha);
  if (!(c.swiglu_limit > 0)) file.complain("swiglu_limit is not positive.", "Correct the file.");
  if (!(c.swiglu_alpha > 0)) file.complain("swiglu_alpha is not positive.", "Correct the file.");
  read_experts(file, "num_local_experts", 4, 0.001, c);
  read_rope(file, kRope, c);
  c.window = file.integer_or("sliding_window", kContextMax, 128);
  read_layer_types(file, {LayerType::sliding, LayerType::full}, c);
  file.require_text("hidden_act", {"silu"});
  reject_foreign_keys(file, {"sliding_window", "layer_types", "num_local_experts"});
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  write_rotary_sizes(c, file);
  file["attention_bias"] = c.attention_bias;
  file["intermediate_size"] = c.expert_ffn;
  file["swiglu_limit"] = c.swiglu_limit;
  file["swiglu_alpha"] = c.swiglu_alpha;
  write_experts(c, "num_local_experts", file);
  file["sliding_window"] = c.window;
  write_layer_types(c, file);
  write_rope(c, kRope, file);
}

void build(const ModelConfig& c, Model& model) {
  build_rotary(c,
               {.qkv_bias = c.attention_bias,
                .output_bias = c.attention_bias,
                .sinks = true,
                .experts = {.router = "router",
                            .biased = true,
                            .in_out = true,
                            .scores = Routing::Scores::softmax_chosen}},
               model);
}

constexpr Stacked kStacked[] = {
    {"mlp.experts.gate_up_proj", "gate_proj.weight", "up_proj.weight", Stacked::Order::columns},
    {"mlp.experts.gate_up_proj_bias", "gate_proj.bias", "up_proj.bias", Stacked::Order::columns},
    {"mlp.experts.down_proj", "down_proj.weight"},
    {"mlp.experts.down_proj_bias", "down_proj.bias"}};

}  // namespace

extern const Family kGptOss = {.name = "gpt_oss",
                               .title = "gpt-oss",
                               .architecture = "GptOssForCausalLM",
                               .presets = presets,
                               .plain_preset = "gpt-oss-20b",
                               .keys = kExpertSizeKeys,
                               .ffn = ffn,
                               .read = read,
                               .write = write,
                               .experts = "mlp.experts",
                               .stacked = kStacked,
                               .stacks = true,
                               .mxfp4 = true,
                               .is_buffer = is_rotary_buffer,
                               .build = build};

}  // namespace sluice
