// Llama: RMS norm, rotary positions, grouped-query attention, SwiGLU. Weights are [out, in]. Touvron et al.,
// "LLaMA" (2023) and "Llama 2" (2023); tensor names as in Hugging Face checkpoints.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/config_reader.h"
#include "models/family.h"
#include "models/segment_builder.h"

namespace sluice {
namespace {

void read(const ConfigReader& file, ModelConfig& c) {
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
  c.attention_bias = file.flag_or("attention_bias", false);
  c.mlp_bias = file.flag_or("mlp_bias", false);
  file.rope(c.rope_theta, c.rope_scaling);
  file.require_text("hidden_act", {"silu"});
  file.require_number("partial_rotary_factor", 1);
  // Keys of relatives that keep Llama's tensor names and compute something else.
  for (const char* scale : {"embedding_multiplier", "residual_multiplier", "attention_multiplier",
                            "logits_scaling", "logit_scale"})
    file.require_number(scale, 1);
  for (const char* key : {"sliding_window", "clip_qkv", "attn_logit_softcapping", "final_logit_softcapping",
                          "num_local_experts", "num_experts"})
    file.reject_present(key);
  for (const char* flag : {"use_qk_norm", "qk_norm", "parallel_attn"}) file.reject_flag(flag);
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  file["max_position_embeddings"] = c.context;
  file["hidden_size"] = c.width;
  file["num_hidden_layers"] = c.layers;
  file["num_attention_heads"] = c.heads;
  file["num_key_value_heads"] = c.kv_heads;
  file["head_dim"] = c.head_size;
  file["intermediate_size"] = c.ffn;
  file["hidden_act"] = "silu";
  file["rms_norm_eps"] = c.epsilon;
  file["attention_bias"] = c.attention_bias;
  file["mlp_bias"] = c.mlp_bias;
  file["attention_dropout"] = 0.0;
  write_rope(c, file);
}

std::vector<Parameter> block_parameters(const ModelConfig& c, int64_t i) {
  const std::string prefix = fmt::format("model.layers.{}.", i);
  const double residual = residual_deviation(c.layers);
  const int64_t q = c.heads * c.head_size, kv = c.kv_heads * c.head_size;
  std::vector<Parameter> all;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool biased, double deviation) {
    all.push_back(matrix(prefix + name + ".weight", out, in, deviation));
    if (biased) all.push_back(bias(prefix + name + ".bias", out));
  };
  all.push_back(norm_weight(prefix + "input_layernorm.weight", c.width));
  linear("self_attn.q_proj", q, c.width, c.attention_bias, 0.02);
  linear("self_attn.k_proj", kv, c.width, c.attention_bias, 0.02);
  linear("self_attn.v_proj", kv, c.width, c.attention_bias, 0.02);
  linear("self_attn.o_proj", c.width, q, c.attention_bias, residual);
  all.push_back(norm_weight(prefix + "post_attention_layernorm.weight", c.width));
  linear("mlp.gate_proj", c.ffn, c.width, c.mlp_bias, 0.02);
  linear("mlp.up_proj", c.ffn, c.width, c.mlp_bias, 0.02);
  linear("mlp.down_proj", c.width, c.ffn, c.mlp_bias, residual);
  return all;
}

Segment embedding_segment(const Model& model, uint32_t group) {
  SegmentBuilder b(model, "embedding");
  b.bind(model.groups[group], "model.");
  const auto tokens = b.input_tokens("tokens");
  b.output(b.op(OpKind::embedding, "x", {tokens}, {b.weight("embed_tokens.weight")}));
  return b.take();
}

Segment block_segment(const ModelConfig& c, const Model& model, uint32_t group) {
  SegmentBuilder b(model, "block");
  b.bind(model.groups[group], "model.layers.0.");
  const OpAttributes norm{.epsilon = c.epsilon};
  OpAttributes heads{.sequence = model.sequence,
                     .heads = c.heads,
                     .kv_heads = c.kv_heads,
                     .head_size = c.head_size,
                     .rope_theta = c.rope_theta,
                     .rope_scaling = c.rope_scaling};
  OpAttributes kv_heads = heads;
  kv_heads.heads = c.kv_heads;
  const auto x = b.input("x", c.width);
  const auto h = b.op(OpKind::rms_norm, "input_layernorm", {x}, {b.weight("input_layernorm.weight")}, norm);
  const auto q = b.op(OpKind::rope, "q", {b.linear("self_attn.q_proj", h, true)}, {}, heads);
  const auto k = b.op(OpKind::rope, "k", {b.linear("self_attn.k_proj", h, true)}, {}, kv_heads);
  const auto v = b.linear("self_attn.v_proj", h, true);
  const auto attention = b.op(OpKind::attention, "attn", {q, k, v}, {}, heads);
  const auto middle = b.op(OpKind::add, "middle", {x, b.linear("self_attn.o_proj", attention, true)});
  const auto g = b.op(OpKind::rms_norm, "post_attention_layernorm", {middle},
                      {b.weight("post_attention_layernorm.weight")}, norm);
  const auto gate = b.linear("mlp.gate_proj", g, true);
  const auto swiglu = b.op(OpKind::swiglu, "swiglu", {gate, b.linear("mlp.up_proj", g, true)});
  b.output(b.op(OpKind::add, "y", {middle, b.linear("mlp.down_proj", swiglu, true)}));
  return b.take();
}

Segment head_segment(const ModelConfig& c, const Model& model, uint32_t norm, uint32_t head) {
  SegmentBuilder b(model, "head");
  b.bind(model.groups[norm], "model.");
  b.bind(model.groups[head], c.tied ? "model." : "");
  const auto x = b.input("x", c.width);
  const auto labels = b.input_tokens("labels");
  const auto y = b.op(OpKind::rms_norm, "norm", {x}, {b.weight("norm.weight")}, {.epsilon = c.epsilon});
  b.op(OpKind::linear_cross_entropy, "loss", {y, labels},
       {b.weight(c.tied ? "embed_tokens.weight" : "lm_head.weight")});
  return b.take();
}

void build(const ModelConfig& c, Model& model) {
  const uint32_t table =
      add_group(model, "model.embed_tokens", {matrix("model.embed_tokens.weight", c.vocabulary, c.width)});
  const uint32_t tokens = add_token_input(model, "tokens", ActivationSource::tokens);
  const uint32_t labels = add_token_input(model, "labels", ActivationSource::labels);
  uint32_t x = add_activation(model, "embedding", c.width);
  add_layer(model, "embedding", embedding_segment(model, table), {{}, {table}, {tokens}, {x}});
  x = add_blocks(
      model, x, {.layers = c.layers, .width = c.width, .prefix = "model.layers"},
      [&](int64_t i) { return block_parameters(c, i); },
      [&](uint32_t group) { return block_segment(c, model, group); });
  const uint32_t norm = add_group(model, "model.norm", {norm_weight("model.norm.weight", c.width)});
  const uint32_t head =
      c.tied ? table : add_group(model, "lm_head", {matrix("lm_head.weight", c.vocabulary, c.width)});
  add_layer(model, "head", head_segment(c, model, norm, head), {{}, {norm, head}, {x, labels}, {}});
}

}  // namespace

const Family kLlama = {"llama", "LlamaForCausalLM", read, write, build};

}  // namespace sluice
