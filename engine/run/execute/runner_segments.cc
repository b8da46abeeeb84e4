// The runner's part of segments: their ops, one after the other, on the device.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/run/execute/runner.h"

namespace sluice {

void Runner::check_operands(const Task& task) const {
  CHECK(operand_fault(task).empty(), operand_fault(task));
  if (!is_of_segment(task.kind)) return;
  const uint32_t plan = plan_.lowering.uses[task.subject].plan;
  const PassOperands& of_level = operands_[plan][static_cast<size_t>(task.recompute)];
  const SegmentOperands& operands = is_backward(task.kind) ? of_level.backward : of_level.forward;
  const auto check = [&](Role role, const std::vector<uint32_t>& numbers) {
    CHECK(std::ranges::count(task.operands, role, &Operand::role) ==
              std::ranges::count_if(numbers, [](uint32_t n) { return n != kNone; }),
          plan_.model.segments[plan_.lowering.plans()[plan].segment].name + ": operands do not match");
  };
  check(Role::input, operands.inputs);
  check(Role::weights, std::vector<uint32_t>(use_of(task).groups.size()));
  check(Role::output, operands.outputs);
  check(Role::output_gradient, operands.output_gradients);
  check(Role::input_gradient, operands.input_gradients);
  check(Role::accumulator, operands.accumulators);
}

// A loss or another sum that the task writes, rather than adds to, begins at zero, since ops only add to it.
// The parts of an accumulator that no op overwrites begin at zero, too.
void Runner::run_segment(const Task& task, const Instruction& in, const RingPositions& rings) {
  const SegmentPlan& plan = plan_.lowering.plans()[plan_.lowering.uses[task.subject].plan];
  const Segment& segment = plan_.model.segments[plan.segment];
  const bool backward = task.kind == TaskKind::backward;
  const PassOperands& of_level =
      operands_[plan_.lowering.uses[task.subject].plan][static_cast<size_t>(task.recompute)];
  const SegmentOperands& operands = backward ? of_level.backward : of_level.forward;
  const Buffer* const picked = picked_buffer(in);
  const SegmentPasses& passes = plan.at(task.recompute);
  const PassPlan& pass = backward ? passes.backward : passes.forward;
  const auto is_first = [&](uint32_t k) { return k != kNone && in.operands[k].access == Access::write; };
  for (size_t slot = 0; slot < operands.accumulators.size(); ++slot)
    if (const uint32_t k = nth(in, Role::accumulator, operands.accumulators[slot]); is_first(k))
      for (const ByteRange& range : added_to_[task.subject][slot]) {
        const uint64_t end = std::min(range.end, bytes_of(in, k));
        if (range.begin < end) device_.zero(address(in, k, rings) + range.begin, end - range.begin);
      }
  const std::vector<bool>& sums = sums_[plan.segment];
  for (size_t i = 0; i < sums.size() && !backward; ++i)
    if (const uint32_t k = nth(in, Role::output, operands.outputs[i]); sums[i] && is_first(k))
      device_.zero(address(in, k, rings), bytes_of(in, k));
  if (const uint32_t k = position_of(in, Role::loss); is_first(k))
    device_.zero(address(in, k, rings), bytes_of(in, k));
  if (picked && !picked_part(in, *picked)) return;
  for (const OpStep& step : pass.steps) run_step(plan, segment, pass, step, task, operands, in, rings);
}

void Runner::run_step(const SegmentPlan& plan, const Segment& segment, const PassPlan& pass,
                      const OpStep& step, const Task& task, const SegmentOperands& operands,
                      const Instruction& in, const RingPositions& rings) {
  const SegmentUse& use = use_of(task);
  const Op& op = segment.ops[step.op];
  const auto operand_at = [&](Role role, uint32_t n) {
    const uint32_t k = nth(in, role, n);
    return k == kNone ? nullptr : address(in, k, rings);
  };
  std::byte* workspace = operand(in, rings, Role::workspace);
  const auto locate = [&](const TensorPlace& place) -> std::byte* {
    switch (place.storage) {
      case Storage::none:
        return nullptr;
      case Storage::input:
        return operand_at(Role::input, operands.inputs[place.index]);
      case Storage::output:
        return operand_at(Role::output, operands.outputs[place.index]);
      case Storage::saved:
        return operand(in, rings, Role::saved) + place.offset;
      case Storage::workspace:
        return workspace + place.offset;
      case Storage::output_gradient:
        return operand_at(Role::output_gradient, operands.output_gradients[place.index]);
      case Storage::input_gradient:
        return operand_at(Role::input_gradient, operands.input_gradients[place.index]);
      case Storage::loss:
        return operand(in, rings, Role::loss);
    }
    return nullptr;
  };
  auto& [inputs, outputs, parameters, output_gradients, input_gradients, parameter_gradients] = views_;
  for (std::vector<TensorView>& v : views_) v.clear();
  for (const uint32_t t : op.inputs) inputs.push_back({locate(pass.tensors[t])});
  for (const uint32_t t : op.outputs) outputs.push_back({locate(pass.tensors[t])});
  for (const uint32_t p : op.parameters) {
    const SegmentParameter& parameter = segment.parameters[p];
    const uint64_t offset =
        plan_.model.groups[use.groups[parameter.slot]].parameters[parameter.parameter].offset;
    parameters.push_back({operand_at(Role::weights, static_cast<uint32_t>(parameter.slot)) +
                          offset * dtype_bytes(plan.precision)});
    if (step.pass == Pass::forward) continue;
    const uint32_t n = plan.trains(parameter.slot, p) ? operands.accumulators[parameter.slot] : kNone;
    const uint32_t k = nth(in, Role::accumulator, n);
    std::byte* const gradient = k == kNone ? nullptr : address(in, k, rings) + offset * sizeof(float);
    const bool overwritten =
        step.overwrites[parameter_gradients.size()] && k != kNone && in.operands[k].access == Access::write;
    parameter_gradients.push_back({gradient, overwritten ? nullptr : gradient});
  }
  OpCall call;
  call.shapes = &plan.shapes[step.op];
  call.workspace = workspace ? workspace + step.workspace_offset : nullptr;
  const Buffer* const picked = picked_buffer(in);
  const int64_t expert = picked ? *picked_part(in, *picked) : use.expert;
  call.layer = use.layer;
  if (step.pass == Pass::backward) {
    const auto gradient = [&](uint32_t t) { return t == kNone ? nullptr : locate(pass.gradients[t]); };
    for (const uint32_t t : step.output_gradients) output_gradients.push_back({gradient(t)});
    for (size_t i = 0; i < op.inputs.size(); ++i)
      input_gradients.push_back(step.wants_gradient[i]
                                    ? TensorView{gradient(op.inputs[i]), gradient(step.addends[i])}
                                    : TensorView{});
    if (const auto* const input = operand<const StepScalars::Input>(in, rings, Role::input_scalars)) {
      call.loss_scale = &operand<const StepScalars::Update>(in, rings, Role::previous_update)->loss_scale;
      call.valid_tokens = &input->valid_tokens;
    }
  }
  call.inputs = inputs, call.outputs = outputs, call.parameters = parameters;
  call.output_gradients = output_gradients, call.input_gradients = input_gradients;
  call.parameter_gradients = parameter_gradients;
  try {
    for (uint32_t part = 0; part < op.parts.count; ++part) {
      if (part > 0) shift_to_next_part(segment, op, *call.shapes);
      call.expert = expert + of_rank(op, part) * op.attributes.routing.of_rank();
      if (step.pass == Pass::forward)
        device_.forward(call);
      else
        device_.backward(call);
    }
  } catch (const Error& error) {
    throw error.with_clause("seen in " + op_text(*call.shapes, step.pass));
  }
}

// The place of the rank that has the expert of this part of the op. If the op divides its input rows, the
// rows came from other ranks, and this rank has the expert. Otherwise there is a part for each rank.
int64_t Runner::of_rank(const Op& op, uint32_t part) const {
  const bool here = (op.parts.inputs & 1) != 0;
  return here ? op.attributes.routing.over.place_of(static_cast<uint32_t>(ranks_.rank())) : part;
}

// Moves the views of divided tensors to the next part. That part adds to the gradients of the other tensors.
void Runner::shift_to_next_part(const Segment& segment, const Op& op, const OpShapes& shapes) {
  auto& [inputs, outputs, parameters, output_gradients, input_gradients, parameter_gradients] = views_;
  const auto shift = [](TensorView& view, uint64_t bytes) {
    if (view.data) view.data = static_cast<std::byte*>(view.data) + bytes;
    if (view.addend) view.addend = static_cast<const std::byte*>(view.addend) + bytes;
  };
  const auto bytes_of_part = [&](const Shape& shape, uint32_t tensor) {
    return static_cast<uint64_t>(element_count(shape)) * dtype_bytes(segment.tensors[tensor].dtype);
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool divided = (op.parts.inputs >> i & 1) != 0;
    const uint64_t bytes = divided ? bytes_of_part(shapes.inputs[i], op.inputs[i]) : 0;
    shift(inputs[i], bytes);
    if (i >= input_gradients.size()) continue;
    if (divided)
      shift(input_gradients[i], bytes);
    else
      input_gradients[i].addend = input_gradients[i].data;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool divided = (op.parts.outputs >> i & 1) != 0;
    const uint64_t bytes = divided ? bytes_of_part(shapes.outputs[i], op.outputs[i]) : 0;
    shift(outputs[i], bytes);
    if (i < output_gradients.size()) shift(output_gradients[i], bytes);
  }
  for (TensorView& gradient : parameter_gradients) gradient.addend = gradient.data;
}

}  // namespace sluice
