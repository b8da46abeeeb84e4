#include "models/families/segment_builder.h"

#include <cmath>

namespace sluice {

Parameter matrix(std::string name, int64_t rows, int64_t columns, double standard_deviation) {
  return {.name = std::move(name), .shape = {rows, columns}, .standard_deviation = standard_deviation};
}

Parameter norm_weight(std::string name, int64_t width) {
  return {.name = std::move(name), .shape = {width}, .decay = false, .initializer = Initializer::ones};
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

namespace {

uint32_t add(Model& model, Activation activation) {
  model.activations.push_back(std::move(activation));
  return static_cast<uint32_t>(model.activations.size() - 1);
}

}  // namespace

uint32_t add_activation(Model& model, std::string name, int64_t columns) {
  const int64_t rows = model.micro_batch * model.sequence;
  return add(model, {.name = std::move(name), .shape = {rows, columns}, .dtype = model.precision});
}

uint32_t add_token_input(Model& model, std::string name) {
  const int64_t rows = model.micro_batch * model.sequence;
  return add(model, {.name = std::move(name), .shape = {rows}, .dtype = DType::i32, .input = true});
}

void add_layer(Model& model, std::string name, Segment segment, SegmentUse use) {
  use.segment = static_cast<uint32_t>(model.segments.size());
  model.segments.push_back(std::move(segment));
  model.layers.push_back({std::move(name), {std::move(use)}});
}

SegmentBuilder::SegmentBuilder(const Model& model, std::string name)
    : precision_(model.precision), rows_(model.micro_batch * model.sequence) {
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

bool SegmentBuilder::has(std::string_view name) const {
  for (const Named& named : bound_)
    if (named.name == name) return true;
  return false;
}

SegmentBuilder::Weight SegmentBuilder::weight(std::string_view name) {
  for (const Named& named : bound_)
    if (named.name == name) {
      segment_.parameters.push_back({named.slot, named.parameter, named.shape});
      return static_cast<Weight>(segment_.parameters.size() - 1);
    }
  check_failed("a bound group has the weight", __FILE__, __LINE__, std::string(name));
}

SegmentBuilder::Tensor SegmentBuilder::input(std::string name, int64_t columns) {
  segment_.tensors.push_back({std::move(name), {rows_, columns}, precision_});
  segment_.inputs.push_back(static_cast<Tensor>(segment_.tensors.size() - 1));
  return segment_.inputs.back();
}

SegmentBuilder::Tensor SegmentBuilder::input_tokens(std::string name) {
  segment_.tensors.push_back({std::move(name), {rows_}, DType::i32});
  segment_.inputs.push_back(static_cast<Tensor>(segment_.tensors.size() - 1));
  return segment_.inputs.back();
}

SegmentBuilder::Tensor SegmentBuilder::op(OpKind kind, std::string name, std::initializer_list<Tensor> inputs,
                                          std::vector<Weight> weights, const OpAttributes& attributes) {
  Op op{.kind = kind, .attributes = attributes, .inputs = inputs, .parameters = std::move(weights)};
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  op_rule(kind).infer(shapes_of(segment_, op, precision_), shapes, dtypes);
  for (size_t i = 0; i < shapes.size(); ++i) {
    op.outputs.push_back(static_cast<Tensor>(segment_.tensors.size()));
    const std::string suffix = i == 0 ? "" : "." + std::to_string(i);
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

SegmentBuilder::Tensor SegmentBuilder::linear(const std::string& name, Tensor x, bool weight_out_in) {
  return op(OpKind::linear, name, {x}, weight_and_bias(name), {.weight_out_in = weight_out_in});
}

SegmentBuilder::Tensor SegmentBuilder::norm(OpKind kind, const std::string& name, Tensor x, double epsilon) {
  return op(kind, name, {x}, weight_and_bias(name), {.epsilon = epsilon});
}

void SegmentBuilder::output(Tensor tensor) { segment_.outputs.push_back(tensor); }

Segment SegmentBuilder::take() {
  segment_.loss = !segment_.ops.empty() && op_rule(segment_.ops.back().kind).is_loss;
  return std::move(segment_);
}

}  // namespace sluice
