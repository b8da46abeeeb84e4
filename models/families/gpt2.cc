// GPT-2: learned positions, pre-norm layers, packed q|k|v, GELU. Weights are [in, out]. Radford et al.,
// "Language Models are Unsupervised Multitask Learners" (2019); tensor names as in Hugging Face checkpoints
// without the prefix, shapes as published in the models' config.json files.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/families/config_reader.h"
#include "models/families/decoder.h"
#include "models/families/family.h"

namespace sluice {
namespace {

ModelConfig shape(int64_t layers, int64_t width, int64_t heads) {
  ModelConfig c{.vocabulary = 50257, .context = 1024, .width = width, .layers = layers};
  c.heads = c.kv_heads = heads;
  c.head_size = width / heads;
  c.ffn = 4 * width;
  c.tied = c.attention_bias = c.mlp_bias = true;
  c.special_tokens = {{"bos_token_id", "50256"}, {"eos_token_id", "50256"}};
  return c;
}

std::vector<Preset> presets() {
  return {{"gpt2", shape(12, 768, 12), 124'439'808},
          {"gpt2-medium", shape(24, 1024, 16), 354'823'168},
          {"gpt2-large", shape(36, 1280, 20), 774'030'080},
          {"gpt2-xl", shape(48, 1600, 25), 1'557'611'200}};
}

int64_t ffn(int64_t width) { return 4 * width; }

void read(const ConfigReader& file, ModelConfig& c) {
  c.context = file.integer("n_positions", kContextMax);
  c.width = file.integer("n_embd", kWidthMax);
  c.layers = file.integer("n_layer", kLayersMax);
  c.heads = c.kv_heads = file.integer("n_head", kHeadsMax);
  c.ffn = file.integer_or("n_inner", kFfnMax, ffn(c.width));
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

// h.0.attn.bias and h.0.attn.masked_bias: the causal mask, not a parameter.
bool is_buffer(std::string_view tensor) {
  if (!tensor.starts_with("h.")) return false;
  const size_t digits_end = tensor.find_first_not_of("0123456789", 2);
  if (digits_end == 2 || digits_end == std::string_view::npos) return false;
  const std::string_view rest = tensor.substr(digits_end);
  return rest == ".attn.bias" || rest == ".attn.masked_bias";
}

std::vector<Parameter> layer_parameters(const ModelConfig& c, const std::string& prefix) {
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

SegmentBuilder::Tensor layer(const ModelConfig& c, SegmentBuilder& b, SegmentBuilder::Tensor x) {
  OpAttributes heads = b.sequences();
  heads.heads = c.heads, heads.kv_heads = c.kv_heads, heads.head_size = c.head_size;
  const auto ln_1 = b.norm(OpKind::layer_norm, "ln_1", x, c.epsilon);
  const auto qkv = b.linear("attn.c_attn", ln_1, false);
  const auto attention = b.attention("attn", {qkv}, heads);
  const auto middle = b.op(OpKind::add, "middle", {x, b.linear("attn.c_proj", attention, false)});
  const auto ln_2 = b.norm(OpKind::layer_norm, "ln_2", middle, c.epsilon);
  const auto wide = b.op(OpKind::gelu, "mlp.act", {b.linear("mlp.c_fc", ln_2, false)});
  return b.op(OpKind::add, "y", {middle, b.linear("mlp.c_proj", wide, false)});
}

void build(const ModelConfig& c, Model& model) {
  Decoder decoder{.embedding = "wte", .positions = "wpe", .layers = "h", .norm = "ln_f"};
  decoder.norm_kind = OpKind::layer_norm;
  decoder.parameters = [&](const std::string& prefix, bool) { return layer_parameters(c, prefix); };
  decoder.layer = [&](SegmentBuilder& b, SegmentBuilder::Tensor x, LayerType) { return layer(c, b, x); };
  build_decoder(c, decoder, model);
}

}  // namespace

extern const Family kGpt2 = {.name = "gpt2",
                             .title = "GPT-2",
                             .architecture = "GPT2LMHeadModel",
                             .presets = presets,
                             .plain_preset = "gpt2",
                             .keys = {},
                             .ffn = ffn,
                             .read = read,
                             .write = write,
                             .matrices_in_out = true,
                             .tensor_prefix = "transformer.",
                             .is_buffer = is_buffer,
                             .build = build};

}  // namespace sluice
