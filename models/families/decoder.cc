#include "models/families/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "models/families/family.h"

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
  std::vector<Parameter> parameters = {norm_weight(decoder.norm + ".weight", width, decoder.weight_from_one)};
  if (decoder.norm_kind == OpKind::layer_norm) parameters.push_back(bias(decoder.norm + ".bias", width));
  return add_group(model, decoder.norm, std::move(parameters));
}

struct Groups {
  std::vector<uint32_t> tables;
  std::vector<std::vector<uint32_t>> layers;  // each its own, and that of its adapters if it has any
  uint32_t norm = 0, head = 0;
};

std::vector<uint32_t> add_layer_groups(const ModelConfig& c, const Decoder& decoder, Model& model,
                                       const std::string& name) {
  std::vector<uint32_t> groups = {add_group(model, name, decoder.parameters(name + "."))};
  if (c.adapters.rank == 0) return groups;
  const bool in_out = find_family(c.family)->matrices_in_out;
  std::vector<Parameter> adapters =
      adapter_parameters(c.adapters, model.groups[groups.front()].parameters, in_out);
  groups.push_back(add_group(model, name + ".lora", std::move(adapters)));
  model.groups[groups.back()].adapter = true;
  return groups;
}

Groups add_groups(const ModelConfig& c, const Decoder& decoder, Model& model) {
  Groups groups;
  groups.tables = {add_table(model, decoder.embedding, c.vocabulary, c.width)};
  if (!decoder.positions.empty())
    groups.tables.push_back(add_table(model, decoder.positions, c.context, c.width));
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string name = fmt::format("{}.{}", decoder.layers, i);
    groups.layers.push_back(add_layer_groups(c, decoder, model, name));
  }
  groups.norm = add_norm(decoder, model, c.width);
  groups.head = c.tied ? groups.tables.front() : add_table(model, "lm_head", c.vocabulary, c.width);
  return groups;
}

// Appends the layers of a way through the groups: that of training, or a reading.
class Way {
 public:
  // `reading`: nullptr for that of training.
  Way(const ModelConfig& c, const Decoder& decoder, const Groups& groups, Model& model,
      const Reading* reading)
      : c_(c),
        decoder_(decoder),
        groups_(groups),
        model_(model),
        reading_(reading),
        prefix_(reading ? reading->name + "." : "") {}

  void add() {
    const int64_t rows =
        reading_ ? reading_->sequences * reading_->tokens : model_.micro_batch * model_.sequence;
    add_input("tokens", rows);
    if (!reading_) add_input("labels", rows);
    if (reading_ || model_.documents) add_input("documents", rows);
    if (reading_ && reading_->tokens > 1) add_input("picked", reading_->sequences);
    const uint32_t x = add_activation("embedding", {rows, c_.width});
    const uint32_t embedding = add_segment(embedding_segment());
    add_layer("embedding", embedding, groups_.tables, bound(embedding, x), {x});
    const uint32_t y = add_layers(x, rows);
    const uint32_t head = add_segment(head_segment());
    std::vector<uint32_t> outputs;
    if (reading_) {
      outputs = {add_activation("logits", {reading_->sequences, c_.vocabulary})};
      model_.activations.back().output = true;
    }
    add_layer("head", head, {groups_.norm, groups_.head}, bound(head, y), std::move(outputs));
  }

 private:
  SegmentBuilder builder(const std::string& name) const { return {model_, prefix_ + name, reading_}; }
  uint32_t add_segment(Segment segment) {
    model_.segments.push_back(std::move(segment));
    return static_cast<uint32_t>(model_.segments.size() - 1);
  }
  uint32_t add_activation(const std::string& name, Shape shape) {
    return sluice::add_activation(
        model_, {.name = prefix_ + name, .shape = std::move(shape), .dtype = model_.precision});
  }
  void add_input(const char* name, int64_t rows) {
    inputs_.push_back(
        {name, sluice::add_activation(
                   model_, {.name = prefix_ + name, .shape = {rows}, .dtype = DType::i32, .input = true})});
  }
  void add_layer(const std::string& name, uint32_t segment, std::vector<uint32_t> groups,
                 std::vector<uint32_t> inputs, std::vector<uint32_t> outputs) {
    model_.layers.push_back(
        {prefix_ + name, {{segment, std::move(groups), std::move(inputs), std::move(outputs)}}});
  }
  // The way's inputs, x and, if there is one, the cache.
  std::vector<uint32_t> bound(uint32_t segment, uint32_t x, std::optional<uint32_t> cache = {}) const {
    std::vector<NamedActivation> activations = {{"x", x}};
    if (cache) activations.push_back({"cache", *cache});
    activations.insert(activations.end(), inputs_.begin(), inputs_.end());
    return bound_inputs(model_.segments[segment], activations);
  }

