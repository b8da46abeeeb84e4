#include "tools/bench/op_timer.h"

#include <algorithm>
#include <array>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/pack.h"
#include "engine/base/simd/convert.h"
#include "engine/graph/routing.h"

namespace sluice {

namespace {

constexpr uint64_t kAlignment = 64;

std::vector<DType> output_types(const OpShapes& shapes) {
  std::vector<Shape> outputs;
  std::vector<DType> types;
  op_rule(shapes.kind).infer(shapes, outputs, types);
  return types;
}

// The smallest id. Ids of a cached_attention are the rows in which documents begin, counted from the op's
// first row. They lie so far before it that the op's rows are the last of the context.
int32_t first_id(const OpShapes& s) {
  return s.kind == OpKind::cached_attention
             ? static_cast<int32_t>(s.attributes.sequence - s.attributes.context)
             : 0;
}

constexpr uint64_t kHash = 2654435761u, kPart = 4096;  // Knuth's multiplicative hash

// `count` ids that are spread over the range from `first` to below `first` + `ids`.
std::vector<std::byte> spread_ids(uint64_t count, uint64_t ids, int32_t first) {
  std::vector<std::byte> bytes(count * sizeof(int32_t));
  auto* const out = reinterpret_cast<int32_t*>(bytes.data());
  for (uint64_t i = 0; i < count; ++i) out[i] = first + static_cast<int32_t>(i * kHash % ids);
  return bytes;
}

bool is_routing(const OpShapes& s, const Shape& shape) {
  return shape.size() == 1 && s.attributes.routing.chosen > 0 && s.kind != OpKind::router_loss;
}
bool is_routing_input(const OpShapes& s, size_t input) {
  const bool labels = s.kind == OpKind::router_statistics && input == 2;
  return is_routing(s, s.inputs[input]) && !labels;
}

// Routing in which all experts have equally many rows.
std::vector<std::byte> routing_of(const OpShapes& s, const Shape& shape) {
  const RoutingLayout layout = routing_layout(s.attributes.routing, shape[0]);
  std::vector<int32_t> experts(static_cast<size_t>(layout.choices()));
  for (size_t i = 0; i < experts.size(); ++i)
    experts[i] = static_cast<int32_t>(static_cast<int64_t>(i) % layout.experts);
  const std::vector<int32_t> routing = make_routing(layout, experts);
  const auto bytes = std::as_bytes(std::span(routing));
  return {bytes.begin(), bytes.end()};
}

// Whether the input's gradient covers more rows than those of one expert.
bool covers_all(const OpShapes& s, size_t input) {
  const bool weights = s.attributes.routing.weighted && input + 1 == s.inputs.size();
  return op_rule(s.kind).of_an_expert && (weights || s.kind == OpKind::dispatch);
}

}  // namespace

std::vector<std::byte> spread_numbers(DType type) {
  std::vector<std::byte> bytes(kPart * dtype_bytes(type));
  if (type == DType::f64) return bytes;
  std::array<float, kPart> values;
  for (uint64_t i = 0; i < kPart; ++i) values[i] = static_cast<float>(i * kHash >> 20 & 255) / 256 - 0.5f;
  round_to(type, values.data(), bytes.data(), kPart);
  return bytes;
}

uint64_t OpTimer::bytes_needed(const Device& device, const OpShapes& shapes) {
  uint64_t bytes =
      std::max(device.workspace_bytes(shapes, Pass::forward), device.workspace_bytes(shapes, Pass::backward));
  // Every tensor may have a gradient. No element is wider than fp64, the type of a sum of losses.
  for (const std::vector<Shape>* list : {&shapes.inputs, &shapes.outputs, &shapes.parameters})
    for (const Shape& shape : *list)
      bytes += 2 * round_up(static_cast<uint64_t>(element_count(shape)) * sizeof(double), kAlignment);
  return round_up(bytes, kAlignment) + 2 * kAlignment;  // and the scalars
}

std::byte* OpTimer::take(uint64_t bytes) {
  std::byte* const data = memory_.span().data() + taken_;
  taken_ = round_up(taken_ + bytes, kAlignment);
  CHECK(taken_ <= memory_.span().size(), "an op to be timed does not fit its memory");
  return data;
}

TensorView OpTimer::tensor(const Shape& shape, DType type, int64_t ids, int32_t first) {
  const auto count = static_cast<uint64_t>(element_count(shape));
  const uint64_t bytes = count * dtype_bytes(type);
  std::byte* const data = take(bytes);
  memory_.fill(
      data, bytes,
      type == DType::i32 ? spread_ids(count, static_cast<uint64_t>(ids), first) : spread_numbers(type));
  return {data};
}

OpTimer::Operands OpTimer::lay_out(const OpShapes& shapes, Pass pass) {
  Operands o;
  const OpRule& rule = op_rule(shapes.kind);
  const DType precision = shapes.precision;
  const std::vector<DType> types = output_types(shapes);
  taken_ = 0;
  // Token ids and labels choose rows of the first parameter. Attention's documents all begin at 0.
  const bool chooses_rows = shapes.kind == OpKind::embedding || shapes.kind == OpKind::linear_cross_entropy;
  // The input `draws` of add_noise gets some numbers: with all zeros, nothing would be random.
  const bool draws = shapes.kind == OpKind::add_noise;
  const int64_t ids = chooses_rows ? shapes.parameters[0][0] : draws ? int64_t{1} << 16 : 1;
  const auto routing = [&](const Shape& shape) {
    const std::vector<std::byte> values = routing_of(shapes, shape);
    std::byte* const data = take(values.size());
    memory_.write(data, values);
    return TensorView{data};
  };
  for (size_t i = 0; i < shapes.inputs.size(); ++i) {
    const Shape& shape = shapes.inputs[i];
    const DType type = input_type(shapes, i);
    o.inputs.push_back(is_routing_input(shapes, i) ? routing(shape)
                                                   : tensor(shape, type, ids, first_id(shapes)));
    TensorView& gradient = o.input_gradients.emplace_back();
    if (!has_gradient(shapes, i)) continue;
    gradient = tensor(shape, type, 0);
    if (covers_all(shapes, i)) gradient.addend = gradient.data;  // added to, as for all experts but one
  }
  for (size_t i = 0; i < types.size(); ++i) {
    const Shape& shape = shapes.outputs[i];
    o.outputs.push_back(is_routing(shapes, shape) ? routing(shape) : tensor(shape, types[i], 0));
    o.output_gradients.push_back(rule.gradient_outputs >> i & 1 ? tensor(shape, types[i], 0) : TensorView{});
  }
  for (const Shape& shape : shapes.parameters) {
    o.parameters.push_back(tensor(shape, precision, 0));
    TensorView& gradient = o.parameter_gradients.emplace_back(tensor(shape, DType::f32, 0));
    gradient.addend = gradient.data;  // added to, as in most micro-batches of a step
  }
  const double scalars[] = {1, static_cast<double>(shapes.inputs[0][0])};  // loss scale, tokens that count
  o.scalars = take(sizeof scalars);
  memory_.write(o.scalars, std::as_bytes(std::span(scalars)));
  o.workspace = take(device_.workspace_bytes(shapes, pass));
  return o;
}

double OpTimer::seconds(const OpShapes& shapes, Pass pass, const Repeats& repeats) {
  const Operands o = lay_out(shapes, pass);
  device_.prepare(shapes, pass);
  const auto* const scalars = reinterpret_cast<const double*>(o.scalars);
  const OpCall call{.shapes = &shapes,
                    .inputs = o.inputs,
                    .outputs = o.outputs,
                    .parameters = o.parameters,
                    .output_gradients = o.output_gradients,
                    .input_gradients = o.input_gradients,
                    .parameter_gradients = o.parameter_gradients,
                    .workspace = o.workspace,
                    .loss_scale = scalars,
                    .valid_tokens = scalars + 1};
  const auto run = [&] { pass == Pass::forward ? device_.forward(call) : device_.backward(call); };
  return memory_.rounds_of_call(run, repeats).median;
}

}  // namespace sluice
