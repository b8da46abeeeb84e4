#include "models/families/divided_experts.h"

#include <fmt/format.h>

#include <utility>

namespace sluice {

DividedExperts::DividedExperts(Model& model, const Experts& experts, int64_t count, const Mesh& mesh,
                               std::string suffix, Bind bind)
    : model_(model),
      experts_(experts),
      routing_(experts.routing),
      suffix_(std::move(suffix)),
      bind_(std::move(bind)) {
  const ProcessGroup over = mesh.group_of({Axis::expert});
  routing_.experts = count * over.count;
  routing_ = builder("").routing(routing_);
  routing_.over = over;
  levels_ = mesh.levels_of(over);
}

SegmentBuilder::Tensor DividedExperts::input(SegmentBuilder& b, const char* name, uint32_t activation) const {
  return b.input(name, model_.activations[activation].shape, model_.activations[activation].dtype);
}

uint32_t DividedExperts::add_segment(Segment segment) {
  model_.segments.push_back(std::move(segment));
  return static_cast<uint32_t>(model_.segments.size() - 1);
}

uint32_t DividedExperts::add_activation(std::string name, uint32_t segment, size_t output, bool made_again) {
  const Segment& of = model_.segments[segment];
  const SegmentTensor& tensor = of.tensors[of.outputs[output]];
  return sluice::add_activation(model_, {.name = std::move(name),
                                         .shape = tensor.shape,
                                         .dtype = tensor.dtype,
                                         .sum = added_outputs(of)[output],
                                         .made_again = made_again});
}

// Adds a segment of one op, which reads one activation.
uint32_t DividedExperts::segment_of(OpKind kind, const char* name, const char* input_name,
                                    uint32_t activation) {
  SegmentBuilder b = builder(name);
  b.output(b.op(kind, "y", {input(b, input_name, activation)}, {},
                {.routing = routing_, .among = is_between_ranks(kind) ? routing_.over : ProcessGroup{}}));
  return add_segment(b.take());
}

// Collectives only move bytes. So weights are not gathered, but repeated and exchanged: in backward, an
// exchange brings their gradients back, and an op adds these.
DividedExperts::OfAll DividedExperts::gather(const std::string& name, const Routed& routed) {
  Layer layer{name + ".gather_routing", {}};
  const auto add = [&](std::optional<uint32_t>& segment, OpKind kind, const char* segment_name,
                       const char* input_name, uint32_t activation, const char* made) {
    if (!segment) segment = segment_of(kind, segment_name, input_name, activation);
    const uint32_t output = add_activation(name + made, *segment, 0, false);
    layer.segments.push_back({*segment, {}, {activation}, {output}});
    return output;
  };
  OfAll all{};
  all.routing =
      add(gather_, OpKind::all_gather, "gather_routing", "routing", routed.routing, ".routing_of_all");
  const uint32_t repeated =
      add(repeat_, OpKind::repeat, "repeat_weights", "weights", routed.weights, ".repeated_weights");
  all.weights =
      add(exchange_, OpKind::all_to_all, "exchange_weights", "weights", repeated, ".weights_of_all");
  model_.layers.push_back(std::move(layer));
  return all;
}

uint32_t DividedExperts::dispatch_segment(const Routed& routed) {
  SegmentBuilder b = builder("dispatch");
  b.in_parts(routing_.over);
  const auto routing = input(b, "routing", routed.routing), x = input(b, "x", routed.rows);
  b.output(b.op(OpKind::dispatch, "expert_rows", {routing, x}, {}, {.routing = routing_}));
  return add_segment(b.take());
}

uint32_t DividedExperts::travel_segment(const char* name, bool returns, const ProcessGroup& among,
                                        uint32_t routing, uint32_t all, uint32_t rows) {
  SegmentBuilder b = builder(name);
  const auto own = input(b, "routing", routing), of_all = input(b, "routing_of_all", all);
  OpAttributes attributes{.routing = routing_, .among = among};
  attributes.routing.returns = returns;
  b.output(b.op(OpKind::all_to_allv, "y", {own, of_all, input(b, "x", rows)}, {}, attributes));
  return add_segment(b.take());
}

uint32_t DividedExperts::expert_segment(const std::vector<uint32_t>& groups, uint32_t all, uint32_t weights,
                                        uint32_t rows) {
  SegmentBuilder b = builder("expert");
  b.in_parts(routing_.over);
  bind_(b, groups);
  const auto routing = input(b, "routing_of_all", all), of_rows = input(b, "weights_of_all", weights);
  b.output(experts_.ops(b, input(b, "x", rows), of_rows, routing, routing_));
  return add_segment(b.take());
}

uint32_t DividedExperts::combine_segment(const Routed& routed, uint32_t rows) {
  SegmentBuilder b = builder("combine");
  b.in_parts(routing_.over);
  const auto routing = input(b, "routing", routed.routing), x = input(b, "x", rows);
  b.output(b.op(OpKind::combine, "sum", {routing, x}, {}, {.routing = routing_}));
  return add_segment(b.take());
}

// Rows travel in one step, or inside nodes and then across them. Rows that travel out are not kept, but made
// again.
uint32_t DividedExperts::travel(Layer& layer, bool returns, uint32_t routing, uint32_t all, uint32_t rows,
                                const std::string& to) {
  const bool in_steps = levels_.across.count > 1;
  Way& way = returns ? back_ : there_;
  const auto step = [&](const ProcessGroup& among, std::optional<uint32_t>& segment, const char* name,
                        const std::string& arrives) {
    const std::string whole = (returns ? "return" : "travel") + std::string(name);
    if (!segment) segment = travel_segment(whole.c_str(), returns, among, routing, all, rows);
    const uint32_t made = add_activation(arrives, *segment, 0, !returns);
    layer.segments.push_back({*segment, {}, {routing, all, rows}, {made}, expert_});
    rows = made;
  };
  if (in_steps) step(levels_.in_node, way.in_nodes, ".in_nodes", to + ".in_node");
  step(in_steps ? levels_.across : routing_.over, way.whole, "", to);
  return rows;
}

uint32_t DividedExperts::add(const std::string& name, const Routed& routed,
                             const std::vector<std::vector<uint32_t>>& groups, std::optional<uint32_t> sum) {
  const auto [weights, all] = gather(name, routed);
  if (!dispatch_) dispatch_ = dispatch_segment(routed);
  for (expert_ = 0; expert_ < groups.size(); ++expert_) {
    Layer layer{fmt::format("{}.{}", name, expert_), {}};
    const uint32_t leaves = add_activation(layer.name + ".leaves", *dispatch_, 0, true);
    layer.segments.push_back({*dispatch_, {}, {routed.routing, routed.rows}, {leaves}, expert_});
    const uint32_t arrives = travel(layer, false, routed.routing, all, leaves, layer.name + ".arrives");
    if (!computes_) computes_ = expert_segment(groups[expert_], all, weights, arrives);
    const uint32_t made = add_activation(layer.name + ".made", *computes_, 0, false);
    layer.segments.push_back({*computes_, groups[expert_], {all, weights, arrives}, {made}, expert_});
    const uint32_t returns = travel(layer, true, routed.routing, all, made, layer.name + ".returns");
    if (!combine_) combine_ = combine_segment(routed, returns);
    if (!sum) sum = add_activation(name + ".sum", *combine_, 0, false);
    layer.segments.push_back({*combine_, {}, {routed.routing, returns}, {*sum}, expert_});
    model_.layers.push_back(std::move(layer));
  }
  return *sum;
}

}  // namespace sluice
