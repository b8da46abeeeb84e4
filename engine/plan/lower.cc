#include "engine/plan/lower.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "engine/pack.h"
#include "engine/plan/body_builder.h"
#include "engine/plan/lower_buffers.h"

namespace sluice {

namespace {

class Lowerer {
 public:
  Lowerer(const Model& model, const LowerOptions& options, Program& program)
      : model_(model), options_(options), program_(program) {}

  Lowering run() {
    if (options_.batch <= 0 || options_.batch % model_.micro_batch != 0)
      throw std::invalid_argument("the batch is not a multiple of the micro-batch");
    out_.slices = static_cast<uint32_t>(options_.batch / model_.micro_batch);
    out_.ranks = options_.ranks;
    out_.zero_stage = options_.zero_stage;
    program_.rings = {"train", "validation"};
    buffers_ = make_buffers(model_, options_, program_, out_);
    lower_load();
    lower_training();
    if (options_.evaluate) lower_evaluate();
    lower_save();
    for (Body& body : program_.bodies)
      for (size_t i = 0; i < program_.bodies.size(); ++i)
        if (program_.bodies[i].end == body.start) body.predecessors.push_back(static_cast<BodyId>(i));
    return std::move(out_);
  }

 private:
  const SegmentUse& use(uint32_t u) const {
    return model_.layers[out_.uses[u].layer].segments[out_.uses[u].position];
  }
  const Segment& segment(uint32_t u) const { return model_.segments[use(u).segment]; }
  const SegmentPlan& plan(uint32_t u) const { return out_.plans[out_.uses[u].plan]; }
  uint32_t use_count() const { return static_cast<uint32_t>(out_.uses.size()); }
  bool keeps(uint32_t u) const { return !out_.uses[u].recompute; }
  // Frozen layers below all trainable ones have no backward.
  bool has_backward(uint32_t u) const { return any(plan(u).input_gradient) || any(plan(u).trainable); }

  void add_workspace(BodyBuilder& body, Task& t, uint64_t bytes) {
    if (bytes == 0) return;
    const uint64_t rounded = round_up(bytes, kPieceAlignment);
    const auto [it, fresh] = workspaces_.try_emplace(rounded, kNone);
    if (fresh)
      it->second = add_flat_buffer(program_, "k." + std::to_string(rounded), BufferClass::workspace, rounded);
    body.add(t, it->second, Access::write);
  }

  // What an activation is in a body: a slice's buffer, or a slice's piece of the token rings.
  void add_activation(BodyBuilder& body, Task& t, uint32_t a, uint32_t m, Access access, bool validation) {
    switch (model_.activations[a].source) {
      case ActivationSource::segment:
        return body.add(t, buffers_.activations[a][m], access);
      case ActivationSource::tokens:
        return body.add(t, validation ? out_.validation_tokens : out_.tokens, m, m + 1, access);
      case ActivationSource::labels:
        return body.add(t, validation ? out_.validation_labels : out_.labels, m, m + 1, access);
    }
  }

  void lower_forward(BodyBuilder& body, uint32_t u, uint32_t m, bool validation) {
    const bool saves = !validation && keeps(u);
    const PassPlan& pass = saves ? plan(u).forward : plan(u).forward_discarding;
    Task& t = body.task(TaskKind::forward, u, m);
    t.flops = pass.flops;
    t.bytes = pass.bytes;
    for (const uint32_t a : use(u).inputs) add_activation(body, t, a, m, Access::read, validation);
    for (const uint32_t g : use(u).groups) body.add(t, out_.groups[g].forward_weights, Access::read);
    for (const uint32_t a : use(u).outputs) add_activation(body, t, a, m, Access::write, validation);
    if (saves && !buffers_.saved[u].empty()) body.add(t, buffers_.saved[u][m], Access::write);
    add_workspace(body, t, pass.workspace_bytes);
    if (segment(u).loss) body.add(t, out_.validation_loss, write_or_add(body, out_.validation_loss));
  }

