#include "models/families/rotary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/simd/convert.h"
#include "models/families/decoder.h"

namespace sluice {

void read_rotary_sizes(const ConfigReader& file, const RotaryDefaults& defaults, ModelConfig& c) {
  const auto size_or = [&](const char* key, int64_t most, int64_t absent, int64_t null) {
    return file.integer_or(key, most, absent == 0 || file.is_null(key) ? null : absent);
  };
  c.context = file.integer("max_position_embeddings", kContextMax);
  c.width = file.integer("hidden_size", kWidthMax);
  c.layers = file.integer("num_hidden_layers", kLayersMax);
  c.heads = file.integer("num_attention_heads", kHeadsMax);
  c.kv_heads = size_or("num_key_value_heads", kHeadsMax, defaults.kv_heads, c.heads);
  const bool divided = !file.has("head_dim") && (defaults.head_size == 0 || file.is_null("head_dim"));
  if (divided && c.width % c.heads != 0)
    file.complain(fmt::format("{} heads do not divide the width {}.", c.heads, c.width), "Correct the file.");
  c.head_size = size_or("head_dim", kWidthMax, defaults.head_size, c.width / c.heads);
  c.ffn = file.integer("intermediate_size", kFfnMax);
  c.epsilon = file.number_or("rms_norm_eps", defaults.epsilon);
  c.tied = file.flag_or("tie_word_embeddings", defaults.tied);
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
  file["attention_dropout"] = 0.0;
}

void read_layer_types(const ConfigReader& file, std::vector<LayerType> pattern, ModelConfig& c) {
  c.layer_types = std::move(pattern);
  if (!file.has("layer_types")) return;
  const std::vector<std::string> types = file.texts("layer_types");
  if (types.size() != static_cast<size_t>(c.layers))
    file.complain(fmt::format("layer_types has {} entries for {} layers.", types.size(), c.layers),
                  "Correct the file.");
  file.require_texts("layer_types", {"full_attention", "sliding_attention"});
  c.layer_types.clear();
  for (const std::string& type : types)
    c.layer_types.push_back(type == "sliding_attention" ? LayerType::sliding : LayerType::full);
}

void write_layer_types(const ModelConfig& c, nlohmann::ordered_json& file) {
  std::vector<std::string> types;
  for (int64_t i = 0; i < c.layers; ++i)
    types.push_back(layer_type(c, i) == LayerType::sliding ? "sliding_attention" : "full_attention");
  file["layer_types"] = types;
}

void read_window(const ConfigReader& file, int64_t absent, ModelConfig& c) {
  c.window = file.is_null("sliding_window") ? 0 : file.integer_or("sliding_window", kContextMax, absent);
  if (c.window > 0) c.layer_types = {LayerType::sliding};
}

void write_window(const ModelConfig& c, nlohmann::ordered_json& file) {
  file["sliding_window"] = nullptr;
  if (c.window > 0) file["sliding_window"] = c.window;
}

void read_late_window(const ConfigReader& file, ModelConfig& c) {
  if (!file.flag_or("use_sliding_window", false) || file.is_null("sliding_window")) {
    file.require_texts("layer_types", {"full_attention"});
    return;
  }
  c.window = file.integer_or("sliding_window", kContextMax, 4096);
  const int64_t full = file.has("max_window_layers") && file.number("max_window_layers") == 0
                           ? 0
                           : file.integer_or("max_window_layers", kLayersMax, 28);
  std::vector<LayerType> types(static_cast<size_t>(c.layers), LayerType::sliding);
  std::fill_n(types.begin(), std::min(full, c.layers), LayerType::full);
  read_layer_types(file, std::move(types), c);
}

void write_late_window(const ModelConfig& c, nlohmann::ordered_json& file) {
  file["use_sliding_window"] = c.window > 0;
  if (c.window == 0) return;
  int64_t full = 0;
  while (full < c.layers && layer_type(c, full) == LayerType::full) ++full;
  file["sliding_window"] = c.window;
  file["max_window_layers"] = full;
  write_layer_types(c, file);
}

std::vector<LayerType> sliding_pattern(int64_t sliding) {
  std::vector<LayerType> types(static_cast<size_t>(sliding), LayerType::sliding);
  types.push_back(LayerType::full);
  return types;
}

void reject_foreign_keys(const ConfigReader& file, std::initializer_list<std::string_view> known) {
  const auto foreign = [&](std::string_view key) { return std::ranges::find(known, key) == known.end(); };
  for (const char* scale : {"embedding_multiplier", "residual_multiplier", "attention_multiplier",
                            "logits_scaling", "logit_scale"})
    if (foreign(scale)) file.require_number(scale, 1);
  for (const char* key : {"sliding_window", "clip_qkv", "attn_logit_softcapping", "final_logit_softcapping",
                          "num_local_experts", "num_experts", "no_rope_layers"})
    if (foreign(key)) file.reject_present(key);
  if (foreign("layer_types")) file.require_texts("layer_types", {"full_attention"});
  for (const char* flag : {"use_qk_norm", "qk_norm", "parallel_attn", "use_bidirectional_attention"})
    file.reject_flag(flag);
}

ModelConfig rotary_config(const RotarySizes& sizes) {
  ModelConfig c{.width = sizes.width, .layers = sizes.layers};
  c.heads = sizes.heads;
  c.kv_heads = sizes.kv_heads;
  c.head_size = sizes.width / sizes.heads;
  c.ffn = sizes.ffn;
  return c;
}

int64_t gated_ffn(int64_t width) { return (8 * width / 3 + 255) / 256 * 256; }

bool is_rotary_buffer(std::string_view tensor) { return tensor.ends_with("rotary_emb.inv_freq"); }

namespace {

using Tensor = SegmentBuilder::Tensor;

class ParameterList {
 public:
  ParameterList(const ModelConfig& c, const RotaryForm& form, std::string prefix)
      : c_(c), form_(form), prefix_(std::move(prefix)) {}

