// A model as data: parameter groups, segment templates made of ops, layers that bind templates to groups.
//
// Shapes are static: a Model is built for one micro-batch. A layer binds any number of groups, and a group
// may be bound by several layers: a tied embedding is one group that two layers bind. Segments that are alike
// share one template, so the ops of a 96-layer model take no more room than those of a three-layer one.
// Activations connect segments into a graph, not a chain.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/mesh.h"
#include "engine/graph/op.h"

namespace sluice {

// uniform: between -sqrt(3) and sqrt(3) standard deviations.
enum class Initializer : uint8_t { normal, uniform, zeros, ones };

struct Parameter {   // one named tensor of a group
  std::string name;  // global name, as in the family's Hugging Face checkpoints
  Shape shape;
  bool decay = true;  // weight decay applies (two or more dimensions)
  Initializer initializer = Initializer::normal;
  double standard_deviation = 0.02;
  uint64_t offset = 0;  // first element within the group's flat buffer; multiples of 64 elements
  // What the optimizer does differently for this parameter.
  double learning_rate_factor = 1;
  std::optional<double> weight_decay = {};  // none: the run's weight decay, if `decay` is true
  // The parameter stays as it is, and no gradient of it is computed, even where its group is trained.
  bool frozen = false;
};

struct Group {
  std::string name;
  bool trainable = true;
  // The group has adapters. All other groups of a model with adapters are its base: they come from files that
  // stay as they are, so no checkpoint holds them.
  bool adapter = false;
  // On ranks that differ along these axes, the group has different parts of the model, of the same shapes. No
  // axes: the group is whole, and all ranks have the same one.
  Axes divided;
  // A parameter's name begins with the prefix of its part. Empty: the group is whole.
  std::vector<std::string> prefixes;  // by part; part_on() says which one a rank has
  std::vector<Parameter> parameters;
  uint64_t elements = 0;  // flat length with padding, a multiple of kGroupPadding

  uint32_t parts() const { return prefixes.empty() ? 1 : static_cast<uint32_t>(prefixes.size()); }
};
constexpr uint64_t kTensorPadding = 64;   // elements: whole cache lines in every precision
constexpr uint64_t kGroupPadding = 2048;  // elements: 4096 bytes in 16-bit, for O_DIRECT

// Which part of the group a rank of the model's mesh has.
uint32_t part_on(const Mesh& mesh, const Group& group, uint32_t rank);
// The parameter's name in a part of the group.
std::string name_in(const Group& group, const Parameter& parameter, uint32_t part);

// Assigns offsets and the padded length from the shapes, in order. Throws std::invalid_argument on overflow.
void lay_out_group(Group& group);

struct SegmentTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::bf16;
};

struct SegmentParameter {
  uint32_t slot;       // which of the segment's groups
  uint32_t parameter;  // which of that group's parameters
  Shape shape;
};

struct Segment {  // a template: ops over tensors, parameters named by group slot
  std::string name;
  std::vector<SegmentTensor> tensors;
  std::vector<Op> ops;  // in order
  std::vector<SegmentParameter> parameters;
  std::vector<uint32_t> inputs;   // tensors that come from outside, in binding order
  std::vector<uint32_t> outputs;  // tensors that other segments may read, in binding order
  bool loss = false;  // ends in the loss: forward runs only in evaluation, backward emits the loss

  // The segment's only op is one that ranks carry out together (OpAttributes::among).
  bool is_between_ranks() const { return sluice::is_between_ranks(ops.front().kind); }
  const ProcessGroup& among() const { return ops.front().attributes.among; }
  bool is_for_host(size_t input) const;  // OpRule::host_inputs
};

struct Activation {  // one for each micro-batch
  std::string name;
  Shape shape;
  DType dtype = DType::bf16;
  bool input = false;   // comes with the batch, under its name; no segment makes it
  bool output = false;  // the host reads it
  // The activation stays from one body to the next. It is zeros at first. No segment makes it: ops that read
  // it update it (OpRule::updates_inputs).
  bool kept = false;
  // Several segments add to it, in forward order, before any reads it (OpRule::adds_to_outputs). It begins as
  // zeros. The sum's gradient is also the gradient of each addend.
  bool sum = false;
  // It is not kept for backward: the segment that makes it runs again before a backward that reads it.
  // Several segments in a row may run again in this way, each making the input of the next.
  bool made_again = false;
};

