#include "engine/graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

namespace sluice {
namespace {

[[noreturn]] void reject(const std::string& sentence) { throw std::invalid_argument(sentence); }

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// Elements of a parameter; dimensions are at least 1. At 2^56 elements fp32 planes, padding and sums of
// several groups still fit 64 bits with room to spare.
constexpr uint64_t kElementsMax = uint64_t{1} << 56;

uint64_t parameter_elements(const Parameter& parameter) {
  uint64_t elements = 1;
  for (const int64_t dimension : parameter.shape) {
    if (dimension < 1) reject(fmt::format("{} has shape {}.", parameter.name, shape_text(parameter.shape)));
    if (static_cast<uint64_t>(dimension) > kElementsMax / elements)
      reject(fmt::format("{} {} has more than 2^56 elements.", parameter.name, shape_text(parameter.shape)));
    elements *= static_cast<uint64_t>(dimension);
  }
  return elements;
}

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

template <class Is>
bool any_op(const Model& model, const Is& is) {
  return std::ranges::any_of(model.segments,
                             [&](const Segment& segment) { return std::ranges::any_of(segment.ops, is); });
}

}  // namespace

uint32_t part_on(const Mesh& mesh, const Group& group, uint32_t rank) {
  return mesh.group_of(group.divided).place_of(rank);
}

std::string name_in(const Group& group, const Parameter& parameter, uint32_t part) {
  if (group.prefixes.empty()) return parameter.name;
  for (const std::string& prefix : group.prefixes)
    if (parameter.name.starts_with(prefix))
      return group.prefixes[part] + parameter.name.substr(prefix.size());
  reject(fmt::format("{} has none of the prefixes of group {}.", parameter.name, group.name));
}

void lay_out_group(Group& group) {
  uint64_t elements = 0;
  for (Parameter& parameter : group.parameters) {
    parameter.offset = elements;
    elements += round_up(parameter_elements(parameter), kTensorPadding);
    if (elements > kElementsMax) reject(fmt::format("Group {} has more than 2^56 elements.", group.name));
  }
  group.elements = round_up(elements, kGroupPadding);
}

uint32_t model_input(const Model& model, std::string_view name) {
  for (uint32_t a = 0; a < model.activations.size(); ++a)
    if (model.activations[a].input && model.activations[a].name == name) return a;
  throw std::invalid_argument("The model has no input " + std::string(name) + ".");
}

bool has_adapters(const Model& model) {
  return std::ranges::any_of(model.groups, [](const Group& group) { return group.adapter; });
}

bool draws_numbers(const Model& model) {
  return std::ranges::any_of(model.activations,
                             [](const Activation& a) { return a.input && a.name == "draws"; });
}

bool has_router_loss(const Model& model) {
  return any_op(model, [](const Op& op) { return op.kind == OpKind::router_loss; });
}

bool drops_choices(const Model& model) {
  return any_op(model, [](const Op& op) { return op.attributes.routing.drops(); });
}

bool is_of_reading(const Model& model, const Activation& activation) {
  return std::ranges::any_of(model.readings, [&](const Reading& reading) {
    return activation.name.starts_with(reading.name + ".");
  });
}

uint32_t model_output(const Model& model, std::string_view name) {
  for (uint32_t a = 0; a < model.activations.size(); ++a)
    if (model.activations[a].output && model.activations[a].name == name) return a;
  throw std::invalid_argument("The model has no output " + std::string(name) + ".");
}

std::vector<bool> updated_inputs(const Segment& segment) {
  std::vector<bool> updated(segment.inputs.size(), false);
  for (const Op& op : segment.ops)
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (op_rule(op.kind).updates_inputs >> i & 1)
        for (size_t k = 0; k < updated.size(); ++k)
          if (segment.inputs[k] == op.inputs[i]) updated[k] = true;
  return updated;
}

std::vector<bool> added_outputs(const Segment& segment) {
  std::vector<bool> added(segment.outputs.size(), false);
  for (const Op& op : segment.ops)
    for (size_t i = 0; i < op.outputs.size(); ++i)
      if (op_rule(op.kind).adds_to_outputs >> i & 1)
        for (size_t k = 0; k < added.size(); ++k)
          if (segment.outputs[k] == op.outputs[i]) added[k] = true;
  return added;
}

uint64_t parameter_count(const Model& model, bool trainable_only) {
  uint64_t count = 0;
  for (const Group& group : model.groups)
    for (const Parameter& parameter : group.parameters)
      if ((group.trainable && !parameter.frozen) || !trainable_only)
        count += group.parts() * parameter_elements(parameter);
  return count;
}

std::vector<Group> groups_of_all_ranks(const Model& model) {
  std::vector<Group> all;
  const auto part_of = [](Group group, uint32_t part) {
    for (Parameter& parameter : group.parameters) parameter.name = name_in(group, parameter, part);
    return group;
  };
  for (size_t g = 0; g < model.groups.size();) {
    size_t end = g + 1;  // [g, end): the groups of the experts of one layer
    while (end < model.groups.size() && model.groups[g].parts() > 1 && model.groups[end].parts() > 1) ++end;
    for (uint32_t part = 0; part < model.groups[g].parts(); ++part)
      for (size_t of = g; of < end; ++of) all.push_back(part_of(model.groups[of], part));
    g = end;
  }
  return all;
}

bool Segment::is_for_host(size_t input) const {
  for (const Op& op : ops)
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (op.inputs[i] == inputs[input] && (op_rule(op.kind).host_inputs >> i & 1) != 0) return true;
  return false;
}

OpShapes shapes_of(const Segment& segment, const Op& op, DType precision) {
  OpShapes shapes{.kind = op.kind, .attributes = op.attributes, .precision = precision};
  const auto add = [&](const std::vector<uint32_t>& tensors, uint32_t divided, std::vector<Shape>& to) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      to.push_back(segment.tensors[tensors[i]].shape);
      if ((divided >> i & 1) != 0) to.back()[0] /= op.parts.count;
    }
  };
  add(op.inputs, op.parts.inputs, shapes.inputs);
  add(op.outputs, op.parts.outputs, shapes.outputs);
  for (const uint32_t parameter : op.parameters)
    shapes.parameters.push_back(segment.parameters[parameter].shape);
  return shapes;
}