  void norm(const std::string& name, int64_t width) {
    if (!name.empty()) all_.push_back(norm_weight(prefix_ + name + ".weight", width, form_.weight_from_one));
  }
  void linear(const std::string& name, int64_t out, int64_t in, bool biased) {
    add(name, out, in, biased, 0.02);
  }
  // A projection back into the residual stream.
  void residual(const std::string& name, int64_t out, int64_t in, bool biased) {
    add(name, out, in, biased, residual_deviation(c_.layers));
  }
  void bias(const std::string& name, int64_t width) {
    all_.push_back(sluice::bias(prefix_ + name + ".bias", width));
  }
  void vector(const std::string& name, int64_t width) {
    all_.push_back(
        {.name = prefix_ + name, .shape = {width}, .decay = false, .initializer = Initializer::zeros});
  }
  std::vector<Parameter> take() { return std::move(all_); }

 private:
  void add(const std::string& name, int64_t out, int64_t in, bool biased, double deviation) {
    all_.push_back(matrix(prefix_ + name + ".weight", out, in, deviation));
    if (biased) bias(name, out);
  }

  const ModelConfig& c_;
  const RotaryForm& form_;
  std::string prefix_;
  std::vector<Parameter> all_;
};

std::vector<Parameter> layer_parameters(const ModelConfig& c, const RotaryForm& form,
                                        const std::string& prefix, bool experts) {
  const int64_t q = c.heads * c.head_size, kv = c.kv_heads * c.head_size;
  ParameterList list(c, form, prefix);
  list.norm(form.attention_in, c.width);
  if (form.packed) {
    list.linear("self_attn.qkv_proj", q + 2 * kv, c.width, form.qkv_bias);
  } else {
    list.linear("self_attn.q_proj", q, c.width, form.qkv_bias);
    list.linear("self_attn.k_proj", kv, c.width, form.qkv_bias);
    list.linear("self_attn.v_proj", kv, c.width, form.qkv_bias);
  }
  list.residual("self_attn.o_proj", c.width, q, form.output_bias);
  if (form.head_norm != HeadNorm::none) {
    const bool by_head = form.head_norm == HeadNorm::heads;
    list.norm("self_attn.q_norm", by_head ? c.head_size : q);
    list.norm("self_attn.k_norm", by_head ? c.head_size : kv);
  }
  if (form.sinks) list.vector("self_attn.sinks", c.heads);
  list.norm(form.attention_out, c.width);
  list.norm(form.mlp_in, c.width);
  if (experts) {
    list.linear(form.experts.part + "." + form.experts.router, c.experts, c.width, form.experts.biased);
    if (c.shared_expert_ffn > 0)
      list.linear(form.experts.part + "." + form.experts.shared_router, 1, c.width, false);
    list.norm(form.mlp_out, c.width);
    return list.take();
  }
  if (form.packed) {
    list.linear("mlp.gate_up_proj", 2 * c.ffn, c.width, form.mlp_bias);
  } else {
    list.linear("mlp.gate_proj", c.ffn, c.width, form.mlp_bias);
    list.linear("mlp.up_proj", c.ffn, c.width, form.mlp_bias);
  }
  list.residual("mlp.down_proj", c.width, c.ffn, form.mlp_bias);
  list.norm(form.mlp_out, c.width);
  return list.take();
}

std::vector<Parameter> expert_parameters(const ModelConfig& c, const RotaryForm& form, int64_t ffn,
                                         const std::string& prefix) {
  ParameterList list(c, form, prefix);
  const ExpertNames& names = form.experts;
  const auto [outer, inner] = names.in_out ? std::pair(c.width, ffn) : std::pair(ffn, c.width);
  for (const std::string& name : {names.gate, names.up}) {
    list.linear(name, outer, inner, false);
    if (names.biased) list.bias(name, ffn);
  }
  list.residual(names.down, inner, outer, false);
  if (names.biased) list.bias(names.down, c.width);
  return list.take();
}

Routing routing_of(const ModelConfig& c, const RotaryForm& form) {
  Routing routing{.experts = c.experts,
                  .chosen = c.experts_per_token,
                  .scores = form.experts.scores,
                  .normalized = c.normalized_experts};
  for (int64_t i = 0; i < c.layers; ++i) routing.layers += has_experts(c, i);
  routing.balance_loss = c.has_router_loss ? c.router_loss : 0;
  routing.z_loss = c.router_z_loss;
  return routing;
}

// The expert beside the others: it takes all rows, and its result is multiplied by the sigmoid of a logit.
constexpr Routing kShared{.experts = 1, .chosen = 1, .scores = Routing::Scores::sigmoid};

// A layer of one type, op by op.
class LayerOps {
 public:
  // `longest`: the most tokens of a sequence.
  LayerOps(const ModelConfig& c, const RotaryForm& form, int64_t longest, LayerType type, SegmentBuilder& b)
      : c_(c), form_(form), longest_(longest), type_(type), b_(b) {}