  void lower_backward(BodyBuilder& body, uint32_t u, uint32_t m) {
    const SegmentPlan& p = plan(u);
    const bool again = out_.uses[u].recompute;
    const PassPlan& pass = again ? p.backward_recomputing : p.backward_keeping;
    const std::vector<bool>& reads = again ? p.backward_reads_input_recomputing : p.backward_reads_input;
    Task& t = body.task(TaskKind::backward, u, m);
    t.recompute = again;
    t.flops = pass.flops;
    t.bytes = pass.bytes;
    for (size_t i = 0; i < reads.size(); ++i)
      if (reads[i]) add_activation(body, t, use(u).inputs[i], m, Access::read, false);
    for (const uint32_t g : use(u).groups) body.add(t, out_.groups[g].backward_weights, Access::read);
    for (size_t i = 0; i < use(u).outputs.size(); ++i)
      if (!again && p.backward_reads_output[i])
        add_activation(body, t, use(u).outputs[i], m, Access::read, false);
    if (!again && !buffers_.saved[u].empty()) body.add(t, buffers_.saved[u][m], Access::read);
    add_gradients(body, t, u, m);
    add_workspace(body, t, pass.workspace_bytes);
    if (!segment(u).loss) return;
    body.add(t, out_.scalars, kScalarLoss, kScalarLoss + 1, write_or_add(body, out_.scalars, kScalarLoss));
    body.add(t, out_.scalars, kScalarInput, kScalarInput + 1, Access::read);
    body.add(t, out_.scalars, kScalarUpdate, kScalarUpdate + 1, Access::read, 1);
  }

  void add_gradients(BodyBuilder& body, Task& t, uint32_t u, uint32_t m) {
    const SegmentPlan& p = plan(u);
    for (size_t i = 0; i < use(u).outputs.size(); ++i) {
      const uint32_t a = use(u).outputs[i];
      if (!body.written(buffers_.gradients[a][m]))
        throw std::invalid_argument("activation " + model_.activations[a].name + " does not reach the loss");
      body.add(t, buffers_.gradients[a][m], p.output_gradient_added[i] ? Access::add : Access::read);
    }
    for (size_t i = 0; i < p.input_gradient.size(); ++i) {
      if (!p.input_gradient[i]) continue;
      const BufferId gradient = buffers_.gradients[use(u).inputs[i]][m];
      body.add(t, gradient, write_or_add(body, gradient));
    }
    for (const uint32_t g : use(u).groups) {
      if (!model_.groups[g].trainable) continue;
      const BufferId accumulator = out_.groups[g].accumulator;
      body.add(t, accumulator, write_or_add(body, accumulator));
    }
  }

  static Access write_or_add(const BodyBuilder& body, BufferId b, uint32_t piece = 0) {
    return body.written(b, piece) ? Access::add : Access::write;
  }

  void lower_optimize(BodyBuilder& body, uint32_t g, uint32_t shard, uint8_t back) {
    const GroupBuffers& b = out_.groups[g];
    const uint64_t elements = out_.updated_elements(g, shard), width = dtype_bytes(model_.precision);
    const bool in_place = model_.precision == DType::f32;  // the weights are the master
    Task& t = body.task(TaskKind::optimize, g, shard);
    t.bytes = elements * (8 * options_.optimizer.planes + (in_place ? 3 : 2) * width);
    body.add(t, b.state[shard], Access::add);
    body.add(t, b.gradient, shard, shard + 1, Access::read);
    body.add(t, out_.scalars, kScalarUpdate, kScalarUpdate + 1, Access::read, back);
    body.add(t, b.weights, shard, shard + 1, in_place ? Access::add : Access::write);
    lower_gather_updated(body, g, shard);
  }
  void lower_optimize_group(BodyBuilder& body, uint32_t g, uint8_t back) {
    for (uint32_t k = 0; k < out_.groups[g].state.size(); ++k) lower_optimize(body, g, k, back);
  }