namespace {

void check_groups(const Model& model) {
  std::set<std::string> group_names, tensor_names;
  for (const Group& group : model.groups) {
    if (!group_names.insert(group.name).second) reject(fmt::format("Two groups are named {}.", group.name));
    uint64_t end = 0;
    for (const Parameter& parameter : group.parameters) {
      if (!tensor_names.insert(parameter.name).second)
        reject(fmt::format("Two tensors are named {}.", parameter.name));
      if (parameter.offset % kTensorPadding != 0 || parameter.offset < end)
        reject(fmt::format("{} does not start aligned behind the tensor before it.", parameter.name));
      end = parameter.offset + parameter_elements(parameter);
    }
    if (group.elements % kGroupPadding != 0 || group.elements < end)
      reject(fmt::format("Group {} is not laid out: {} elements.", group.name, group.elements));
  }
}

void check_parts(const Segment& segment, const Op& op, const std::string& where) {
  const auto check = [&](const std::vector<uint32_t>& tensors, uint32_t divided) {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (const SegmentTensor& t = segment.tensors[tensors[i]];
          (divided >> i & 1) != 0 && t.shape[0] % op.parts.count != 0)
        reject(where + fmt::format("{} is not {} equal parts.", t.name, op.parts.count));
  };
  if (op.parts.count < 1) reject(where + "it has no parts.");
  check(op.inputs, op.parts.inputs);
  check(op.outputs, op.parts.outputs);
}

// Checks that every index of the op lies inside its segment, that counts and types of the op's inputs agree
// with the rule, and that its outputs are what the rule infers.
void check_op(const Segment& segment, const Op& op, DType precision) {
  const OpRule& rule = op_rule(op.kind);
  const auto where = [&] { return fmt::format("Segment {}, {}: ", segment.name, rule.name); };
  for (const auto* list : {&op.inputs, &op.outputs})
    for (const uint32_t tensor : *list)
      if (tensor >= segment.tensors.size()) reject(where() + fmt::format("there is no tensor {}.", tensor));
  for (const uint32_t parameter : op.parameters)
    if (parameter >= segment.parameters.size())
      reject(where() + fmt::format("there is no parameter {}.", parameter));
  if (op.inputs.size() < rule.inputs.least || op.inputs.size() > rule.inputs.most)
    reject(where() + fmt::format("{} inputs.", op.inputs.size()));
  if (op.parameters.size() < rule.parameters.least || op.parameters.size() > rule.parameters.most)
    reject(where() + fmt::format("{} parameters.", op.parameters.size()));
  check_parts(segment, op, where());
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  const OpShapes operands = shapes_of(segment, op, precision);
  rule.infer(operands, shapes, dtypes);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const SegmentTensor& in = segment.tensors[op.inputs[i]];
    if (in.dtype != input_type(operands, i))
      reject(where() + fmt::format("{} is {}, the rule says {}.", in.name, dtype_name(in.dtype),
                                   dtype_name(input_type(operands, i))));
  }
  if (shapes.size() != op.outputs.size()) reject(where() + fmt::format("{} outputs.", op.outputs.size()));
  for (size_t i = 0; i < shapes.size(); ++i) {
    const SegmentTensor& out = segment.tensors[op.outputs[i]];
    if (operands.outputs[i] != shapes[i] || out.dtype != dtypes[i])
      reject(where() + fmt::format("{} is {} {}, the rule says {} {}.", out.name, dtype_name(out.dtype),
                                   shape_text(operands.outputs[i]), dtype_name(dtypes[i]),
                                   shape_text(shapes[i])));
  }
}

