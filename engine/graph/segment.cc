// 1. Which tensors carry a gradient. Such a tensor depends on a trainable parameter or on an input whose
//    gradient is wanted, and a loss, or an output that may get a gradient, depends on it.
// 2. Which tensors backward reads (the op table says). Of these tensors, a level makes again the outputs of
//    its own ops and of lower levels' ops, if all inputs of the op are inputs of the segment, kept, or made
//    again too. The other tensors that backward reads are kept: `saved`, unless they are inputs or outputs of
//    the segment.
// 3. Forward steps: all ops. Backward begins with forward steps that run again: those of the ops on which the
//    tensors that are made again depend, back to what is kept.
// 4. Backward steps: ops in reverse; the first contribution to a gradient writes, later ones add. Where an op
//    passes its gradient on, nothing is written: the input's gradient lies where the output's does, until a
//    later contribution writes the sum to the input's own place. A parameter's gradient may only be written
//    by the first contribution of a step's first micro-batch.
// 5. Inner tensors live from their first to their last step; pack() gives them offsets.
#include "engine/graph/segment.h"

#include <algorithm>
#include <bit>

#include "engine/base/error.h"
#include "engine/base/pack.h"
#include "engine/graph/routing.h"

namespace sluice {

namespace {

constexpr bool in_mask(uint32_t mask, size_t i) { return (mask >> i & 1u) != 0; }

class Compiler {
 public:
  Compiler(const Segment& segment, SegmentPlan& plan, const WorkspaceBytes& workspace_bytes)
      : segment_(segment),
        plan_(plan),
        workspace_bytes_(workspace_bytes),
        reaches_loss_(segment.tensors.size()),
        carries_gradient_(segment.tensors.size()),
        read_by_backward_(segment.tensors.size()) {}

  void run() {
    find_what_reaches_the_loss();
    find_gradients();
    find_reads();
    for (const uint32_t t : segment_.outputs) plan_.has_output_gradient.push_back(carries_gradient_[t]);
    for (const Recompute level : kRecomputes) {
      SegmentPasses& passes = plan_.levels[static_cast<size_t>(level)];
      find_kept(level);
      passes.saved_bytes = place_saved();
      passes.forward = forward_pass();
      passes.backward = backward_pass(made_again(), passes);
    }
  }

 private:
  uint64_t bytes_of(uint32_t tensor) const {
    const SegmentTensor& t = segment_.tensors[tensor];
    return round_up(static_cast<uint64_t>(element_count(t.shape)) * dtype_bytes(t.dtype), kTensorAlignment);
  }
  bool is_loss(uint32_t tensor) const {
    return segment_.loss && segment_.tensors[tensor].dtype == DType::f64;
  }
  bool trains_parameter(const Op& op) const {
    return std::any_of(op.parameters.begin(), op.parameters.end(),
                       [&](uint32_t p) { return plan_.trains(segment_.parameters[p].slot, p); });
  }
  bool reaches_loss(const Op& op) const {
    return op_rule(op.kind).is_loss ||
           std::any_of(op.outputs.begin(), op.outputs.end(), [&](uint32_t t) { return reaches_loss_[t]; });
  }
  bool has_backward(const Op& op) const {
    if (!reaches_loss(op)) return false;
    const OpRule& r = op_rule(op.kind);
    if (trains_parameter(op)) return true;
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (in_mask(r.gradient_inputs, i) && carries_gradient_[op.inputs[i]]) return true;
    return false;
  }

  void find_what_reaches_the_loss() {
    for (size_t i = 0; i < segment_.outputs.size(); ++i)
      if (i >= plan_.wanted.host_only.size() || !plan_.wanted.host_only[i])
        reaches_loss_[segment_.outputs[i]] = true;
    for (size_t i = segment_.ops.size(); i-- > 0;)
      if (reaches_loss(segment_.ops[i]))
        for (const uint32_t t : segment_.ops[i].inputs) reaches_loss_[t] = true;
  }

  void find_gradients() {
    for (size_t i = 0; i < segment_.inputs.size(); ++i)
      carries_gradient_[segment_.inputs[i]] = plan_.wanted.inputs[i];
    for (const Op& op : segment_.ops) {
      if (!has_backward(op)) continue;
      for (size_t i = 0; i < op.outputs.size(); ++i)
        if (in_mask(op_rule(op.kind).gradient_outputs, i)) carries_gradient_[op.outputs[i]] = true;
    }
  }