  Tensor layer(Tensor x) {
    const Tensor middle = attended(x);
    Tensor h = norm(form_.mlp_in, middle);
    h = b_.linear("mlp.down_proj", gated(h), true, c_.residual_scale);
    return b_.op(OpKind::add, "y", {middle, norm(form_.mlp_out, h)});
  }

  Mixture::Routed route(Tensor x, const std::vector<Experts>& experts) {
    const Tensor middle = attended(x), rows = norm(form_.mlp_in, middle);
    Mixture::Routed routed{middle, rows, {}, {}};
    for (const Experts& of : experts) {
      const std::string& name = of.router;
      const OpAttributes attributes{.routing = of.routing};
      std::vector<SegmentBuilder::Weight> parameters = {b_.weight(name + ".weight")};
      if (b_.has(name + ".bias")) parameters.push_back(b_.weight(name + ".bias"));
      const Tensor logits = b_.op(OpKind::router, name, {rows}, std::move(parameters));
      const Tensor weights = b_.op(OpKind::route, name + ".weights", {logits}, {}, attributes);
      const Tensor routing = weights + 1;
      if (routed.choices.empty()) routed.logits = logits;
      routed.choices.push_back({weights, routing});
    }
    return routed;
  }

  Tensor expert(Tensor rows, Tensor weights, Tensor routing, const Routing& of) {
    const ExpertNames& names = form_.experts;
    std::vector<Tensor> inputs = {routing};
    for (const std::string& name : {names.gate, names.up})
      inputs.push_back(b_.expert_linear(name, routing, rows, !names.in_out, of));
    inputs.push_back(weights);
    OpAttributes attributes{.gelu_gate = form_.gelu_gate,
                            .swiglu_limit = c_.swiglu_limit,
                            .swiglu_alpha = c_.swiglu_alpha,
                            .routing = of};
    attributes.routing.weighted = true;
    const Tensor h = b_.op(OpKind::expert_swiglu, "swiglu", std::move(inputs), {}, attributes);
    return b_.expert_linear(names.down, routing, h, !names.in_out, of,
                            names.biased ? std::optional(weights) : std::nullopt);
  }

