#include "models/families/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "engine/graph/draws.h"
#include "models/families/divided_experts.h"
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

// A group of parameters, and the group of its adapters if it has any.
using Adapted = std::vector<uint32_t>;

// A template is bound to the groups of the first layer, or of the first expert of a layer.
struct LayerGroups {
  Adapted own;
  std::vector<std::vector<Adapted>> experts;  // as Mixture::experts
};

struct Groups {
  std::vector<uint32_t> tables;
  std::vector<LayerGroups> layers;
  uint32_t norm = 0, head = 0;
};

// Leaves out the parameters that get no adapters: those of routers and of experts with `adapted` false.
std::vector<Parameter> adaptable(const Decoder& decoder, std::vector<Parameter> parameters) {
  for (const Experts& experts : decoder.mixture.experts)
    std::erase_if(parameters, [&](const Parameter& p) {
      const auto is_router = [&](const std::string& name) {
        return p.name.ends_with("." + name + ".weight");
      };
      return is_router(experts.router) || std::ranges::any_of(experts.further_routers, is_router) ||
             (!experts.adapted && p.name.find("." + experts.name + ".") != std::string::npos);
    });
  return parameters;
}

Adapted add_adapted(const ModelConfig& c, const Decoder& decoder, Model& model, const std::string& name,
                    std::vector<Parameter> parameters) {
  Adapted groups = {add_group(model, name, std::move(parameters))};
  if (c.adapters.rank == 0) return groups;
  const bool in_out = find_family(c.family)->matrices_in_out;
  std::vector<Parameter> adapters =
      adapter_parameters(c.adapters, adaptable(decoder, model.groups[groups.front()].parameters), in_out);
  if (adapters.empty()) return groups;
  groups.push_back(add_group(model, name + ".lora", std::move(adapters)));
  model.groups[groups.back()].adapter = true;
  return groups;
}

// The names of a group's adapters without the group's name: they tell which matrices have adapters.
std::string adapters_in(const Model& model, const Adapted& groups) {
  std::string names;
  if (groups.size() < 2) return names;
  const size_t prefix = model.groups[groups.front()].name.size();
  for (const Parameter& p : model.groups[groups.back()].parameters) names += p.name.substr(prefix) + '\n';
  return names;
}

// The names of adapters in a layer's own group and in its experts' groups.
std::string adapters_in(const Model& model, const LayerGroups& groups) {
  std::string names = adapters_in(model, groups.own);
  for (const std::vector<Adapted>& experts : groups.experts)
    names += '\n' + adapters_in(model, experts.front());
  return names;
}

// The axes along which these experts are divided. An expert that all tokens use is on each rank.
Axes divided_along(const Experts& experts) { return experts.numbered ? Axes{Axis::expert} : Axes{}; }

LayerGroups add_layer_groups(const ModelConfig& c, const Decoder& decoder, Model& model, int64_t layer) {
  const std::string name = fmt::format("{}.{}", decoder.layers, layer);
  const int64_t experts = experts_of(c, layer);
  LayerGroups groups{add_adapted(c, decoder, model, name, decoder.parameters(name + ".", experts)), {}};
  if (experts == 0) return groups;
  for (const Experts& of : decoder.mixture.experts) {
    std::vector<Adapted>& added = groups.experts.emplace_back();
    const int64_t count = groups.experts.size() == 1 ? experts : of.routing.experts;
    const ProcessGroup over = c.mesh.group_of(divided_along(of));
    const int64_t of_rank = count / over.count, here = over.place_of(c.rank);
    const auto name_of = [&](int64_t e) {
      return fmt::format("{}.{}{}", name, of.name, of.numbered ? fmt::format(".{}", e) : "");
    };
    for (int64_t e = 0; e < of_rank; ++e) {
      const std::string expert = name_of(here * of_rank + e);
      added.push_back(add_adapted(c, decoder, model, expert, of.parameters(expert + ".")));
      for (const uint32_t g : added.back()) {
        if (over.count == 1) continue;
        model.groups[g].divided = divided_along(of);
        for (int64_t part = 0; part < over.count; ++part)
          model.groups[g].prefixes.push_back(name_of(part * of_rank + e) + ".");
      }
      if (adapters_in(model, added.back()) != adapters_in(model, added.front()))
        throw Error(ExitCode::usage,
                    fmt::format("--lora-targets names a matrix of {} and not of {}.", expert, name_of(0)),
                    "Name it without the expert's number: the experts of a layer have the same adapters.");
    }
  }
  return groups;
}

