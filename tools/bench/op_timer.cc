#include "tools/bench/op_timer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "cpu_optim/optimizer.h"
#include "engine/clock.h"
#include "engine/error.h"
#include "engine/pack.h"
#include "tools/bench/median.h"

namespace sluice {

namespace {

constexpr uint64_t kAlignment = 64;

OpShapes shapes_with_outputs(const TimedOp& op, DType precision, std::vector<DType>& types) {
  OpShapes shapes{op.kind, op.attributes, precision, op.inputs, {}, op.parameters};
  op_rule(op.kind).infer(shapes, shapes.outputs, types);
  return shapes;
}

bool holds_ids(OpKind kind, size_t input) {
  return (kind == OpKind::embedding && input == 0) || (kind == OpKind::linear_cross_entropy && input == 1);
}

// Multiples of 1/256 between -1/2 and 1/2, or ids below `ids`; spread by Knuth's multiplicative hash.
void fill(std::byte* data, DType type, uint64_t count, uint64_t ids) {
  constexpr uint64_t kHash = 2654435761u, kPart = 4096;
  if (type == DType::i32) {
    auto* const out = reinterpret_cast<int32_t*>(data);
    for (uint64_t i = 0; i < count; ++i) out[i] = static_cast<int32_t>(i * kHash % ids);
    return;
  }
  if (type == DType::f64) {
    std::memset(data, 0, count * sizeof(double));
    return;
  }
  std::array<float, kPart> values;
  for (uint64_t i = 0; i < kPart; ++i) values[i] = static_cast<float>(i * kHash >> 20 & 255) / 256 - 0.5f;
  for (uint64_t i = 0; i < count; i += kPart)
    round_to(type, values.data(), data + i * dtype_bytes(type), std::min(kPart, count - i));
}

}  // namespace

OpShapes timed_shapes(const TimedOp& op, DType precision) {
  std::vector<DType> types;
  return shapes_with_outputs(op, precision, types);
}

uint64_t OpTimer::bytes_needed(const Device& device, const TimedOp& op, DType precision) {
  std::vector<DType> types;
  const OpShapes shapes = shapes_with_outputs(op, precision, types);
  uint64_t bytes =
      std::max(device.workspace_bytes(shapes, Pass::forward), device.workspace_bytes(shapes, Pass::backward));
  // Every tensor may have a gradient; those of parameters, and statistics, are fp32.
  for (const std::vector<Shape>* list : {&shapes.inputs, &shapes.outputs, &shapes.parameters})
    for (const Shape& shape : *list)
      bytes += 2 * round_up(static_cast<uint64_t>(element_count(shape)) * sizeof(double), kAlignment);
  return bytes + kAlignment;
}

TensorView OpTimer::tensor(const Shape& shape, DType type, int64_t ids) {
  const auto count = static_cast<uint64_t>(element_count(shape));
  std::byte* const data = arena_.data() + taken_;
  taken_ = round_up(taken_ + count * dtype_bytes(type), kAlignment);
  CHECK(taken_ <= arena_.size(), "an op to be timed does not fit the arena");
  fill(data, type, count, static_cast<uint64_t>(ids));
  return {data};
}

OpTimer::Operands OpTimer::lay_out(const TimedOp& op, DType precision, Pass pass) {
  Operands o;
  std::vector<DType> types;
  o.shapes = shapes_with_outputs(op, precision, types);
  const OpRule& rule = op_rule(op.kind);
  taken_ = 0;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const bool ids = holds_ids(op.kind, i);
    o.inputs.push_back(tensor(op.inputs[i], ids ? DType::i32 : precision, ids ? op.parameters[0][0] : 0));
    o.input_gradients.push_back(rule.gradient_inputs >> i & 1 ? tensor(op.inputs[i], precision, 0)
                                                              : TensorView{});
  }
  for (size_t i = 0; i < types.size(); ++i) {
    o.outputs.push_back(tensor(o.shapes.outputs[i], types[i], 0));
    o.output_gradients.push_back(rule.gradient_outputs >> i & 1 ? tensor(o.shapes.outputs[i], precision, 0)
                                                                : TensorView{});
  }
  for (const Shape& shape : op.parameters) {
    o.parameters.push_back(tensor(shape, precision, 0));
    o.parameter_gradients.push_back(tensor(shape, DType::f32, 0));
  }
  o.workspace = arena_.data() + taken_;
  CHECK(taken_ + device_.workspace_bytes(o.shapes, pass) <= arena_.size(), "no room for a workspace");
  return o;
}

double OpTimer::seconds(const TimedOp& op, DType precision, Pass pass, double seconds_at_least) {
  const Operands o = lay_out(op, precision, pass);
  device_.prepare(o.shapes, pass);
  const double loss_scale = 1, valid_tokens = static_cast<double>(op.inputs[0][0]);
  const OpCall call{.shapes = &o.shapes,
                    .inputs = o.inputs,
                    .outputs = o.outputs,
                    .parameters = o.parameters,
                    .output_gradients = o.output_gradients,
                    .input_gradients = o.input_gradients,
                    .parameter_gradients = o.parameter_gradients,
                    .workspace = o.workspace,
                    .loss_scale = &loss_scale,
                    .valid_tokens = &valid_tokens};
  return median_seconds([&] { pass == Pass::forward ? device_.forward(call) : device_.backward(call); },
                        seconds_at_least);
}

}  // namespace sluice