  void count_operand_bytes(Task& t) const {
    for (const Operand& o : t.operands) t.bytes += operand_bytes(program_.buffers[o.buffer], o);
  }

  // One piece of a buffer to the same piece of another.
  void lower_piece(BodyBuilder& body, TaskKind kind, uint32_t g, uint32_t shard, BufferId from, BufferId to) {
    Task& t = body.task(kind, g, shard);
    body.add(t, from, shard, shard + 1, Access::read);
    body.add(t, to, shard, shard + 1, Access::write);
    count_operand_bytes(t);
  }

  // From the accumulator to the gradient, rounded, and summed up over ranks.
  void lower_round(BodyBuilder& body, uint32_t g, uint32_t shard) {
    const GroupBuffers& b = out_.groups[g];
    const bool alone = out_.ranks == 1;
    if (!alone) {
      lower_piece(body, TaskKind::round, g, shard, b.accumulator, b.rounded);
      lower_piece(body, TaskKind::exchange, g, shard, b.rounded, b.received);
    }
    Task& t = body.task(alone ? TaskKind::round : TaskKind::sum, g, shard);
    body.add(t, alone ? b.accumulator : b.received, shard, shard + 1, Access::read);
    body.add(t, b.summed, shard, shard + 1, Access::write);
    count_operand_bytes(t);
    body.add(t, b.block_sums, shard, shard + 1, Access::write);
    if (b.summed != b.gradient) lower_piece(body, TaskKind::gather, g, shard, b.summed, b.gradient);
  }

  void lower_gather_sums(BodyBuilder& body, uint32_t g) {
    const GroupBuffers& b = out_.groups[g];
    if (b.all_block_sums == b.block_sums) return;
    Task& t = body.task(TaskKind::gather, g, 0);
    body.add(t, b.block_sums, Access::read);
    body.add(t, b.all_block_sums, Access::write);
    count_operand_bytes(t);
  }

  // Where weights are shared: whole ones, once for all uses that read `whole` in this body.
  void lower_gather_weights(BodyBuilder& body, uint32_t g, BufferId whole) {
    if (!out_.shares_weights() || body.written(whole)) return;
    const GroupBuffers& b = out_.groups[g];
    for (uint32_t k = 0; k + 1 < b.shards.size(); ++k)
      lower_piece(body, TaskKind::gather, g, k, b.weights, whole);
  }
  // Where only state is: after the owner has written its part.
  void lower_gather_updated(BodyBuilder& body, uint32_t g, uint32_t shard) {
    const GroupBuffers& b = out_.groups[g];
    if (out_.shares_state() && !out_.shares_weights())
      lower_piece(body, TaskKind::gather, g, shard, b.weights, b.forward_weights);
  }

  void lower_norm(BodyBuilder& body) {
    Task& t = body.task(TaskKind::norm, 0, 0);
    for (const GroupBuffers& b : out_.groups) {
      if (b.all_block_sums == kNone) continue;
      body.add(t, b.all_block_sums, Access::read);
      t.bytes += program_.buffers[b.all_block_sums].bytes();
    }
    body.add(t, out_.scalars, kScalarUpdate, kScalarUpdate + 1, Access::read, 1);
    body.add(t, out_.scalars, kScalarNorm, kScalarNorm + 1, Access::write);
  }

  void lower_set_scalars(BodyBuilder& body, bool after_norm) {
    Task& t = body.task(TaskKind::set_scalars, 0, 0);
    body.add(t, out_.scalars, kScalarInput, kScalarInput + 1, Access::read);
    body.add(t, out_.scalars, kScalarUpdate, kScalarUpdate + 1, Access::read, 1);
    body.add(t, out_.scalars, kScalarUpdate, kScalarUpdate + 1, Access::write);
    if (after_norm) body.add(t, out_.scalars, kScalarNorm, kScalarNorm + 1, Access::read);
  }

