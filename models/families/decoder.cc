#include "models/families/decoder.h"

#include <fmt/format.h>

namespace sluice {
namespace {

// A group "model.norm" is bound without "model.", so that its weight is "norm.weight".
std::string prefix_of(const std::string& group) { return group.substr(0, group.rfind('.') + 1); }
std::string last_word(const std::string& group) { return group.substr(group.rfind('.') + 1); }

SegmentBuilder::Weight bound_weight(SegmentBuilder& b, const Group& group) {
  b.bind(group, prefix_of(group.name));
  return b.weight(last_word(group.name) + ".weight");
}

uint32_t add_table(Model& model, const std::string& name, int64_t rows, int64_t width) {
  return add_group(model, name, {matrix(name + ".weight", rows, width)});
}

uint32_t add_norm(const Decoder& decoder, Model& model, int64_t width) {
  std::vector<Parameter> parameters = {norm_weight(decoder.norm + ".weight", width)};
  if (decoder.norm_kind == OpKind::layer_norm) parameters.push_back(bias(decoder.norm + ".bias", width));
  return add_group(model, decoder.norm, std::move(parameters));
}

Segment embedding_segment(const Model& model, const std::vector<uint32_t>& tables) {
  SegmentBuilder b(model, "embedding");
  const auto tokens = b.input_tokens("tokens");
  std::vector<SegmentBuilder::Weight> weights;
  for (const uint32_t table : tables) weights.push_back(bound_weight(b, model.groups[table]));
  const OpAttributes positions{.sequence = tables.size() > 1 ? model.sequence : 0};
  b.output(b.op(OpKind::embedding, "x", {tokens}, std::move(weights), positions));
  return b.take();
}

Segment layer_segment(const ModelConfig& c, const Decoder& decoder, const Model& model, uint32_t first) {
  SegmentBuilder b(model, "block");
  b.bind(model.groups[first], model.groups[first].name + ".");
  b.output(decoder.layer(b, b.input("x", c.width)));
  return b.take();
}

Segment head_segment(const ModelConfig& c, const Decoder& decoder, const Model& model, uint32_t norm,
                     uint32_t head) {
  SegmentBuilder b(model, "head");
  const auto x = b.input("x", c.width);
  const auto labels = b.input_tokens("labels");
  b.bind(model.groups[norm], prefix_of(decoder.norm));
  const auto y = b.norm(decoder.norm_kind, last_word(decoder.norm), x, c.epsilon);
  b.op(OpKind::linear_cross_entropy, "loss", {y, labels}, {bound_weight(b, model.groups[head])});
  return b.take();
}

}  // namespace

void build_decoder(const ModelConfig& c, const Decoder& decoder, Model& model) {
  std::vector<uint32_t> tables = {add_table(model, decoder.embedding, c.vocabulary, c.width)};
  if (!decoder.positions.empty()) tables.push_back(add_table(model, decoder.positions, c.context, c.width));
  const uint32_t tokens = add_token_input(model, "tokens");
  const uint32_t labels = add_token_input(model, "labels");
  uint32_t x = add_activation(model, "embedding", c.width);
  add_layer(model, "embedding", embedding_segment(model, tables), {{}, tables, {tokens}, {x}});

  const auto shared = static_cast<uint32_t>(model.segments.size());
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string name = fmt::format("{}.{}", decoder.layers, i);
    const uint32_t group = add_group(model, name, decoder.parameters(name + "."));
    if (i == 0) model.segments.push_back(layer_segment(c, decoder, model, group));
    const uint32_t y = add_activation(model, name, c.width);
    model.layers.push_back({name, {{shared, {group}, {x}, {y}}}});
    x = y;
  }

  const uint32_t norm = add_norm(decoder, model, c.width);
  const uint32_t head = c.tied ? tables.front() : add_table(model, "lm_head", c.vocabulary, c.width);
  add_layer(model, "head", head_segment(c, decoder, model, norm, head), {{}, {norm, head}, {x, labels}, {}});
}

}  // namespace sluice