  Segment embedding_segment() const {
    SegmentBuilder b = builder("embedding");
    std::vector<SegmentBuilder::Tensor> inputs = {b.input_tokens("tokens")};
    const bool positions = groups_.tables.size() > 1;
    OpAttributes attributes;
    if (positions) attributes = b.sequences(), inputs = b.with_documents(std::move(inputs));
    attributes.scale = decoder_.embedding_scale;
    std::vector<SegmentBuilder::Weight> weights;
    for (const uint32_t table : groups_.tables) weights.push_back(bound_weight(b, model_.groups[table]));
    b.output(b.op(OpKind::embedding, "x", std::move(inputs), std::move(weights), attributes));
    return b.take();
  }

  Segment layer_segment(const std::vector<uint32_t>& groups, LayerType type, const std::string& name) const {
    SegmentBuilder b = builder(name);
    const std::string prefix = model_.groups[groups.front()].name + ".";
    b.bind(model_.groups[groups.front()], prefix);
    if (groups.size() > 1) b.bind_adapters(model_.groups[groups.back()], prefix, c_.adapters.scale());
    b.output(decoder_.layer(b, b.input("x", c_.width), type));
    return b.take();
  }

  // Ends in the loss, or in logits.
  Segment head_segment() const {
    SegmentBuilder b = builder("head");
    const double scale = c_.logits_divisor == 0 ? 0 : 1 / c_.logits_divisor;
    auto x = b.input("x", c_.width);
    const auto normed = [&] {
      b.bind(model_.groups[groups_.norm], prefix_of(decoder_.norm));
      return b.norm(decoder_.norm_kind, last_word(decoder_.norm), x, c_.epsilon, decoder_.weight_from_one);
    };
    if (reading_) {
      x = b.picked(x);
      const auto y = normed();
      b.output(b.op(OpKind::linear, "logits", {y}, {bound_weight(b, model_.groups[groups_.head])},
                    {.weight_out_in = true, .scale = scale}));
      return b.take();
    }
    const auto labels = b.input_tokens("labels");
    const auto y = normed();
    b.op(OpKind::linear_cross_entropy, "loss", {y, labels}, {bound_weight(b, model_.groups[groups_.head])},
         {.soft_cap = c_.logits_cap, .scale = scale});
    return b.take();
  }

  // Returns the activation that the last of them writes.
  uint32_t add_layers(uint32_t x, int64_t rows) {
    std::map<LayerType, uint32_t> shared;
    for (int64_t i = 0; i < c_.layers; ++i) {
      const std::vector<uint32_t>& groups = groups_.layers[static_cast<size_t>(i)];
      const std::string& name = model_.groups[groups.front()].name;
      const auto [segment, is_new] = shared.try_emplace(layer_type(c_, i));
      if (is_new) {
        const std::string block = shared.size() == 1 ? "block" : fmt::format("block.{}", shared.size() - 1);
        segment->second = add_segment(layer_segment(groups, segment->first, block));
      }
      const uint32_t y = add_activation(name, {rows, c_.width});
      add_layer(name, segment->second, groups, bound(segment->second, x, cache_of(segment->second, name)),
                {y});
      x = y;
    }
    return x;
  }

  // The layer's kept activation, in the shape that its segment says; none: the segment has no cache.
  std::optional<uint32_t> cache_of(uint32_t segment, const std::string& layer) {
    for (const uint32_t input : model_.segments[segment].inputs) {
      const SegmentTensor& tensor = model_.segments[segment].tensors[input];
      if (tensor.name != "cache") continue;
      const std::string name = "cache." + layer;
      const auto known = std::ranges::find(model_.activations, name, &Activation::name);
      if (known != model_.activations.end()) return static_cast<uint32_t>(known - model_.activations.begin());
      return sluice::add_activation(
          model_, {.name = name, .shape = tensor.shape, .dtype = tensor.dtype, .kept = true});
    }
    return std::nullopt;
  }

  const ModelConfig& c_;
  const Decoder& decoder_;
  const Groups& groups_;
  Model& model_;
  const Reading* reading_;
  std::string prefix_;  // of names
  std::vector<NamedActivation> inputs_;
};

}  // namespace

void build_decoder(const ModelConfig& c, const Decoder& decoder, Model& model) {
  const Groups groups = add_groups(c, decoder, model);
  if (model.sequence > 0) Way(c, decoder, groups, model, nullptr).add();
  for (Reading& reading : model.readings) {
    reading.first = static_cast<uint32_t>(model.layers.size());
    Way(c, decoder, groups, model, &reading).add();
    reading.last = static_cast<uint32_t>(model.layers.size());
  }
}

}  // namespace sluice
