#include "models/families/segment_builder.h"

#include <algorithm>
#include <cmath>

#include "engine/graph/draws.h"

namespace sluice {

Parameter matrix(std::string name, int64_t rows, int64_t columns, double standard_deviation) {
  return {.name = std::move(name), .shape = {rows, columns}, .standard_deviation = standard_deviation};
}

Parameter norm_weight(std::string name, int64_t width, bool from_one) {
  return {.name = std::move(name),
          .shape = {width},
          .decay = false,
          .initializer = from_one ? Initializer::zeros : Initializer::ones};
}

Parameter bias(std::string name, int64_t width) {
  return {.name = std::move(name), .shape = {width}, .decay = false, .initializer = Initializer::zeros};
}

double residual_deviation(int64_t layers) { return 0.02 / std::sqrt(2.0 * static_cast<double>(layers)); }

uint32_t add_group(Model& model, std::string name, std::vector<Parameter> parameters) {
  Group group{.name = std::move(name), .parameters = std::move(parameters)};
  lay_out_group(group);
  model.groups.push_back(std::move(group));
  return static_cast<uint32_t>(model.groups.size() - 1);
}

uint32_t add_activation(Model& model, Activation activation) {
  model.activations.push_back(std::move(activation));
  return static_cast<uint32_t>(model.activations.size() - 1);
}

uint32_t add_activation(Model& model, std::string name, int64_t columns) {
  const int64_t rows = model.micro_batch * model.sequence;
  return add_activation(model, {.name = std::move(name), .shape = {rows, columns}, .dtype = model.precision});
}

uint32_t add_token_input(Model& model, std::string name) {
  const int64_t rows = model.micro_batch * model.sequence;
  return add_activation(model,
                        {.name = std::move(name), .shape = {rows}, .dtype = DType::i32, .input = true});
}

void add_layer(Model& model, std::string name, Segment segment, SegmentUse use) {
  use.segment = static_cast<uint32_t>(model.segments.size());
  model.segments.push_back(std::move(segment));
  model.layers.push_back({std::move(name), {std::move(use)}});
}

std::vector<uint32_t> bound_inputs(const Segment& segment, std::span<const NamedActivation> activations) {
  std::vector<uint32_t> out;
  for (const uint32_t input : segment.inputs) {
    const std::string& name = segment.tensors[input].name;
    const auto found = std::ranges::find(activations, name, &NamedActivation::name);
    CHECK(found != activations.end(), name);
    out.push_back(found->activation);
  }
  return out;
}

SegmentBuilder::SegmentBuilder(const Model& model, std::string name, const Reading* reading)
    : precision_(model.precision),
      sequences_(reading ? reading->sequences : model.micro_batch),
      tokens_(reading ? reading->tokens : model.sequence),
      context_(reading ? reading->context : 0),
      rows_(sequences_ * tokens_),
      documents_(reading || model.documents) {
  segment_.name = std::move(name);
}

void SegmentBuilder::bind(const Group& group, const std::string& prefix) {
  for (uint32_t i = 0; i < group.parameters.size(); ++i) {
    const Parameter& parameter = group.parameters[i];
    CHECK(parameter.name.starts_with(prefix), parameter.name);
    bound_.push_back({parameter.name.substr(prefix.size()), slots_, i, parameter.shape});
  }
  ++slots_;
}

void SegmentBuilder::bind_adapters(const Group& group, const std::string& prefix, double scale) {
  bind(group, prefix);
  adapter_scale_ = scale;
}

bool SegmentBuilder::has(std::string_view name) const {
  for (const Named& named : bound_)
    if (named.name == name) return true;
  return false;
}

const Shape& SegmentBuilder::shape(std::string_view name) const {
  for (const Named& named : bound_)
    if (named.name == name) return named.shape;
  check_failed("a bound group has the parameter", __FILE__, __LINE__, std::string(name));
}

SegmentBuilder::Weight SegmentBuilder::weight(std::string_view name) {
  for (const Named& named : bound_)
    if (named.name == name) {
      segment_.parameters.push_back({named.slot, named.parameter, named.shape});
      return static_cast<Weight>(segment_.parameters.size() - 1);
    }
  check_failed("a bound group has the weight", __FILE__, __LINE__, std::string(name));
}

SegmentBuilder::Tensor SegmentBuilder::input(std::string name, Shape shape, DType dtype) {
  segment_.tensors.push_back({std::move(name), std::move(shape), dtype});
  segment_.inputs.push_back(static_cast<Tensor>(segment_.tensors.size() - 1));
  return segment_.inputs.back();
}

SegmentBuilder::Tensor SegmentBuilder::input(std::string name, int64_t columns) {
  return input(std::move(name), {rows_, columns}, precision_);
}

SegmentBuilder::Tensor SegmentBuilder::input_tokens(std::string name) {
  return input(std::move(name), {rows_}, DType::i32);
}

std::vector<SegmentBuilder::Tensor> SegmentBuilder::with_documents(std::vector<Tensor> inputs) {
  if (!documents_) return inputs;
  if (!begins_) begins_ = input_tokens("documents");
  inputs.push_back(*begins_);
  return inputs;
}

Routing SegmentBuilder::routing(Routing of) const {
  if (context_ > 0)
    of.capacity_factor = 0, of.random_second = false;
  else if (of.drops())
    of.group_rows = tokens_;
  return of;
}

std::optional<SegmentBuilder::Tensor> SegmentBuilder::draws() {
  if (context_ > 0) return std::nullopt;
  if (!draws_) draws_ = input("draws", {kDrawWords}, DType::i32);
  return draws_;
}

namespace {

// dispatch makes rows for each rank out of this rank's tokens, and combine adds what comes back from the
// ranks. In between, an expert has rows of each rank.
Parts parts_of(OpKind kind, uint32_t count) {
  if (count == 1 || !op_rule(kind).of_an_expert) return {};
  if (kind == OpKind::dispatch) return {count, 0, 1};
  if (kind == OpKind::combine) return {count, 0b10, 0};
  return {count, UINT32_MAX, UINT32_MAX};
}

}  // namespace

SegmentBuilder::Tensor SegmentBuilder::op(OpKind kind, std::string name, std::vector<Tensor> inputs,
                                          std::vector<Weight> weights, const OpAttributes& attributes) {
  Op op{
      .kind = kind, .attributes = attributes, .inputs = std::move(inputs), .parameters = std::move(weights)};
  op.parts = parts_of(kind, over_.count);
  if (op.parts.count > 1) op.attributes.routing.over = over_;
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  op_rule(kind).infer(shapes_of(segment_, op, precision_), shapes, dtypes);
  for (size_t i = 0; i < shapes.size(); ++i) {
    op.outputs.push_back(static_cast<Tensor>(segment_.tensors.size()));
    const std::string suffix = i == 0 ? "" : "." + std::to_string(i);
    if ((op.parts.outputs >> i & 1) != 0) shapes[i][0] *= op.parts.count;
    segment_.tensors.push_back({name + suffix, shapes[i], dtypes[i]});
  }
  segment_.ops.push_back(std::move(op));
  return segment_.ops.back().outputs.front();
}

std::vector<SegmentBuilder::Weight> SegmentBuilder::weight_and_bias(const std::string& name) {
  std::vector<Weight> weights = {weight(name + ".weight")};
  if (has(name + ".bias")) weights.push_back(weight(name + ".bias"));
  return weights;
}

SegmentBuilder::Tensor SegmentBuilder::linear(const std::string& name, Tensor x, bool weight_out_in,
                                              double scale) {
  const OpAttributes attributes{.weight_out_in = weight_out_in, .scale = scale};
  return adapted(OpKind::linear, name, {x}, op(OpKind::linear, name, {x}, weight_and_bias(name), attributes),
                 attributes);
}

SegmentBuilder::Tensor SegmentBuilder::expert_linear(const std::string& name, Tensor routing, Tensor x,
                                                     bool weight_out_in, const Routing& of,
                                                     std::optional<Tensor> weights) {
  const OpAttributes attributes{.weight_out_in = weight_out_in, .routing = of};
  OpAttributes weighted = attributes;
  std::vector<Tensor> inputs = {routing, x};
  if (weights) inputs.push_back(*weights), weighted.routing.weighted = true;
  const Tensor y = op(OpKind::expert_linear, name, std::move(inputs), weight_and_bias(name), weighted);
  return adapted(OpKind::expert_linear, name, {routing, x}, y, attributes);
}

SegmentBuilder::Tensor SegmentBuilder::adapted(OpKind kind, const std::string& name,
                                               std::vector<Tensor> inputs, Tensor y,
                                               OpAttributes attributes) {
  if (!has(name + std::string(kAdapterDown))) return y;
  const Weight down = weight(name + std::string(kAdapterDown)), up = weight(name + std::string(kAdapterUp));
  const double scale = attributes.factor() * adapter_scale_;
  attributes.weight_out_in = true, attributes.scale = 0;
  inputs.back() = op(kind, name + ".lora_A", inputs, {down}, attributes);
  attributes.scale = scale;
  const Tensor part = op(kind, name + ".lora_B", inputs, {up}, attributes);
  return op(OpKind::add, name + ".adapted", {y, part});
}

SegmentBuilder::Tensor SegmentBuilder::attention(std::string name, std::vector<Tensor> projections,
                                                 const OpAttributes& scores, std::vector<Weight> sinks) {
  if (context_ == 0)
    return op(OpKind::attention, std::move(name), with_documents(std::move(projections)), std::move(sinks),
              scores);
  const Shape cache = {sequences_, context_, 2 * scores.kv_heads * scores.head_size};
  std::vector<Tensor> inputs = with_documents({input("cache", cache, precision_)});
  inputs.insert(inputs.end(), projections.begin(), projections.end());
  return op(OpKind::cached_attention, std::move(name), std::move(inputs), std::move(sinks), scores);
}

SegmentBuilder::Tensor SegmentBuilder::picked(Tensor x) {
  if (tokens_ == 1) return x;
  return op(OpKind::pick_rows, "picked_x", {x, input("picked", {sequences_}, DType::i32)});
}

SegmentBuilder::Tensor SegmentBuilder::norm(OpKind kind, const std::string& name, Tensor x, double epsilon,
                                            bool weight_from_one) {
  return op(kind, name, {x}, weight_and_bias(name), {.epsilon = epsilon, .weight_from_one = weight_from_one});
}

void SegmentBuilder::output(Tensor tensor) { segment_.outputs.push_back(tensor); }

Segment SegmentBuilder::take() {
  segment_.loss = !segment_.ops.empty() && op_rule(segment_.ops.back().kind).is_loss;
  return std::move(segment_);
}

}  // namespace sluice
