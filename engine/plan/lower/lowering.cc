// Look-ups in a lowering, for its users (lower.h).
#include "engine/plan/lower/lower.h"

namespace sluice {

std::vector<BodyId> BodyIds::of_training() const {
  std::vector<BodyId> bodies;
  for (const std::optional<BodyId>& body :
       {first, step, guess, repair, plain.middle, plain.last, guessing.middle, guessing.last, drain, unlock})
    if (body) bodies.push_back(*body);
  return bodies;
}

SegmentOperands segment_operands(const SegmentPlan& plan, const Segment& segment, TaskKind kind,
                                 Recompute level) {
  const auto numbers = [](const std::vector<bool>& has) {
    std::vector<uint32_t> of;
    uint32_t count = 0;
    for (const bool one : has) of.push_back(one ? count++ : kNone);
    return of;
  };
  const auto all = [&](size_t count) { return numbers(std::vector<bool>(count, true)); };
  if (!is_backward(kind)) return {all(segment.inputs.size()), all(segment.outputs.size()), {}, {}, {}};
  const SegmentPasses& passes = plan.at(level);
  return {numbers(passes.reads_input), numbers(passes.reads_output), numbers(plan.has_output_gradient),
          numbers(plan.wanted.inputs), numbers(plan.wanted.trainable)};
}

BufferId input_buffer(const Model& model, const Lowering& lowering, std::string_view name) {
  return lowering.inputs[model_input(model, name)];
}

BufferId output_buffer(const Model& model, const Lowering& lowering, std::string_view name) {
  return lowering.outputs[model_output(model, name)];
}

}  // namespace sluice
