// Helpers with which families write models: parameter groups, and segments op by op, with shapes inferred.
//
// A SegmentBuilder is used once: bind groups, declare inputs, add ops, declare outputs, take. Bound groups
// must be laid out; groups bound to the same template later must have tensors of the same shapes. An op's
// shape rule throws std::invalid_argument: a family that builds from a checked config never causes that.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/graph/graph.h"
#include "models/families/config.h"

namespace sluice {

// Parameters by role. Weight decay applies to matrices only. Norm weights start at one, or at zero where one
// is added to them. Biases start at zero.
Parameter matrix(std::string name, int64_t rows, int64_t columns, double standard_deviation = 0.02);
Parameter norm_weight(std::string name, int64_t width, bool from_one = false);
Parameter bias(std::string name, int64_t width);

// 0.02 / sqrt(2 layers), for projections back into the residual stream (Radford et al., "GPT-2", 2019,
// section 2.3).
double residual_deviation(int64_t layers);

uint32_t add_group(Model& model, std::string name,
                   std::vector<Parameter> parameters);                     // laid out; returns its index
uint32_t add_activation(Model& model, Activation activation);              // returns its index
uint32_t add_activation(Model& model, std::string name, int64_t columns);  // [rows, columns]
uint32_t add_token_input(Model& model, std::string name);                  // int32 [rows]

// A layer of one segment, whose template is new. `use.segment` is filled in.
void add_layer(Model& model, std::string name, Segment segment, SegmentUse use);

// A segment's inputs are bound to activations by name.
struct NamedActivation {
  std::string_view name;
  uint32_t activation;
};
std::vector<uint32_t> bound_inputs(const Segment& segment, std::span<const NamedActivation> activations);

class SegmentBuilder {
 public:
  using Tensor = uint32_t;
  using Weight = uint32_t;

  // `reading`: the reading that the segment is for; nullptr: it is for training.
  SegmentBuilder(const Model& model, std::string name, const Reading* reading = nullptr);

  // Binds the next group slot; its weights are named by the part of their global name after `prefix`.
  void bind(const Group& group, const std::string& prefix);
  // Binds a group of adapters in the same way. linear() then adds what they make of x, times `scale`.
  void bind_adapters(const Group& group, const std::string& prefix, double scale);
  Weight weight(std::string_view name);  // CHECKs that a bound group has it
  bool has(std::string_view name) const;
  const Shape& shape(std::string_view name) const;  // of a bound group's parameter; CHECKs that there is one

  Tensor input(std::string name, int64_t columns);  // activations [rows, columns]
  Tensor input(std::string name, Shape shape, DType dtype);
  Tensor input_tokens(std::string name);  // int32 [rows]

  // The most tokens of a sequence.
  int64_t longest() const { return context_ > 0 ? context_ : tokens_; }

  // The attributes that say which rows are a sequence, for embeddings with positions, rope and attention.
  OpAttributes sequences() const { return {.sequence = tokens_, .context = context_}; }
  // `inputs`, and behind them the document begins, if the model's batches have them.
  std::vector<Tensor> with_documents(std::vector<Tensor> inputs);

  // The routing of the segment's rows: a sequence is a group of rows with a capacity. A reading, which sees
  // some rows of a sequence at a time, drops no choices.
  Routing routing(Routing of) const;
  // Where random numbers come from (draws.h); none in a reading.
  std::optional<Tensor> draws();

  // Appends an op and returns its first output, which gets `name`; further outputs get name.1, name.2.
  Tensor op(OpKind kind, std::string name, std::vector<Tensor> inputs, std::vector<Weight> weights = {},
            const OpAttributes& attributes = {});
  // y = scale * (x * weight) + bias, with `name`.weight and, if it is bound, `name`.bias. What its adapters
  // add, if they are bound, is scaled as well.
  Tensor linear(const std::string& name, Tensor x, bool weight_out_in, double scale = 0);
  // linear() for an expert's rows. With `weights`, one for each row, the bias is multiplied by the row's
  // weight.
  Tensor expert_linear(const std::string& name, Tensor routing, Tensor x, bool weight_out_in,
                       const Routing& of, std::optional<Tensor> weights = {});
  // From here on, ops of experts run once for each rank of `over`: experts are divided over these ranks, and
  // each expert has rows of all of the ranks.
  void in_parts(ProcessGroup over) { over_ = std::move(over); }
  // Attention of q, k and v, or of all three packed. In a reading it also sees the input "cache", which has
  // the sequence's earlier tokens.
  Tensor attention(std::string name, std::vector<Tensor> projections, const OpAttributes& scores,
                   std::vector<Weight> sinks = {});
  // In a reading: the rows of x that the reading picks, one of each sequence.
  Tensor picked(Tensor x);
  // layer_norm or rms_norm, by `kind`, with `name`.weight and, if it is bound, `name`.bias.
  Tensor norm(OpKind kind, const std::string& name, Tensor x, double epsilon, bool weight_from_one = false);

  void output(Tensor tensor);
  Segment take();

 private:
  std::vector<Weight> weight_and_bias(const std::string& name);
  // y plus what the adapters of `name`, if they are bound, make of the last of `inputs`.
  Tensor adapted(OpKind kind, const std::string& name, std::vector<Tensor> inputs, Tensor y,
                 OpAttributes attributes);

  struct Named {
    std::string name;
    uint32_t slot, parameter;
    Shape shape;
  };
  DType precision_;
  int64_t sequences_, tokens_, context_;  // context: 0 where the segment is trained
  int64_t rows_;
  bool documents_;                        // whether there are document begins
  std::optional<Tensor> begins_, draws_;  // set once an op reads them
  double adapter_scale_ = 1;
  ProcessGroup over_;
  uint32_t slots_ = 0;
  std::vector<Named> bound_;
  Segment segment_;
};

}  // namespace sluice