 private:
  // x plus what attention makes of it.
  Tensor attended(Tensor x) {
    Tensor h = attention(norm(form_.attention_in, x));
    h = norm(form_.attention_out, b_.linear("self_attn.o_proj", h, true, c_.residual_scale));
    return b_.op(OpKind::add, "middle", {x, h});
  }
  // Returns x where there is no such norm.
  Tensor norm(const std::string& name, Tensor x) {
    return name.empty() ? x : b_.norm(OpKind::rms_norm, name, x, c_.epsilon, form_.weight_from_one);
  }
  Tensor rotated(const std::string& name, Tensor x, int64_t heads) {
    if (type_ == LayerType::no_rope) return x;
    const bool own = type_ == LayerType::sliding && c_.sliding_rope_theta != 0;
    const RopeTurns turns =
        rope_turns(own ? c_.sliding_rope_theta : c_.rope_theta,
                   own ? c_.sliding_rope_scaling : c_.rope_scaling, {c_.head_size, c_.context, longest_});
    OpAttributes a = b_.sequences();
    a.heads = heads, a.head_size = c_.head_size;
    a.frequencies = turns.frequencies, a.scale = turns.scale;
    return b_.op(OpKind::rope, name, b_.with_documents({x}), {}, a);
  }
  Tensor projected(const std::string& name, const std::string& letter, Tensor h, int64_t heads) {
    const Tensor x = b_.linear("self_attn." + name, h, true);
    const bool normed = form_.head_norm != HeadNorm::none;
    return rotated(letter, normed ? norm("self_attn." + letter + "_norm", x) : x, heads);
  }
  Tensor attention(Tensor h) {
    OpAttributes scores = b_.sequences();
    scores.heads = c_.heads, scores.kv_heads = c_.kv_heads, scores.head_size = c_.head_size;
    scores.window = type_ == LayerType::sliding ? c_.window : 0;
    scores.soft_cap = c_.attention_cap;
    scores.scale = c_.attention_scale;
    std::vector<Tensor> inputs;
    if (form_.packed) {
      inputs = {rotated("qkv", b_.linear("self_attn.qkv_proj", h, true), c_.heads + c_.kv_heads)};
    } else {
      inputs.push_back(projected("q_proj", "q", h, c_.heads));
      inputs.push_back(projected("k_proj", "k", h, c_.kv_heads));
      inputs.push_back(b_.linear("self_attn.v_proj", h, true));
    }
    std::vector<SegmentBuilder::Weight> sinks;
    if (form_.sinks) sinks.push_back(b_.weight("self_attn.sinks"));
    return b_.attention("attn", std::move(inputs), scores, std::move(sinks));
  }
  Tensor gated(Tensor h) {
    std::vector<Tensor> inputs;
    if (form_.packed)
      inputs = {b_.linear("mlp.gate_up_proj", h, true)};
    else
      for (const char* name : {"mlp.gate_proj", "mlp.up_proj"}) inputs.push_back(b_.linear(name, h, true));
    return b_.op(OpKind::swiglu, "swiglu", std::move(inputs), {}, {.gelu_gate = form_.gelu_gate});
  }

  const ModelConfig& c_;
  const RotaryForm& form_;
  int64_t longest_;
  LayerType type_;
  SegmentBuilder& b_;
};

// transformers multiplies by the root after rounding it to the type of the embedding.
double root_of_width(const ModelConfig& c, DType precision) {
  const float root = std::sqrt(static_cast<float>(c.width));
  float rounded = 0;
  std::byte bytes[sizeof(float)];
  round_to(precision, &root, bytes, 1);
  widen(precision, bytes, &rounded, 1);
  return static_cast<double>(rounded);
}

}  // namespace

void build_rotary(const ModelConfig& c, const RotaryForm& form, Model& model) {
  Decoder decoder{.embedding = "model.embed_tokens", .layers = "model.layers", .norm = "model.norm"};
  decoder.weight_from_one = form.weight_from_one;
  decoder.embedding_scale = form.scaled_embedding ? root_of_width(c, model.precision) : c.embedding_scale;
  decoder.parameters = [&](const std::string& prefix, int64_t experts) {
    return layer_parameters(c, form, prefix, experts > 0);
  };
  decoder.layer = [&](SegmentBuilder& b, Tensor x, LayerType type) {
    return LayerOps(c, form, b.longest(), type, b).layer(x);
  };
  const auto add_experts = [&](const Routing& routing, const std::string& name, const std::string& router,
                               int64_t ffn) {
    decoder.mixture.experts.push_back(
        {.routing = routing,
         .name = form.experts.part + "." + name,
         .numbered = decoder.mixture.experts.empty(),
         .router = form.experts.part + "." + router,
         .adapted = !form.experts.in_out,
         .parameters = [&c, &form,
                        ffn](const std::string& prefix) { return expert_parameters(c, form, ffn, prefix); },
         .ops =
             [&c, &form](SegmentBuilder& b, Tensor rows, Tensor weights, Tensor of_rows, const Routing& of) {
               return LayerOps(c, form, b.longest(), LayerType::full, b).expert(rows, weights, of_rows, of);
             }});
  };
  if (c.experts > 0) add_experts(routing_of(c, form), "experts", form.experts.router, c.expert_ffn);
  if (c.shared_expert_ffn > 0)
    add_experts(kShared, form.experts.shared, form.experts.shared_router, c.shared_expert_ffn);
  decoder.mixture.route = [&](SegmentBuilder& b, Tensor x, LayerType type) {
    return LayerOps(c, form, b.longest(), type, b).route(x, decoder.mixture.experts);
  };
  build_decoder(c, decoder, model);
}

}  // namespace sluice