  void find_reads() {
    for (const Op& op : segment_.ops) {
      if (!has_backward(op)) continue;
      const OpRule& r = op_rule(op.kind);
      for (size_t i = 0; i < op.inputs.size(); ++i)
        if (in_mask(r.backward_reads_inputs, i)) read_by_backward_[op.inputs[i]] = true;
      for (size_t i = 0; i < op.outputs.size(); ++i)
        if (in_mask(r.backward_reads_outputs, i)) read_by_backward_[op.outputs[i]] = true;
    }
  }

  void find_kept(Recompute level) {
    std::vector<bool> at_hand(segment_.tensors.size());  // kept, or can be made again
    for (const uint32_t t : segment_.inputs) at_hand[t] = true;
    kept_ = at_hand;
    for (const Op& op : segment_.ops) {
      const bool again =
          op_rule(op.kind).made_again <= level &&
          std::all_of(op.inputs.begin(), op.inputs.end(), [&](uint32_t t) { return at_hand[t]; });
      for (const uint32_t t : op.outputs) {
        kept_[t] = read_by_backward_[t] && !again;
        at_hand[t] = again || kept_[t];
      }
    }
  }

  // Returns the bytes of all saved tensors.
  uint64_t place_saved() {
    uint64_t offset = 0;
    saved_.assign(segment_.tensors.size(), UINT64_MAX);
    for (uint32_t t = 0; t < segment_.tensors.size(); ++t) {
      if (!kept_[t] || position(segment_.inputs, t) != kNone || position(segment_.outputs, t) != kNone)
        continue;
      saved_[t] = offset;
      offset += bytes_of(t);
    }
    return offset;
  }

  // The ops that backward runs again, in order.
  std::vector<uint32_t> made_again() const {
    std::vector<bool> wanted = read_by_backward_;
    std::vector<uint32_t> ops;
    for (uint32_t i = static_cast<uint32_t>(segment_.ops.size()); i-- > 0;) {
      const Op& op = segment_.ops[i];
      if (std::none_of(op.outputs.begin(), op.outputs.end(),
                       [&](uint32_t t) { return wanted[t] && !kept_[t]; }))
        continue;
      ops.insert(ops.begin(), i);
      for (const uint32_t t : op.inputs) wanted[t] = true;
    }
    return ops;
  }

  static uint32_t position(const std::vector<uint32_t>& list, uint32_t value) {
    const auto it = std::find(list.begin(), list.end(), value);
    return it == list.end() ? kNone : static_cast<uint32_t>(it - list.begin());
  }

  // Subtracts the work of gradients that are not wanted. In backward, an op that multiplies rows by a matrix
  // has one product for the gradient of the rows and one for the gradient of the matrix. Each product takes
  // two flops for each row and element of the matrix.
  void spare(const OpStep& step, OpWork& work) const {
    const OpShapes& shapes = plan_.shapes[step.op];
    const OpRule& rule = op_rule(shapes.kind);
    if (shapes.parameters.empty() || shapes.parameters[0].size() != 2 || rule.looks_up_rows) return;
    const auto x = static_cast<size_t>(std::countr_zero(rule.gradient_inputs));
    const auto all = static_cast<double>(shapes.inputs[x][0]);
    const double rows = rule.of_an_expert ? assumed_rows(shapes) : all;
    const double multiplied = rule.of_an_expert ? multiplied_rows(shapes) : all;
    const auto matrix = static_cast<uint64_t>(element_count(shapes.parameters[0]));
    const double product = 2 * multiplied * static_cast<double>(matrix);
    if (!trains_parameter(segment_.ops[step.op])) {
      work.flops -= product;
      work.bytes -= matrix * dtype_bytes(DType::f32);
    }
    if (!step.wants_gradient[x]) {
      work.flops -= product;
      work.bytes -= static_cast<uint64_t>(rows) * static_cast<uint64_t>(shapes.inputs[x][1]) *
                    dtype_bytes(shapes.precision);
    }
  }

  void add_step(PassPlan& pass, OpStep step) const {
    const OpShapes& shapes = plan_.shapes[step.op];
    OpWork work{shapes.kind, op_rule(shapes.kind).flops(shapes, step.pass), op_bytes(shapes, step.pass)};
    if (step.pass == Pass::backward) spare(step, work);
    const uint32_t parts = segment_.ops[step.op].parts.count;
    work.flops *= parts, work.bytes *= parts;
    pass.steps.push_back(std::move(step));
    std::vector<OpWork>& ops = pass.work.ops;
    const auto at = std::lower_bound(ops.begin(), ops.end(), work.kind,
                                     [](const OpWork& w, OpKind kind) { return w.kind < kind; });
    if (at == ops.end() || at->kind != work.kind) {
      ops.insert(at, work);
    } else {
      at->flops += work.flops;
      at->bytes += work.bytes;
    }
    pass.flops += work.flops;
    pass.bytes += work.bytes;
  }