Groups add_groups(const ModelConfig& c, const Decoder& decoder, Model& model) {
  Groups groups;
  groups.tables = {add_table(model, decoder.embedding, c.vocabulary, c.width)};
  if (!decoder.positions.empty())
    groups.tables.push_back(add_table(model, decoder.positions, c.context, c.width));
  const size_t first = model.groups.size();
  for (int64_t i = 0; i < c.layers; ++i) groups.layers.push_back(add_layer_groups(c, decoder, model, i));
  std::vector<Group> layers(model.groups.begin() + static_cast<ptrdiff_t>(first), model.groups.end());
  std::erase_if(layers, [](const Group& group) { return group.adapter; });
  for (Group& group : layers) group.parameters = adaptable(decoder, std::move(group.parameters));
  check_targets(c.adapters, layers);
  groups.norm = add_norm(decoder, model, c.width);
  groups.head = c.tied ? groups.tables.front() : add_table(model, "lm_head", c.vocabulary, c.width);
  return groups;
}

constexpr std::string_view kStatistics = "statistics";

// The activations that a layer's router makes (Mixture::Routed).
struct RoutedActivations {
  struct Choice {
    uint32_t weights, routing;
  };
  struct Beside {
    uint32_t z, shares;
  };
  uint32_t middle, rows;
  std::vector<Choice> choices;  // by set of experts
  std::optional<Beside> beside;
};

