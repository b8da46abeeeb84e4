#include "models/families/rotary.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/families/decoder.h"

namespace sluice {

void read_rotary_sizes(const ConfigReader& file, ModelConfig& c) {
  c.context = file.integer("max_position_embeddings", kContextMax);
  c.width = file.integer("hidden_size", kWidthMax);
  c.layers = file.integer("num_hidden_layers", kLayersMax);
  c.heads = file.integer("num_attention_heads", kHeadsMax);
  c.kv_heads = file.integer_or("num_key_value_heads", kHeadsMax, c.heads);
  if (!file.has("head_dim") && c.width % c.heads != 0)
    file.complain(fmt::format("{} heads do not divide the width {}.", c.heads, c.width), "Correct the file.");
  c.head_size = file.integer_or("head_dim", kWidthMax, c.width / c.heads);
  c.ffn = file.integer("intermediate_size", kFfnMax);
  c.epsilon = file.number_or("rms_norm_eps", 1e-6);
  c.tied = file.flag_or("tie_word_embeddings", false);
  file.require_text("hidden_act", {"silu"});
}

void write_rotary_sizes(const ModelConfig& c, nlohmann::ordered_json& file) {
  file["max_position_embeddings"] = c.context;
  file["hidden_size"] = c.width;
  file["num_hidden_layers"] = c.layers;
  file["num_attention_heads"] = c.heads;
  file["num_key_value_heads"] = c.kv_heads;
  file["head_dim"] = c.head_size;
  file["intermediate_size"] = c.ffn;
  file["hidden_act"] = "silu";
  file["rms_norm_eps"] = c.epsilon;
}

ModelConfig rotary_config(const RotarySizes& sizes) {
  ModelConfig c{.width = sizes.width, .layers = sizes.layers};
  c.heads = sizes.heads;
  c.kv_heads = sizes.kv_heads;
  c.head_size = sizes.width / sizes.heads;
  c.ffn = sizes.ffn;
  return c;
}

bool is_rotary_buffer(std::string_view tensor) { return tensor.ends_with("rotary_emb.inv_freq"); }

namespace {

std::vector<Parameter> layer_parameters(const ModelConfig& c, const RotaryBiases& biases,
                                        const std::string& prefix) {
  const double residual = residual_deviation(c.layers);
  const int64_t q = c.heads * c.head_size, kv = c.kv_heads * c.head_size;
  std::vector<Parameter> all;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool biased, double deviation) {
    all.push_back(matrix(prefix + name + ".weight", out, in, deviation));
    if (biased) all.push_back(bias(prefix + name + ".bias", out));
  };
  all.push_back(norm_weight(prefix + "input_layernorm.weight", c.width));
  linear("self_attn.q_proj", q, c.width, biases.qkv, 0.02);
  linear("self_attn.k_proj", kv, c.width, biases.qkv, 0.02);
  linear("self_attn.v_proj", kv, c.width, biases.qkv, 0.02);
  linear("self_attn.o_proj", c.width, q, biases.output, residual);
  all.push_back(norm_weight(prefix + "post_attention_layernorm.weight", c.width));
  linear("mlp.gate_proj", c.ffn, c.width, biases.mlp, 0.02);
  linear("mlp.up_proj", c.ffn, c.width, biases.mlp, 0.02);
  linear("mlp.down_proj", c.width, c.ffn, biases.mlp, residual);
  return all;
}

SegmentBuilder::Tensor layer(const ModelConfig& c, int64_t sequence, SegmentBuilder& b,
                             SegmentBuilder::Tensor x) {
  const OpAttributes heads{.sequence = sequence,
                           .heads = c.heads,
                           .kv_heads = c.kv_heads,
                           .head_size = c.head_size,
                           .rope_theta = c.rope_theta,
                           .rope_scaling = c.rope_scaling};
  OpAttributes kv_heads = heads;
  kv_heads.heads = c.kv_heads;
  const auto h = b.norm(OpKind::rms_norm, "input_layernorm", x, c.epsilon);
  const auto q = b.op(OpKind::rope, "q", {b.linear("self_attn.q_proj", h, true)}, {}, heads);
  const auto k = b.op(OpKind::rope, "k", {b.linear("self_attn.k_proj", h, true)}, {}, kv_heads);
  const auto v = b.linear("self_attn.v_proj", h, true);
  const auto attention = b.op(OpKind::attention, "attn", {q, k, v}, {}, heads);
  const auto middle = b.op(OpKind::add, "middle", {x, b.linear("self_attn.o_proj", attention, true)});
  const auto g = b.norm(OpKind::rms_norm, "post_attention_layernorm", middle, c.epsilon);
  const auto gate = b.linear("mlp.gate_proj", g, true);
  const auto swiglu = b.op(OpKind::swiglu, "swiglu", {gate, b.linear("mlp.up_proj", g, true)});
  return b.op(OpKind::add, "y", {middle, b.linear("mlp.down_proj", swiglu, true)});
}

}  // namespace

void build_rotary(const ModelConfig& c, const RotaryBiases& biases, Model& model) {
  Decoder decoder{.embedding = "model.embed_tokens", .layers = "model.layers", .norm = "model.norm"};
  decoder.parameters = [&](const std::string& prefix) { return layer_parameters(c, biases, prefix); };
  decoder.layer = [&](SegmentBuilder& b, SegmentBuilder::Tensor x) { return layer(c, model.sequence, b, x); };
  build_decoder(c, decoder, model);
}

}  // namespace sluice