  // A place in the workspace, over the steps that touch it. lay_out() packs these and the op workspaces.
  struct Life {
    TensorPlace* place;
    uint32_t tensor;
    PackItem item;
  };
  void touch(std::vector<Life>& lives, TensorPlace& place, uint32_t tensor, uint32_t step) const {
    if (place.storage != Storage::workspace) return;
    for (Life& life : lives)
      if (life.place == &place) {
        life.item.last = step;
        return;
      }
    lives.push_back({&place, tensor, {step, step, bytes_of(tensor)}});
  }
  void lay_out(PassPlan& pass, std::vector<Life>& lives) const {
    std::vector<PackItem> items;
    for (const Life& life : lives) items.push_back(life.item);
    for (uint32_t s = 0; s < pass.steps.size(); ++s)
      items.push_back(
          {s, s,
           round_up(op_workspace(plan_.shapes[pass.steps[s].op], pass.steps[s].pass), kTensorAlignment)});
    pass.workspace_bytes = pack(items, 0, UINT64_MAX);
    for (size_t i = 0; i < lives.size(); ++i) lives[i].place->offset = items[i].offset;
    for (size_t s = 0; s < pass.steps.size(); ++s)
      pass.steps[s].workspace_offset = items[lives.size() + s].offset;
  }

  uint64_t op_workspace(const OpShapes& shapes, Pass pass) const {
    return is_between_ranks(shapes.kind) ? workspace_between_ranks(shapes) : workspace_bytes_(shapes, pass);
  }

  PassPlan forward_pass() const {
    PassPlan pass;
    pass.tensors.resize(segment_.tensors.size());
    for (uint32_t t = 0; t < segment_.tensors.size(); ++t) {
      const uint32_t input = position(segment_.inputs, t), output = position(segment_.outputs, t);
      if (is_loss(t))
        pass.tensors[t] = {Storage::loss, 0, 0};
      else if (input != kNone)
        pass.tensors[t] = {Storage::input, input, 0};
      else if (output != kNone)
        pass.tensors[t] = {Storage::output, output, 0};
      else if (saved_[t] != UINT64_MAX)
        pass.tensors[t] = {Storage::saved, 0, saved_[t]};
      else
        pass.tensors[t] = {Storage::workspace, 0, 0};
    }
    std::vector<Life> lives;
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      add_step(pass, {i, Pass::forward, 0, {}, {}, {}, {}});
      for (const auto* list : {&segment_.ops[i].inputs, &segment_.ops[i].outputs})
        for (const uint32_t t : *list) touch(lives, pass.tensors[t], t, i);
    }
    lay_out(pass, lives);
    return pass;
  }

  // Sets the places of tensors in backward. Tensors that ops make again lie in the workspace, all others
  // where forward left them.
  void place_backward_tensors(PassPlan& pass, const std::vector<uint32_t>& again,
                              SegmentPasses& passes) const {
    pass.tensors.resize(segment_.tensors.size());
    pass.gradients.resize(segment_.tensors.size());
    std::vector<bool> read = read_by_backward_;
    for (const uint32_t i : again) {
      for (const uint32_t t : segment_.ops[i].outputs) pass.tensors[t].storage = Storage::workspace;
      for (const uint32_t t : segment_.ops[i].inputs) read[t] = true;
    }
    passes.reads_input.assign(segment_.inputs.size(), false);
    passes.reads_output.assign(segment_.outputs.size(), false);
    for (uint32_t t = 0; t < segment_.tensors.size(); ++t) {
      const uint32_t input = position(segment_.inputs, t), output = position(segment_.outputs, t);
      if (is_loss(t)) pass.tensors[t] = {Storage::loss, 0, 0};
      if (input != kNone) {
        passes.reads_input[input] = read[t];
        pass.tensors[t] = {read[t] ? Storage::input : Storage::none, input, 0};
      } else if (pass.tensors[t].storage != Storage::workspace && read[t]) {
        if (output != kNone) {
          passes.reads_output[output] = true;
          pass.tensors[t] = {Storage::output, output, 0};
        } else {
          pass.tensors[t] = {Storage::saved, 0, saved_[t]};
        }
      }
      if (!carries_gradient_[t]) continue;
      if (input != kNone)
        pass.gradients[t] = {Storage::input_gradient, input, 0};
      else if (output != kNone)
        pass.gradients[t] = {Storage::output_gradient, output, 0};
      else
        pass.gradients[t] = {Storage::workspace, 0, 0};
    }
  }