// Appends the layers of one way through the groups: for training, or for a reading.
class Way {
 public:
  // `reading`: nullptr for training.
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
    if (!reading_ && decoder_.mixture.draws) add_input("draws", kDrawWords);
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
  // Adds an activation with the shape and type of a segment's output; a sum if the segment's ops add to it.
  uint32_t add_activation(const std::string& name, uint32_t segment, size_t output) {
    const Segment& of = model_.segments[segment];
    const SegmentTensor& tensor = of.tensors[of.outputs[output]];
    return sluice::add_activation(model_, {.name = prefix_ + name,
                                           .shape = tensor.shape,
                                           .dtype = tensor.dtype,
                                           .sum = added_outputs(of)[output]});
  }
  void add_input(const char* name, int64_t rows) {
    inputs_.push_back(
        {name, sluice::add_activation(
                   model_, {.name = prefix_ + name, .shape = {rows}, .dtype = DType::i32, .input = true})});
  }
  void add_layer(const std::string& name, uint32_t segment, std::vector<uint32_t> groups,
                 std::vector<uint32_t> inputs, std::vector<uint32_t> outputs, uint32_t expert = 0,
                 int64_t layer = 0) {
    model_.layers.push_back({prefix_ + name,
                             {{segment, std::move(groups), std::move(inputs), std::move(outputs), expert,
                               static_cast<uint32_t>(layer)}}});
  }
  // The way's inputs, x and, if there are any, the cache and the routers' statistics.
  std::vector<uint32_t> bound(uint32_t segment, uint32_t x, std::optional<uint32_t> cache = {}) const {
    std::vector<NamedActivation> activations = {{"x", x}};
    if (cache) activations.push_back({"cache", *cache});
    for (const Statistics& of : statistics_) activations.push_back({of.name, of.activation});
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

  void bind(SegmentBuilder& b, const Adapted& groups) const {
    const std::string prefix = model_.groups[groups.front()].name + ".";
    b.bind(model_.groups[groups.front()], prefix);
    if (groups.size() > 1) b.bind_adapters(model_.groups[groups.back()], prefix, c_.adapters.scale());
  }
  Segment layer_segment(const Adapted& groups, LayerType type, int64_t experts,
                        const std::string& name) const {
    SegmentBuilder b = builder(name);
    bind(b, groups);
    const auto x = b.input("x", c_.width);
    if (experts == 0) {
      b.output(decoder_.layer(b, x, type));
      return b.take();
    }
    const Mixture::Routed routed = decoder_.mixture.route(b, x, type);
    b.output(routed.middle);
    b.output(routed.rows);
    for (const Mixture::Choice& choice : routed.choices) {
      b.output(choice.weights);
      b.output(choice.routing);
    }
    if (routed.beside) {
      b.output(routed.beside->z);
      b.output(routed.beside->shares);
    }
    if (reading_) return b.take();
    Routing routing = decoder_.mixture.experts.front().routing;
    routing.experts = experts;
    routing = b.routing(routing);
    std::vector<SegmentBuilder::Tensor> inputs = {routed.logits, routed.choices.front().routing};
    const auto statistics = [&](const char* of) {
      return b.op(OpKind::router_statistics, of, inputs, {}, {.routing = routing});
    };
    if (router_loss_counts(c_)) {  // without padding
      inputs.push_back(b.input_tokens("labels"));
      b.output(statistics("loss_statistics"));
      inputs.pop_back();
    }
    routing.counted = 0;
    b.output(statistics("statistics"));
    return b.take();
  }
  // The segment of an expert of the mixture's set number `set`. A layer has `count` experts of this set.
  Segment expert_segment(size_t set, int64_t count, const Adapted& groups,
                         const RoutedActivations& routed) const {
    const Experts& experts = decoder_.mixture.experts[set];
    SegmentBuilder b = builder("expert" + suffix_of(set));
    bind(b, groups);
    const auto input = [&](const char* name, uint32_t activation) {
      return b.input(name, model_.activations[activation].shape, model_.activations[activation].dtype);
    };
    const auto x = input("x", routed.rows);
    const auto weights = input("weights", routed.choices[set].weights),
               routing = input("routing", routed.choices[set].routing);
    OpAttributes attributes{.routing = experts.routing};
    attributes.routing.experts = count;
    attributes.routing = b.routing(attributes.routing);
    const auto rows = b.op(OpKind::dispatch, "expert_rows", {routing, x}, {}, attributes);
    const auto y = experts.ops(b, rows, weights, routing, attributes.routing);
    b.output(b.op(OpKind::combine, "sum", {routing, y}, {}, attributes));
    return b.take();
  }
  // `beside`: the result has a share of a dense part, too.
  Segment sum_segment(const Shape& sum_shape, bool beside) const {
    SegmentBuilder b = builder("sum");
    const auto x = b.input("x", c_.width);
    const auto sum = b.input("sum", sum_shape, DType::f32);
    if (beside) {
      const auto z = b.input("z", c_.width), shares = b.input("shares", {sum_shape[0], 2}, DType::f32);
      b.output(b.op(OpKind::add_shared_sum, "y", {x, z, sum, shares}));
    } else {
      b.output(b.op(OpKind::add_sum, "y", {x, sum}));
    }
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
    for (const Statistics& of : statistics_) {
      const SegmentBuilder::Tensor statistics =
          b.input(of.name, model_.activations[of.activation].shape, DType::f32);
      OpAttributes attributes{.routing = decoder_.mixture.experts.front().routing};
      attributes.routing.experts = of.experts;
      if (decoder_.mixture.loss_by_layer) attributes.routing.layers = 1;
      b.op(OpKind::router_loss, "router_loss" + of.name.substr(kStatistics.size()), {statistics, labels}, {},
           attributes);
    }
    b.op(OpKind::linear_cross_entropy, "loss", {y, labels}, {bound_weight(b, model_.groups[groups_.head])},
         {.soft_cap = c_.logits_cap, .scale = scale});
    return b.take();
  }

  // Returns the activation that the last layer writes.
  uint32_t add_layers(uint32_t x, int64_t rows) {
    // Segments by type of layer, number of experts, and adapters.
    std::map<std::tuple<LayerType, int64_t, std::string>, uint32_t> shared;
    for (int64_t i = 0; i < c_.layers; ++i) {
      const LayerGroups& groups = groups_.layers[static_cast<size_t>(i)];
      const std::string& name = model_.groups[groups.own.front()].name;
      const auto [segment, is_new] =
          shared.try_emplace({layer_type(c_, i), experts_of(c_, i), adapters_in(model_, groups.own)});
      const auto& [type, experts, adapters] = segment->first;
      if (is_new) {
        const std::string block = shared.size() == 1 ? "block" : fmt::format("block.{}", shared.size() - 1);
        segment->second = add_segment(layer_segment(groups.own, type, experts, block));
      }
      const std::vector<uint32_t> inputs = bound(segment->second, x, cache_of(segment->second, name));
      const uint32_t y = add_activation(name, {rows, c_.width});
      if (experts > 0)
        add_mixture(i, segment->second, inputs, y);
      else
        add_layer(name, segment->second, groups.own, inputs, {y});
      x = y;
    }
    return x;
  }

  // A router, its experts in ascending order, and their sum.
  void add_mixture(int64_t layer, uint32_t router, std::vector<uint32_t> inputs, uint32_t y) {
    const LayerGroups& groups = groups_.layers[static_cast<size_t>(layer)];
    const std::string& name = model_.groups[groups.own.front()].name;
    const size_t sets = groups.experts.size();
    const size_t of_statistics = reading_ ? 0 : router_loss_counts(c_) ? 2 : 1;
    std::vector<uint32_t> outputs;
    const auto next_output = [&](const std::string& kind) {
      outputs.push_back(add_activation(name + "." + kind, router, outputs.size()));
      return outputs.back();
    };
    RoutedActivations routed{next_output("middle"), next_output("rows"), {}, {}};
    for (size_t set = 0; set < sets; ++set) {
      const std::string number = set == 0 ? "" : fmt::format(".{}", set);
      routed.choices.push_back({next_output("weights" + number), next_output("routing" + number)});
    }
    if (model_.segments[router].outputs.size() > outputs.size() + of_statistics)
      routed.beside = {next_output("beside"), next_output("shares")};
    if (of_statistics == 2) {
      if (statistics_.empty() || decoder_.mixture.loss_by_layer)
        statistics_.push_back(add_statistics(router, outputs.size(), experts_of(c_, layer)));
      outputs.push_back(statistics_.back().activation);
    }
    if (of_statistics > 0) {
      outputs.push_back(add_activation(fmt::format("experts.{}", layer), router, outputs.size()));
      model_.activations.back().output = true;
    }
    add_layer(name, router, groups.own, std::move(inputs), std::move(outputs), 0, layer);
    SegmentsOfExperts& segments = mixtures_[{experts_of(c_, layer), adapters_in(model_, groups)}];
    std::optional<uint32_t> sum;
    for (size_t set = 0; set < sets; ++set) {
      const LayerOfExperts of{name, set, groups.experts[set], routed};
      sum = c_.mesh.group_of(divided_along(decoder_.mixture.experts[set])).count > 1
                ? add_divided_experts(of, segments, sum)
                : add_experts(of, segments, sum);
    }
    if (!sum_) sum_ = add_segment(sum_segment(model_.activations[*sum].shape, routed.beside.has_value()));
    std::vector<uint32_t> added = {routed.middle, *sum};
    if (routed.beside) added.insert(added.end(), {routed.beside->z, routed.beside->shares});
    add_layer(name + ".sum", *sum_, {}, std::move(added), {y});
  }

  // Segments by set of experts. Layers with equal numbers of experts and the same adapters share them.
  struct SegmentsOfExperts {
    std::map<size_t, uint32_t> experts;
    std::map<size_t, DividedExperts> divided;
  };
  // One set of experts of a layer.
  struct LayerOfExperts {
    const std::string& name;
    size_t set;
    const std::vector<Adapted>& groups;
    const RoutedActivations& routed;
    DividedExperts::Routed of_set() const {
      return {routed.rows, routed.choices[set].weights, routed.choices[set].routing};
    }
  };
  // `sum`: the activation to which the experts add; nullopt: a new one. Returns the activation.
  // add_divided_experts() does the same.
  uint32_t add_experts(const LayerOfExperts& of, SegmentsOfExperts& segments, std::optional<uint32_t> sum) {
    const auto [segment, is_new] = segments.experts.try_emplace(of.set, 0);
    if (is_new)
      segment->second = add_segment(
          expert_segment(of.set, static_cast<int64_t>(of.groups.size()), of.groups.front(), of.routed));
    if (!sum) sum = add_activation(of.name + ".sum", segment->second, 0);
    const DividedExperts::Routed routed = of.of_set();
    for (size_t e = 0; e < of.groups.size(); ++e)
      add_layer(model_.groups[of.groups[e].front()].name, segment->second, of.groups[e],
                {routed.rows, routed.weights, routed.routing}, {*sum}, static_cast<uint32_t>(e));
    return *sum;
  }
  uint32_t add_divided_experts(const LayerOfExperts& of, SegmentsOfExperts& segments,
                               std::optional<uint32_t> sum) {
    const Experts& experts = decoder_.mixture.experts[of.set];
    const auto bind_groups = [this](SegmentBuilder& b, const Adapted& groups) { bind(b, groups); };
    DividedExperts& divided =
        segments.divided
            .try_emplace(of.set, model_, experts, static_cast<int64_t>(of.groups.size()), c_.mesh,
                         suffix_of(of.set), bind_groups)
            .first->second;
    return divided.add(of.name + "." + experts.name, of.of_set(), of.groups, sum);
  }
  // The end of the names of segments of the mixture's set number `set`.
  std::string suffix_of(size_t set) const {
    const size_t known = mixtures_.size() - 1;  // mixtures with other numbers of experts or other adapters
    return (set == 0 ? "" : fmt::format(".{}", set)) + (known == 0 ? "" : fmt::format(".mixture.{}", known));
  }

  // Sums over the rows of all layers' routers, or of one layer's.
  struct Statistics {
    std::string name;  // of the head's input
    uint32_t activation;
    int64_t experts;
  };
  Statistics add_statistics(uint32_t router, size_t output, int64_t experts) {
    std::string name(kStatistics);
    if (!statistics_.empty()) name += fmt::format(".{}", statistics_.size());
    const uint32_t activation = add_activation(name, router, output);
    return {std::move(name), activation, experts};
  }

  // The layer's cache, a kept activation in the shape that the segment has; none: the segment has no cache.
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
  std::vector<Statistics> statistics_;  // if the routers have a loss
  // By the number of a layer's experts, and by its adapters.
  std::map<std::pair<int64_t, std::string>, SegmentsOfExperts> mixtures_;
  std::optional<uint32_t> sum_;  // the segment of a sum
};

// A divided group's name on the first of the ranks.
std::string name_on_first(const Group& group) {
  const std::string adapters = group.adapter ? ".lora" : "";
  return group.prefixes.front().substr(0, group.prefixes.front().size() - 1) + adapters;
}

}  // namespace

void build_decoder(const ModelConfig& c, const Decoder& decoder, Model& model) {
  const Groups groups = add_groups(c, decoder, model);
  if (model.sequence > 0) Way(c, decoder, groups, model, nullptr).add();
  for (Reading& reading : model.readings) {
    reading.first = static_cast<uint32_t>(model.layers.size());
    Way(c, decoder, groups, model, &reading).add();
    reading.last = static_cast<uint32_t>(model.layers.size());
  }
  // All ranks run the same program, so groups have the same names on all of them.
  for (Group& group : model.groups)
    if (!group.prefixes.empty()) group.name = name_on_first(group);
}

}  // namespace sluice
