// GPT-2: learned positions, pre-norm blocks, packed q|k|v, GELU. Weights are [in, out]. Radford et al.,
// "Language Models are Unsupervised Multitask Learners" (2019); tensor names as in Hugging Face checkpoints
// without the prefix.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/config_reader.h"
#include "models/family.h"
#include "models/segment_builder.h"

namespace sluice {
namespace {

void read(const ConfigReader& file, ModelConfig& c) {
  c.context = file.integer("n_positions", kContextMax);
  c.width = file.integer("n_embd", kWidthMax);
  c.layers = file.integer("n_layer", kLayersMax);
  c.heads = c.kv_heads = file.integer("n_head", kHeadsMax);
  c.ffn = file.integer_or("n_inner", kFfnMax, 4 * c.width);
  c.epsilon = file.number_or("layer_norm_epsilon", 1e-5);
  c.tied = file.flag_or("tie_word_embeddings", true);
  c.attention_bias = c.mlp_bias = true;
  if (c.width % c.heads != 0)
    file.complain(fmt::format("{} heads do not divide the width {}.", c.heads, c.width), "Correct the file.");
  c.head_size = c.width / c.heads;
  if (file.integer_or("n_ctx", kContextMax, c.context) != c.context)
    file.complain("n_ctx and n_positions disagree.", "Remove one of them.");
  file.require_text("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  if (!file.flag_or("scale_attn_weights", true))
    file.complain("scale_attn_weights is false, which is not supported.", "Use a model without it.");
  file.reject_flag("scale_attn_by_inverse_layer_idx");
}

void write(const ModelConfig& c, nlohmann::ordered_json& file) {
  file["n_positions"] = file["n_ctx"] = c.context;
  file["n_embd"] = c.width;
  file["n_layer"] = c.layers;
  file["n_head"] = c.heads;
  file["n_inner"] = c.ffn;
  file["activation_function"] = "gelu_new";
  file["layer_norm_epsilon"] = c.epsilon;
  for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) file[dropout] = 0.0;
}

std::vector<Parameter> block_parameters(const ModelConfig& c, int64_t i) {
  const std::string prefix = fmt::format("h.{}.", i);
  const double residual = residual_deviation(c.layers);
  return {norm_weight(prefix + "ln_1.weight", c.width),
          bias(prefix + "ln_1.bias", c.width),
          matrix(prefix + "attn.c_attn.weight", c.width, 3 * c.width),
          bias(prefix + "attn.c_attn.bias", 3 * c.width),
          matrix(prefix + "attn.c_proj.weight", c.width, c.width, residual),
          bias(prefix + "attn.c_proj.bias", c.width),
          norm_weight(prefix + "ln_2.weight", c.width),
          bias(prefix + "ln_2.bias", c.width),
          matrix(prefix + "mlp.c_fc.weight", c.width, c.ffn),
          bias(prefix + "mlp.c_fc.bias", c.ffn),
          matrix(prefix + "mlp.c_proj.weight", c.ffn, c.width, residual),
          bias(prefix + "mlp.c_proj.bias", c.width)};
}

Segment embedding_segment(const Model& model, uint32_t wte, uint32_t wpe) {
  SegmentBuilder b(model, "embedding");
  b.bind(model.groups[wte], "");
  b.bind(model.groups[wpe], "");
  const auto tokens = b.input_tokens("tokens");
  b.output(b.op(OpKind::embedding, "x", {tokens}, {b.weight("wte.weight"), b.weight("wpe.weight")},
                {.sequence = model.sequence}));
  return b.take();
}

Segment block_segment(const ModelConfig& c, const Model& model, uint32_t group) {
  SegmentBuilder b(model, "block");
  b.bind(model.groups[group], "h.0.");
  const OpAttributes heads{
      .sequence = model.sequence, .heads = c.heads, .kv_heads = c.kv_heads, .head_size = c.head_size};
  const OpAttributes norm{.epsilon = c.epsilon};
  const auto x = b.input("x", c.width);
  const auto ln_1 =
      b.op(OpKind::layer_norm, "ln_1", {x}, {b.weight("ln_1.weight"), b.weight("ln_1.bias")}, norm);
  const auto qkv = b.linear("attn.c_attn", ln_1, false);
  const auto attention = b.op(OpKind::attention, "attn", {qkv}, {}, heads);
  const auto middle = b.op(OpKind::add, "middle", {x, b.linear("attn.c_proj", attention, false)});
  const auto ln_2 =
      b.op(OpKind::layer_norm, "ln_2", {middle}, {b.weight("ln_2.weight"), b.weight("ln_2.bias")}, norm);
  const auto wide = b.linear("mlp.c_fc", ln_2, false, OpKind::linear_gelu);
  b.output(b.op(OpKind::add, "y", {middle, b.linear("mlp.c_proj", wide, false)}));
  return b.take();
}

Segment head_segment(const ModelConfig& c, const Model& model, uint32_t norm, uint32_t head) {
  SegmentBuilder b(model, "head");
  b.bind(model.groups[norm], "");
  b.bind(model.groups[head], "");
  const auto x = b.input("x", c.width);
  const auto labels = b.input_tokens("labels");
  const auto ln_f = b.op(OpKind::layer_norm, "ln_f", {x}, {b.weight("ln_f.weight"), b.weight("ln_f.bias")},
                         {.epsilon = c.epsilon});
  b.op(OpKind::linear_cross_entropy, "loss", {ln_f, labels},
       {b.weight(c.tied ? "wte.weight" : "lm_head.weight")});
  return b.take();
}

void build(const ModelConfig& c, Model& model) {
  const uint32_t wte = add_group(model, "wte", {matrix("wte.weight", c.vocabulary, c.width)});
  const uint32_t wpe = add_group(model, "wpe", {matrix("wpe.weight", c.context, c.width)});
  const uint32_t tokens = add_token_input(model, "tokens", ActivationSource::tokens);
  const uint32_t labels = add_token_input(model, "labels", ActivationSource::labels);
  uint32_t x = add_activation(model, "embedding", c.width);
  add_layer(model, "embedding", embedding_segment(model, wte, wpe), {{}, {wte, wpe}, {tokens}, {x}});
  x = add_blocks(
      model, x, {.layers = c.layers, .width = c.width, .prefix = "h"},
      [&](int64_t i) { return block_parameters(c, i); },
      [&](uint32_t group) { return block_segment(c, model, group); });
  const uint32_t norm =
      add_group(model, "ln_f", {norm_weight("ln_f.weight", c.width), bias("ln_f.bias", c.width)});
  const uint32_t head =
      c.tied ? wte : add_group(model, "lm_head", {matrix("lm_head.weight", c.vocabulary, c.width)});
  add_layer(model, "head", head_segment(c, model, norm, head), {{}, {norm, head}, {x, labels}, {}});
}

}  // namespace

const Family kGpt2 = {"gpt2", "GPT2LMHeadModel", read, write, build};

}  // namespace sluice