  PassPlan backward_pass(const std::vector<uint32_t>& again, SegmentPasses& passes) {
    PassPlan pass;
    place_backward_tensors(pass, again, passes);
    share_input_gradients(pass);
    std::vector<Life> lives;
    lives.reserve(2 * segment_.tensors.size());
    for (const uint32_t i : again) {
      const uint32_t step = static_cast<uint32_t>(pass.steps.size());
      add_step(pass, {i, Pass::forward, 0, {}, {}, {}, {}});
      for (const auto* list : {&segment_.ops[i].inputs, &segment_.ops[i].outputs})
        for (const uint32_t t : *list) touch(lives, pass.tensors[t], t, step);
    }
    Written written{std::vector<uint32_t>(segment_.tensors.size(), kNone),
                    std::vector<bool>(segment_.parameters.size())};
    for (const uint32_t t : segment_.outputs)
      if (carries_gradient_[t]) written.gradients[t] = t;
    for (size_t i = 0; i < segment_.inputs.size(); ++i)
      if (plan_.wanted.added[i]) written.gradients[segment_.inputs[i]] = segment_.inputs[i];
    plan_.output_gradient_added.assign(segment_.outputs.size(), false);
    for (uint32_t i = static_cast<uint32_t>(segment_.ops.size()); i-- > 0;)
      if (has_backward(segment_.ops[i])) backward_step(pass, i, lives, written);
    lay_out(pass, lives);
    return pass;
  }

  // A sum may pass its gradient to an input of the segment. Then the gradient is written to the place of that
  // input's gradient from the start, and later contributions are added there. So no contribution may come
  // before the sum. The sum may pass the same gradient to other tensors as well. Then a contribution may come
  // only after the ops that wrote those tensors have read the gradient.
  void share_input_gradients(PassPlan& pass) const {
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      const Op& op = segment_.ops[i];
      for (size_t k = 0; k < op.inputs.size(); ++k) {
        const uint32_t x = op.inputs[k], input = position(segment_.inputs, x);
        if (input == kNone || !wants_gradient(op, k) || !in_mask(op_rule(op.kind).passes_gradient, k))
          continue;
        if (plan_.wanted.added[input] || pass.gradients[op.outputs[0]].storage != Storage::workspace)
          continue;
        const auto reads_x = [&](const Op& other) {
          return std::find(other.inputs.begin(), other.inputs.end(), x) != other.inputs.end();
        };
        uint32_t below = 0;  // the op after the last reader of x before the sum
        for (uint32_t j = 0; j < i; ++j)
          if (reads_x(segment_.ops[j])) below = j + 1;
        const bool above = std::any_of(segment_.ops.begin() + i + 1, segment_.ops.end(), reads_x);
        if (!above && below > 0 && written_from(below, op, x))
          pass.gradients[op.outputs[0]] = pass.gradients[x];
      }
    }
  }
  // Whether all inputs of the op except `x` are written by ops from number `first` on. If such an op passes
  // its gradient on, the same must be true of the op's own inputs.
  bool written_from(uint32_t first, const Op& op, uint32_t x) const {
    return std::all_of(op.inputs.begin(), op.inputs.end(), [&](uint32_t t) {
      if (t == x) return std::count(op.inputs.begin(), op.inputs.end(), x) == 1;
      const auto writer = std::find_if(segment_.ops.begin(), segment_.ops.end(), [&](const Op& other) {
        return std::find(other.outputs.begin(), other.outputs.end(), t) != other.outputs.end();
      });
      if (writer == segment_.ops.end() || writer < segment_.ops.begin() + first) return false;
      return op_rule(writer->kind).passes_gradient == 0 || written_from(first, *writer, x);
    });
  }

  // What the steps so far have written.
  struct Written {
    std::vector<uint32_t> gradients;  // by tensor, as OpStep names places
    std::vector<bool> parameters;     // by segment parameter
  };

  bool wants_gradient(const Op& op, size_t input) const {
    return in_mask(op_rule(op.kind).gradient_inputs, input) && carries_gradient_[op.inputs[input]];
  }