  // (use, slice) in loop order: all slices of a layer before the next layer, or all layers of a slice before
  // the next.
  template <typename Visit>
  void for_each_forward(const Visit& visit) const {
    for (uint32_t begin = 0, end; begin < use_count(); begin = end) {
      end = begin + 1;
      while (end < use_count() && same_block(end, begin)) ++end;
      for (uint32_t m = 0; m < out_.slices; ++m)
        for (uint32_t u = begin; u < end; ++u) visit(u, m);
    }
  }
  template <typename Visit>
  void for_each_backward(const Visit& visit) const {
    for (uint32_t end = use_count(), begin; end > 0; end = begin) {
      begin = end - 1;
      while (begin > 0 && same_block(begin - 1, end - 1)) --begin;
      for (uint32_t m = 0; m < out_.slices; ++m)
        for (uint32_t u = end; u-- > begin;) visit(u, m);
    }
  }
  bool same_block(uint32_t a, uint32_t b) const {
    return options_.order == LoopOrder::slice_major || out_.uses[a].layer == out_.uses[b].layer;
  }

  void lower_training() {
    if (!options_.update_waits_for_norm) {
      out_.bodies.first = out_.bodies.step = training_body("step", BodyState::clean, BodyState::clean);
      return;
    }
    out_.bodies.first = training_body("first", BodyState::clean, BodyState::pending);
    out_.bodies.step = training_body("step", BodyState::pending, BodyState::pending);
    BodyBuilder drain(program_, "drain", BodyState::pending, BodyState::clean);
    for (uint32_t g = 0; g < model_.groups.size(); ++g)
      if (model_.groups[g].trainable) lower_optimize_group(drain, g, 0);
    out_.bodies.drain = drain.finish();
  }

  // How many backward tasks contribute to each group's gradient.
  std::vector<uint32_t> contributions() const {
    std::vector<uint32_t> count(model_.groups.size());
    for (uint32_t u = 0; u < use_count(); ++u)
      if (has_backward(u))
        for (const uint32_t g : use(u).groups) count[g] += out_.slices;
    return count;
  }

  BodyId training_body(const char* name, BodyState start, BodyState end) {
    BodyBuilder body(program_, name, start, end);
    body.advance(kTrainRing);
    if (!options_.update_waits_for_norm) lower_set_scalars(body, false);
    std::vector<bool> updated(model_.groups.size(), start != BodyState::pending);
    for_each_forward([&](uint32_t u, uint32_t m) {
      for (const uint32_t g : use(u).groups) {
        if (!updated[g] && model_.groups[g].trainable) lower_optimize_group(body, g, 1);
        updated[g] = true;
      }
      if (segment(u).loss) return;
      for (const uint32_t g : use(u).groups) lower_gather_weights(body, g, out_.groups[g].forward_weights);
      lower_forward(body, u, m, false);
    });
    std::vector<uint32_t> missing = contributions();
    for_each_backward([&](uint32_t u, uint32_t m) {
      if (!has_backward(u)) return;
      for (const uint32_t g : use(u).groups) lower_gather_weights(body, g, out_.groups[g].backward_weights);
      lower_backward(body, u, m);
      for (const uint32_t g : use(u).groups)
        if (model_.groups[g].trainable && --missing[g] == 0) finish_gradient(body, g);
    });
    lower_norm(body);
    if (options_.update_waits_for_norm) lower_set_scalars(body, true);
    return body.finish();
  }

  void finish_gradient(BodyBuilder& body, uint32_t g) {
    for (uint32_t k = 0; k < out_.groups[g].state.size(); ++k) {
      lower_round(body, g, k);
      if (!options_.update_waits_for_norm) lower_optimize(body, g, k, 0);
    }
    lower_gather_sums(body, g);
  }

