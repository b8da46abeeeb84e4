#include "models/families/gpt2_form.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/families/family.h"

namespace sluice {

ModelConfig gpt2_config(int64_t layers, int64_t width, int64_t heads) {
  ModelConfig c{.vocabulary = 50257, .context = 1024, .width = width, .layers = layers};
  c.heads = c.kv_heads = heads;
  c.head_size = width / heads;
  c.ffn = 4 * width;
  c.tied = c.attention_bias = c.mlp_bias = true;
  c.special_tokens = {{"bos_token_id", "50256"}, {"eos_token_id", "50256"}};
  return c;
}

int64_t gpt2_ffn(int64_t width) { return 4 * width; }

void read_gpt2(const ConfigReader& file, ModelConfig& c) {
  c.context = file.integer("n_positions", kContextMax);
  c.width = file.integer("n_embd", kWidthMax);
  c.layers = file.integer("n_layer", kLayersMax);
  c.heads = c.kv_heads = file.integer("n_head", kHeadsMax);
  c.ffn = file.integer_or("n_inner", kFfnMax, gpt2_ffn(c.width));
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

void write_gpt2(const ModelConfig& c, nlohmann::ordered_json& file) {
  file["n_positions"] = file["n_ctx"] = c.context;
  file["n_embd"] = c.width;
  file["n_layer"] = c.layers;
  file["n_head"] = c.heads;
  file["n_inner"] = c.ffn;
  file["activation_function"] = "gelu_new";
  file["layer_norm_epsilon"] = c.epsilon;
  for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) file[dropout] = 0.0;
}

bool is_gpt2_buffer(std::string_view tensor) {
  if (!tensor.starts_with("h.")) return false;
  const size_t digits_end = tensor.find_first_not_of("0123456789", 2);
  if (digits_end == 2 || digits_end == std::string_view::npos) return false;
  const std::string_view rest = tensor.substr(digits_end);
  return rest == ".attn.bias" || rest == ".attn.masked_bias";
}

std::vector<Parameter> gpt2_parameters(const ModelConfig& c, const std::string& prefix) {
  const double residual = residual_deviation(c.layers);
  return {norm_weight(prefix + "ln_1.weight", c.width),
          bias(prefix + "ln_1.bias", c.width),
          matrix(prefix + "attn.c_attn.weight", c.width, 3 * c.width),
          bias(prefix + "attn.c_attn.bias", 3 * c.width),
          matrix(prefix + "attn.c_proj.weight", c.width, c.width, residual),
          bias(prefix + "attn.c_proj.bias", c.width),
          norm_weight(prefix + "ln_2.weight", c.width),
          bias(prefix + "ln_2.bias", c.width)};
}

void add_gpt2_mlp(const ModelConfig& c, const std::string& prefix, int64_t ffn,
                  std::vector<Parameter>& parameters) {
  parameters.push_back(matrix(prefix + "c_fc.weight", c.width, ffn));
  parameters.push_back(bias(prefix + "c_fc.bias", ffn));
  parameters.push_back(matrix(prefix + "c_proj.weight", ffn, c.width, residual_deviation(c.layers)));
  parameters.push_back(bias(prefix + "c_proj.bias", c.width));
}

Gpt2Attended gpt2_attended(const ModelConfig& c, SegmentBuilder& b, SegmentBuilder::Tensor x) {
  OpAttributes heads = b.sequences();
  heads.heads = c.heads, heads.kv_heads = c.kv_heads, heads.head_size = c.head_size;
  const auto ln_1 = b.norm(OpKind::layer_norm, "ln_1", x, c.epsilon);
  const auto qkv = b.linear("attn.c_attn", ln_1, false);
  const auto attention = b.attention("attn", {qkv}, heads);
  const auto middle = b.op(OpKind::add, "middle", {x, b.linear("attn.c_proj", attention, false)});
  return {middle, b.norm(OpKind::layer_norm, "ln_2", middle, c.epsilon)};
}

SegmentBuilder::Tensor gpt2_mlp(SegmentBuilder& b, const std::string& name, SegmentBuilder::Tensor x) {
  const auto wide = b.op(OpKind::gelu, name + ".act", {b.linear(name + ".c_fc", x, false)});
  return b.linear(name + ".c_proj", wide, false);
}

Decoder gpt2_decoder() {
  Decoder decoder{.embedding = "wte", .positions = "wpe", .layers = "h", .norm = "ln_f"};
  decoder.norm_kind = OpKind::layer_norm;
  return decoder;
}

}  // namespace sluice
