// What users of a lowering ask of it.
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
  SegmentOperands o;
  const bool backward = is_backward(kind);
  const SegmentPasses& passes = plan.at(level);
  for (size_t i = 0; i < segment.inputs.size(); ++i)
    o.inputs.push_back(!backward || passes.reads_input[i] ? o.count++ : kNone);
  for (size_t i = 0; i < plan.wanted.trainable.size(); ++i) o.weights.push_back(o.count++);
  for (size_t i = 0; i < segment.outputs.size(); ++i)
    o.outputs.push_back(!backward || passes.reads_output[i] ? o.count++ : kNone);
  if (passes.saved_bytes) o.saved = o.count++;
  if (backward) {
    for (const bool has : plan.has_output_gradient) o.output_gradients.push_back(has ? o.count++ : kNone);
    for (const bool wanted : plan.wanted.inputs) o.input_gradients.push_back(wanted ? o.count++ : kNone);
    for (const bool trained : plan.wanted.trainable) o.accumulators.push_back(trained ? o.count++ : kNone);
  }
  if ((backward ? passes.backward : passes.forward).workspace_bytes) o.workspace = o.count++;
  if (segment.loss) o.loss = o.count++;
  if (segment.loss && backward) {
    o.input_scalars = o.count++;
    o.update_scalars = o.count++;
  }
  return o;
}

BufferId input_buffer(const Model& model, const Lowering& lowering, std::string_view name) {
  return lowering.inputs[model_input(model, name)];
}

BufferId output_buffer(const Model& model, const Lowering& lowering, std::string_view name) {
  return lowering.outputs[model_output(model, name)];
}

}  // namespace sluice
