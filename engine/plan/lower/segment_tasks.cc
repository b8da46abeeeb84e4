#include "engine/plan/lower/segment_tasks.h"

#include <stdexcept>
#include <string>

#include "engine/base/pack.h"
#include "engine/plan/lower/ranks.h"

namespace sluice {

namespace {

// Returns how a task accesses a sum over a step. The first task of the step's first wave writes the sum, and
// all other tasks add to it.
Access write_or_add(const BodyBuilder& body, Wave wave, BufferId b, uint32_t piece = 0) {
  return wave.first && !body.written(b, piece) ? Access::write : Access::add;
}

}  // namespace

void SegmentTasks::add_workspace(BodyBuilder& body, Task& t, uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t rounded = round_up(bytes, kPieceAlignment);
  const bool between_ranks = is_collective(t.kind);
  const auto [it, fresh] = workspaces_.try_emplace({between_ranks, rounded}, kNone);
  const std::string name = (between_ranks ? "kt." : "k.") + std::to_string(rounded);
  if (fresh) it->second = add_flat_buffer(program_, name, BufferClass::workspace, rounded);
  body.add(t, Role::workspace, it->second, Access::write);
}

// `part` is PickedUse::part. A place has more rows than an expert has on average, since the places together
// have the rows of all experts.
void SegmentTasks::add_cost(Task& t, const PassPlan& pass, double part) {
  const auto [it, fresh] = passes_.try_emplace({&pass, part}, static_cast<uint32_t>(program_.passes.size()));
  if (fresh) {
    program_.passes.push_back(pass.work);
    for (OpWork& work : program_.passes.back().ops) work.flops /= part;
  }
  t.pass = it->second;
  t.flops = pass.flops / part;
  t.bytes = pass.bytes;
}

// An input is a buffer of the micro-batch, or a piece of what a wave brings from the host. A kept activation
// is read and updated.
void SegmentTasks::add_input(BodyBuilder& body, Task& t, uint32_t u, size_t input, uint32_t m) {
  const uint32_t a = use(u).inputs[input];
  const Activation& x = model_.activations[a];
  if (x.input) return body.add(t, Role::input, out_.inputs[a], m, m + 1, Access::read);
  body.add(t, Role::input, buffers_.activations[a][m], x.kept ? Access::add : Access::read);
  t.operands.back().by_host = segment(u).is_for_host(input);
}

// An activation that the host reads is a piece of what a wave brings to the host.
void SegmentTasks::add_output(BodyBuilder& body, Task& t, uint32_t a, uint32_t m, Access access) {
  if (model_.activations[a].output) return body.add(t, Role::output, out_.outputs[a], m, m + 1, access);
  body.add(t, Role::output, buffers_.activations[a][m], access);
}

Task& SegmentTasks::task(BodyBuilder& body, uint32_t u, uint32_t m, Pass pass) {
  const bool back = pass == Pass::backward;
  if (!segment(u).is_between_ranks()) return body.task(back ? TaskKind::backward : TaskKind::forward, u, m);
  Task& t = body.task(back ? TaskKind::travel_back : TaskKind::travel, u, m);
  t.processes = process_group(segment(u).among(), program_);
  return t;
}

void SegmentTasks::forward(BodyBuilder& body, uint32_t u, uint32_t m, Recompute level, Wave wave) {
  const PassPlan& pass = plan(u).at(level).forward;
  Task& t = task(body, u, m, Pass::forward);
  t.recompute = level;
  add_cost(t, pass, buffers_.picked[u].part);
  for (size_t i = 0; i < use(u).inputs.size(); ++i) add_input(body, t, u, i, m);
  const PickedUse& picked = buffers_.picked[u];
  for (size_t slot = 0; slot < use(u).groups.size(); ++slot) {
    const GroupBuffers& g = group(use(u).groups[slot]);
    if (picked.weights.empty())
      body.add(t, Role::weights, g.forward.whole, g.first_piece, g.first_piece + g.pieces(), Access::read);
    else
      body.add(t, Role::weights, picked.weights[slot], Access::read);
  }
  for (const uint32_t a : use(u).outputs) {
    const Activation& x = model_.activations[a];
    const bool more =
        x.sum && (x.output ? body.written(out_.outputs[a], m) : body.written(buffers_.activations[a][m]));
    add_output(body, t, a, m, more ? Access::add : Access::write);
  }
  if (plan(u).at(level).saved_bytes) body.add(t, Role::saved, buffers_.saved[u][m], Access::write);
  add_workspace(body, t, pass.workspace_bytes);
  if (segment(u).loss)
    body.add(t, Role::loss, out_.validation_loss, write_or_add(body, wave, out_.validation_loss));
  if (picked.index == kNone) return;
  body.add(t, Role::index, picked.index, Access::read);
  t.operands.back().by_host = true;
}

void SegmentTasks::backward(BodyBuilder& body, uint32_t u, uint32_t m, Wave wave) {
  const SegmentPasses& passes = plan(u).at(out_.uses[u].recompute);
  Task& t = task(body, u, m, Pass::backward);
  t.recompute = out_.uses[u].recompute;
  add_cost(t, passes.backward, 1);
  for (size_t i = 0; i < use(u).inputs.size(); ++i)
    if (passes.reads_input[i]) add_input(body, t, u, i, m);
  for (const uint32_t g : use(u).groups) body.add(t, Role::weights, group(g).backward.whole, Access::read);
  for (size_t i = 0; i < use(u).outputs.size(); ++i)
    if (passes.reads_output[i]) add_output(body, t, use(u).outputs[i], m, Access::read);
  if (passes.saved_bytes) body.add(t, Role::saved, buffers_.saved[u][m], Access::read);
  add_gradients(body, t, u, m, wave);
  add_workspace(body, t, passes.backward.workspace_bytes);
  if (!segment(u).loss) return;
  body.add(t, Role::loss, out_.scalars, kScalarLoss, kScalarLoss + 1,
           write_or_add(body, wave, out_.scalars, kScalarLoss));
  body.add(t, Role::input_scalars, out_.scalars, kScalarInput, kScalarInput + 1, Access::read);
  body.add(t, Role::previous_update, out_.scalars, kScalarUpdate, kScalarUpdate + 1, Access::read, 1);
}

void SegmentTasks::add_gradients(BodyBuilder& body, Task& t, uint32_t u, uint32_t m, Wave wave) {
  const SegmentPlan& p = plan(u);
  for (size_t i = 0; i < use(u).outputs.size(); ++i) {
    const uint32_t a = use(u).outputs[i];
    if (!p.has_output_gradient[i]) continue;
    if (!body.written(buffers_.gradients[a][m]))
      throw std::invalid_argument("activation " + model_.activations[a].name + " does not reach the loss");
    body.add(t, Role::output_gradient, buffers_.gradients[a][m],
             p.output_gradient_added[i] ? Access::add : Access::read);
  }
  for (size_t i = 0; i < p.wanted.inputs.size(); ++i)
    if (p.wanted.inputs[i])
      body.add(t, Role::input_gradient, buffers_.gradients[use(u).inputs[i]][m],
               p.wanted.added[i] ? Access::add : Access::write);
  for (size_t slot = 0; slot < use(u).groups.size(); ++slot) {
    const uint32_t g = use(u).groups[slot];
    if (!model_.groups[g].trainable) continue;
    const BufferId accumulator = group(g).accumulators[uses_.kinds[u][slot]];
    body.add(t, Role::accumulator, accumulator, write_or_add(body, wave, accumulator));
  }
}

}  // namespace sluice