struct SegmentUse {  // a template bound to groups and activations
  uint32_t segment;
  std::vector<uint32_t> groups;   // by slot
  std::vector<uint32_t> inputs;   // activations, in the order of Segment::inputs
  std::vector<uint32_t> outputs;  // activations, in the order of Segment::outputs
  uint32_t expert = 0;            // for ops of one expert (OpRule::of_an_expert)
  uint32_t layer = 0;             // for ops that draw random numbers (draws.h)
};

struct Layer {
  std::string name;
  std::vector<SegmentUse> segments;
};

// One of the ways in which a model that generates text reads tokens: a call reads `tokens` of each sequence.
// The readings of a model have the same groups, kept activations, sequences and context, and different
// shapes. A reading has the inputs tokens i32 [rows] and documents i32 [rows], and the output logits
// [sequences, vocabulary]. If it reads several tokens of a sequence at a time, it also has the input picked
// i32 [sequences]: the rows whose logits it makes. The names of these activations begin with the reading's
// name and a dot.
struct Reading {
  std::string name;
  int64_t sequences = 1, context = 1;  // sequences read at once; the most tokens of each
  int64_t tokens = 1;                  // read of each sequence at a time
  uint32_t first = 0, last = 0;        // its layers are [first, last) of Model::layers
};

struct Model {
  std::string family;  // its name in models/families
  DType precision = DType::bf16;
  Mesh mesh;  // of the ranks that it is built for
  // In a model that only generates, micro_batch and sequence are the readings' sequences and context.
  int64_t micro_batch = 1, sequence = 0, vocabulary = 0;
  // Rows are packed: the batch has an input `documents` with the document begin of each token (op.h).
  bool documents = false;
  std::vector<Group> groups;
  std::vector<Segment> segments;
  std::vector<Activation> activations;
  // In forward order: those that are trained, if there are any, then those of the readings.
  std::vector<Layer> layers;
  // A model that generates text has readings, whether it is also trained or not. It runs the first reading
  // most often. A model that is only trained has none.
  std::vector<Reading> readings;

  uint32_t trained_layers() const {
    return readings.empty() ? static_cast<uint32_t>(layers.size()) : readings.front().first;
  }
  // The model is not trained, only generates text. Known once its layers are built.
  bool generates() const { return !readings.empty() && trained_layers() == 0; }
  // The model is trained, and generates text in between.
  bool samples() const { return !readings.empty() && trained_layers() > 0; }
};

bool has_adapters(const Model& model);

// Whether the model's training draws random numbers: the batch has an input `draws` (draws.h).
bool draws_numbers(const Model& model);
// Whether the model's loss includes a loss of its routers (OpKind::router_loss).
bool has_router_loss(const Model& model);
// Whether an expert can refuse a row that chose it (Routing::drops).
bool drops_choices(const Model& model);

// All groups, with every part of a divided group, in the order that they have on a rank with all experts.
std::vector<Group> groups_of_all_ranks(const Model& model);

// The number of parameters of all ranks, without padding. `trainable_only`: of trainable groups alone.
uint64_t parameter_count(const Model& model, bool trainable_only = false);

// Whether the input comes with a reading, and not with a batch to train on.
bool is_of_reading(const Model& model, const Activation& activation);

// Returns the activation that is the model's input or output of this name. Throws std::invalid_argument if
// there is none.
uint32_t model_input(const Model& model, std::string_view name);
uint32_t model_output(const Model& model, std::string_view name);

// Throws std::invalid_argument with a sentence if a reference dangles, shapes disagree, or nothing makes an
// activation.
void check_model(const Model& model);

// By segment input: whether an op updates it (OpRule::updates_inputs).
std::vector<bool> updated_inputs(const Segment& segment);

// By segment output: whether an op adds to it (OpRule::adds_to_outputs).
std::vector<bool> added_outputs(const Segment& segment);

// Operands of one op of a template, as its rule and the devices see them. If the op has Parts, these are the
// operands of one part.
OpShapes shapes_of(const Segment& segment, const Op& op, DType precision);

// The uses of parameter groups in training, by kind. Uses of a group in the same slot of the same segment are
// of one kind, such as the uses by layers that share the group. A tied embedding has two kinds.
struct GroupUses {
  // By segment use of the trained layers, in forward order, and by slot: the number of the kind among the
  // group's kinds.
  std::vector<std::vector<uint32_t>> kinds;
  std::vector<uint32_t> kind_counts;  // by group
  bool shares_layers = false;         // a group has several uses of one kind
};
GroupUses uses_of_groups(const Model& model);

}  // namespace sluice