  void lower_evaluate() {
    BodyBuilder body(program_, "evaluate", BodyState::clean, BodyState::clean);
    body.advance(kValidationRing);
    for_each_forward([&](uint32_t u, uint32_t m) {
      for (const uint32_t g : use(u).groups) lower_gather_weights(body, g, out_.groups[g].forward_weights);
      lower_forward(body, u, m, true);
    });
    out_.bodies.evaluate = body.finish();
  }

  template <typename AddOperands>
  BodyId shard_body(const char* name, BodyState start, TaskKind kind, const AddOperands& add_operands) {
    BodyBuilder body(program_, name, start, BodyState::clean);
    for (uint32_t g = 0; g < model_.groups.size(); ++g)
      for (uint32_t k = 0; k + 1 < out_.groups[g].shards.size(); ++k) {
        Task& t = body.task(kind, g, k);
        add_operands(body, t, g, k);
        count_operand_bytes(t);
        if (kind == TaskKind::load) lower_gather_updated(body, g, k);
      }
    return body.finish();
  }
  void lower_load() {
    const auto operands = [&](BodyBuilder& body, Task& t, uint32_t g, uint32_t k) {
      if (model_.groups[g].trainable) body.add(t, out_.groups[g].state[k], Access::write);
      body.add(t, out_.groups[g].weights, k, k + 1, Access::write);
    };
    out_.bodies.load = shard_body("load", BodyState::empty, TaskKind::load, operands);
  }
  void lower_save() {
    const auto operands = [&](BodyBuilder& body, Task& t, uint32_t g, uint32_t k) {
      const bool trainable = model_.groups[g].trainable;
      if (trainable) body.add(t, out_.groups[g].state[k], Access::read);
      if (!trainable || model_.precision == DType::f32)
        body.add(t, out_.groups[g].weights, k, k + 1, Access::read);
    };
    out_.bodies.save = shard_body("save", BodyState::clean, TaskKind::save, operands);
  }

  const Model& model_;
  const LowerOptions& options_;
  Program& program_;
  Lowering out_;
  SliceBuffers buffers_;
  std::map<uint64_t, BufferId> workspaces_;  // by bytes
};

}  // namespace

SegmentOperands segment_operands(const SegmentPlan& plan, const Segment& segment, TaskKind kind,
                                 bool recompute, bool saves) {
  SegmentOperands o;
  const bool backward = kind == TaskKind::backward;
  const PassPlan& pass = backward ? (recompute ? plan.backward_recomputing : plan.backward_keeping)
                                  : (saves ? plan.forward : plan.forward_discarding);
  const std::vector<bool>& reads =
      recompute ? plan.backward_reads_input_recomputing : plan.backward_reads_input;
  for (size_t i = 0; i < segment.inputs.size(); ++i)
    o.inputs.push_back(!backward || reads[i] ? o.count++ : kNone);
  for (size_t i = 0; i < plan.trainable.size(); ++i) o.weights.push_back(o.count++);
  for (size_t i = 0; i < segment.outputs.size(); ++i)
    o.outputs.push_back(!backward || (!recompute && plan.backward_reads_output[i]) ? o.count++ : kNone);
  if (plan.saved_bytes && (backward ? !recompute : saves)) o.saved = o.count++;
  if (backward) {
    for (size_t i = 0; i < segment.outputs.size(); ++i) o.output_gradients.push_back(o.count++);
    for (const bool wanted : plan.input_gradient) o.input_gradients.push_back(wanted ? o.count++ : kNone);
    for (const bool trained : plan.trainable) o.accumulators.push_back(trained ? o.count++ : kNone);
  }
  if (pass.workspace_bytes) o.workspace = o.count++;
  if (segment.loss) o.loss = o.count++;
  if (segment.loss && backward) {
    o.input_scalars = o.count++;
    o.update_scalars = o.count++;
  }
  return o;
}

Lowering lower(const Model& model, const LowerOptions& options, Program& program) {
  return Lowerer(model, options, program).run();
}

}  // namespace sluice