  // Whether the gradient of the input may lie where the gradient of the op's output does. The input must have
  // no part of a gradient so far. If it is an input of the segment, a later step must write the sum to its
  // own place. Nothing else will be written where the output's gradient lies.
  bool passes_gradient(uint32_t i, size_t input, const Written& written) const {
    const Op& op = segment_.ops[i];
    const uint32_t t = op.inputs[input];
    if (!in_mask(op_rule(op.kind).passes_gradient, input) || written.gradients[t] != kNone) return false;
    return position(segment_.inputs, t) == kNone || contributes_later(i, input);
  }
  bool contributes_later(uint32_t i, size_t input) const {
    const Op& op = segment_.ops[i];
    const uint32_t t = op.inputs[input];
    if (std::find(op.inputs.begin() + static_cast<std::ptrdiff_t>(input) + 1, op.inputs.end(), t) !=
        op.inputs.end())
      return true;
    for (uint32_t j = 0; j < i; ++j)
      for (size_t k = 0; k < segment_.ops[j].inputs.size(); ++k)
        if (segment_.ops[j].inputs[k] == t && wants_gradient(segment_.ops[j], k)) return true;
    return false;
  }

  void backward_step(PassPlan& pass, uint32_t i, std::vector<Life>& lives, Written& written) {
    const Op& op = segment_.ops[i];
    const OpRule& r = op_rule(op.kind);
    OpStep step{i, Pass::backward, 0, {}, {}, {}, {}};
    bool writes = trains_parameter(op);
    for (size_t k = 0; k < op.outputs.size(); ++k)
      step.output_gradients.push_back(in_mask(r.gradient_outputs, k) ? written.gradients[op.outputs[k]]
                                                                     : kNone);
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      const uint32_t t = op.inputs[k];
      const bool wanted = wants_gradient(op, k), passes = wanted && passes_gradient(i, k, written);
      step.wants_gradient.push_back(wanted && !passes);
      step.addends.push_back(wanted ? written.gradients[t] : kNone);
      writes = writes || step.wants_gradient.back();
      if (!wanted) continue;
      const uint32_t output = position(segment_.outputs, t);
      if (output != kNone) plan_.output_gradient_added[output] = true;
      written.gradients[t] = passes ? step.output_gradients[0] : t;
    }
    for (size_t k = 0; k < op.parameters.size(); ++k) {
      const uint32_t p = op.parameters[k];
      step.overwrites.push_back(in_mask(r.overwrites_parameters, k) && !written.parameters[p] &&
                                plan_.trains(segment_.parameters[p].slot, p));
      written.parameters[p] = true;
    }
    if (!writes) return;
    touch_operands(pass, step, lives);
    add_step(pass, std::move(step));
  }

  // `step` is the backward step that is added to the pass next.
  void touch_operands(PassPlan& pass, const OpStep& step, std::vector<Life>& lives) const {
    const Op& op = segment_.ops[step.op];
    const OpRule& r = op_rule(op.kind);
    const auto at = static_cast<uint32_t>(pass.steps.size());
    const auto touch_gradient = [&](uint32_t t) {
      if (t != kNone) touch(lives, pass.gradients[t], t, at);
    };
    for (size_t k = 0; k < op.outputs.size(); ++k) {
      touch_gradient(step.output_gradients[k]);
      if (in_mask(r.backward_reads_outputs, k)) touch(lives, pass.tensors[op.outputs[k]], op.outputs[k], at);
    }
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      if (in_mask(r.backward_reads_inputs, k)) touch(lives, pass.tensors[op.inputs[k]], op.inputs[k], at);
      if (!step.wants_gradient[k]) continue;
      touch_gradient(step.addends[k]);
      touch_gradient(op.inputs[k]);
    }
  }

  const Segment& segment_;
  SegmentPlan& plan_;
  const WorkspaceBytes& workspace_bytes_;
  // By tensor. reaches_loss_: the tensor reaches a loss, or an output that may get a gradient. kept_: the
  // tensor is kept at the level at hand.
  std::vector<bool> reaches_loss_, carries_gradient_, read_by_backward_, kept_;
  std::vector<uint64_t> saved_;
};

}  // namespace

SegmentPlan plan_segment(const Model& model, uint32_t segment, const WantedGradients& wanted,
                         const WorkspaceBytes& workspace_bytes) {
  SegmentPlan plan;
  plan.segment = segment;
  plan.precision = model.precision;
  plan.wanted = wanted;
  for (const Op& op : model.segments[segment].ops)
    plan.shapes.push_back(shapes_of(model.segments[segment], op, model.precision));
  Compiler(model.segments[segment], plan, workspace_bytes).run();
  return plan;
}

}  // namespace sluice