// Checks that each tensor is an input of the segment or is written by one op, before anything reads it.
void check_segment(const Segment& segment, DType precision) {
  if (segment.ops.empty()) reject(fmt::format("Segment {} has no ops.", segment.name));
  for (const Op& op : segment.ops)
    if (is_between_ranks(op.kind) && segment.ops.size() > 1)
      reject(fmt::format("Segment {}: {} is not its only op.", segment.name, op_rule(op.kind).name));
  std::vector<bool> written(segment.tensors.size(), false);
  const auto name = [&](uint32_t tensor) {
    if (tensor >= segment.tensors.size())
      reject(fmt::format("Segment {}: no tensor {}.", segment.name, tensor));
    return segment.tensors[tensor].name;
  };
  const auto write = [&](uint32_t tensor) {
    const std::string tensor_name = name(tensor);
    if (written[tensor]) reject(fmt::format("Segment {}: {} is written twice.", segment.name, tensor_name));
    written[tensor] = true;
  };
  const auto read = [&](uint32_t tensor) {
    const std::string tensor_name = name(tensor);
    if (!written[tensor])
      reject(fmt::format("Segment {}: {} is read before it is written.", segment.name, tensor_name));
  };
  for (const uint32_t tensor : segment.inputs) write(tensor);
  for (const Op& op : segment.ops) {
    check_op(segment, op, precision);
    for (const uint32_t tensor : op.inputs) read(tensor);
    for (const uint32_t tensor : op.outputs) write(tensor);
  }
  for (const uint32_t tensor : segment.outputs) {
    read(tensor);
    if (std::count(segment.inputs.begin(), segment.inputs.end(), tensor) != 0)
      reject(fmt::format("Segment {}: {} is input and output.", segment.name, name(tensor)));
  }
  if (segment.loss != op_rule(segment.ops.back().kind).is_loss)
    reject(fmt::format("Segment {}: `loss` and the last op disagree.", segment.name));
}

void check_group_binding(const Model& model, const Segment& segment, const SegmentUse& use,
                         const std::string& where) {
  for (const uint32_t group : use.groups) {
    if (group >= model.groups.size()) reject(where + fmt::format("there is no group {}.", group));
    if (std::count(use.groups.begin(), use.groups.end(), group) > 1)
      reject(where + fmt::format("group {} is bound to two slots.", model.groups[group].name));
  }
  for (const SegmentParameter& wanted : segment.parameters) {
    if (wanted.slot >= use.groups.size())
      reject(where + fmt::format("group slot {} is not bound.", wanted.slot));
    const Group& group = model.groups[use.groups[wanted.slot]];
    if (wanted.parameter >= group.parameters.size())
      reject(where + fmt::format("group {} has no parameter {}.", group.name, wanted.parameter));
    const Parameter& parameter = group.parameters[wanted.parameter];
    if (parameter.shape != wanted.shape)
      reject(where + fmt::format("{} is {}, the segment wants {}.", parameter.name,
                                 shape_text(parameter.shape), shape_text(wanted.shape)));
  }
}

void check_activation_binding(const Model& model, const Segment& segment,
                              const std::vector<uint32_t>& tensors, const std::vector<uint32_t>& activations,
                              const std::string& where) {
  if (tensors.size() != activations.size())
    reject(where + fmt::format("{} activations for {} tensors.", activations.size(), tensors.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (activations[i] >= model.activations.size())
      reject(where + fmt::format("there is no activation {}.", activations[i]));
    const Activation& activation = model.activations[activations[i]];
    const SegmentTensor& tensor = segment.tensors[tensors[i]];
    if (activation.shape != tensor.shape || activation.dtype != tensor.dtype)
      reject(where + fmt::format("activation {} is {} {}, tensor {} is {} {}.", activation.name,
                                 dtype_name(activation.dtype), shape_text(activation.shape), tensor.name,
                                 dtype_name(tensor.dtype), shape_text(tensor.shape)));
  }
}

// Checks that the activations that ops update, and no others, are kept.
void check_updates(const Model& model, const Segment& segment, const SegmentUse& use,
                   const std::string& where) {
  const std::vector<bool> updated = updated_inputs(segment);
  for (size_t i = 0; i < updated.size(); ++i)
    if (const Activation& activation = model.activations[use.inputs[i]]; activation.kept != updated[i])
      reject(where + fmt::format("activation {} is {}.", activation.name,
                                 updated[i] ? "updated and not kept" : "kept and not updated"));
}

// Checks that the activations that ops add to, and no others, are sums.
void check_sums(const Model& model, const Segment& segment, const SegmentUse& use, const std::string& where) {
  const std::vector<bool> added = added_outputs(segment);
  for (size_t i = 0; i < added.size(); ++i)
    if (const Activation& activation = model.activations[use.outputs[i]]; activation.sum != added[i])
      reject(where + fmt::format("activation {} is {}.", activation.name,
                                 added[i] ? "added to and no sum" : "a sum and not added to"));
}

// Checks that if one output of a segment is made again, all are. The segment runs twice, so it adds to
// nothing and updates nothing.
void check_made_again(const Model& model, const Segment& segment, const SegmentUse& use,
                      const std::string& where) {
  const auto made_again = [&](uint32_t a) { return model.activations[a].made_again; };
  if (std::ranges::none_of(use.outputs, made_again)) return;
  const auto runs_once = [&](uint32_t a) {
    const Activation& x = model.activations[a];
    return !x.made_again || x.sum || x.output;
  };
  const std::vector<bool> updated = updated_inputs(segment);
  if (std::ranges::any_of(use.outputs, runs_once) || std::ranges::find(updated, true) != updated.end())
    reject(where + "it makes something again, and cannot run twice.");
}

// Checks that the layers that are not trained are divided among the readings, in order.
void check_readings(const Model& model) {
  uint32_t next = model.trained_layers();
  for (const Reading& reading : model.readings) {
    if (reading.first != next || reading.last <= next || reading.last > model.layers.size())
      reject(fmt::format("Reading {} has layers {} to {}.", reading.name, reading.first, reading.last));
    if (reading.tokens < 1 || reading.tokens > reading.context)
      reject(fmt::format("Reading {} has {} tokens of {}.", reading.name, reading.tokens, reading.context));
    if (reading.sequences != model.readings.front().sequences ||
        reading.context != model.readings.front().context)
      reject(fmt::format("Reading {} has other sequences than the first.", reading.name));
    next = reading.last;
  }
  if (!model.readings.empty() && next != model.layers.size())
    reject(fmt::format("No reading has layer {}.", model.layers[next].name));
}

// Checks, in forward order, that all that a segment reads was made by an earlier segment, is kept, or comes
// with the batch.
void check_layers(const Model& model) {
  std::vector<bool> produced, read(model.activations.size(), false);
  for (const Activation& activation : model.activations)
    produced.push_back(activation.input || activation.kept);
  for (const Layer& layer : model.layers)
    for (const SegmentUse& use : layer.segments) {
      if (use.segment >= model.segments.size())
        reject(fmt::format("Layer {}: there is no segment {}.", layer.name, use.segment));
      const Segment& segment = model.segments[use.segment];
      const std::string where = fmt::format("Layer {}, segment {}: ", layer.name, segment.name);
      check_group_binding(model, segment, use, where);
      check_activation_binding(model, segment, segment.inputs, use.inputs, where);
      check_activation_binding(model, segment, segment.outputs, use.outputs, where);
      check_updates(model, segment, use, where);
      check_sums(model, segment, use, where);
      check_made_again(model, segment, use, where);
      for (const uint32_t activation : use.inputs) {
        if (!produced[activation])
          reject(where + fmt::format("nothing produces activation {}.", model.activations[activation].name));
        read[activation] = true;
      }
      for (const uint32_t activation : use.outputs) {
        const Activation& made = model.activations[activation];
        if (produced[activation] && !made.sum)
          reject(where + fmt::format("activation {} has two producers.", made.name));
        if (read[activation]) reject(where + fmt::format("activation {} was read before.", made.name));
        produced[activation] = true;
      }
    }
  for (size_t i = 0; i < produced.size(); ++i)
    if (!produced[i]) reject(fmt::format("Nothing produces activation {}.", model.activations[i].name));
}

}  // namespace

void check_model(const Model& model) {
  if (model.micro_batch < 1 || model.sequence < 1)
    reject(fmt::format("The micro-batch is {} sequences of {} tokens.", model.micro_batch, model.sequence));
  check_groups(model);
  for (const Segment& segment : model.segments) check_segment(segment, model.precision);
  check_layers(model);
  check_readings(model);
}

GroupUses uses_of_groups(const Model& model) {
  GroupUses uses;
  uses.kind_counts.assign(model.groups.size(), 0);
  std::map<std::tuple<uint32_t, uint32_t, size_t>, uint32_t> known;  // by group, segment and slot
  for (uint32_t l = 0; l < model.trained_layers(); ++l)
    for (const SegmentUse& use : model.layers[l].segments) {
      std::vector<uint32_t>& kinds = uses.kinds.emplace_back();
      for (size_t slot = 0; slot < use.groups.size(); ++slot) {
        const uint32_t group = use.groups[slot], next = uses.kind_counts[group];
        const auto [at, is_new] = known.try_emplace({group, use.segment, slot}, next);
        uses.kind_counts[group] += is_new;
        uses.shares_layers |= !is_new;
        kinds.push_back(at->second);
      }
    }
  return uses;
}

}  // namespace sluice
