// Helpers with which families write models: parameter groups, and segments op by op, with shapes inferred.
//
// A SegmentBuilder is used once: bind groups, declare inputs, add ops, declare outputs, take. Bound groups
// must be laid out; groups bound to the same template later must have tensors of the same shapes. An op's
// shape rule throws std::invalid_argument: a family that builds from a checked config never causes that.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "engine/graph/graph.h"
#include "models/families/config.h"

namespace sluice {

// Parameters by role. Weight decay applies to matrices only. Norm weights start at one, biases at zero.
Parameter matrix(std::string name, int64_t rows, int64_t columns, double standard_deviation = 0.02);
Parameter norm_weight(std::string name, int64_t width);
Parameter bias(std::string name, int64_t width);

// 0.02 / sqrt(2 layers), for projections back into the residual stream (Radford et al., "GPT-2", 2019,
// section 2.3).
double residual_deviation(int64_t layers);

uint32_t add_group(Model& model, std::string name,
                   std::vector<Parameter> parameters);                     // laid out; returns its index
uint32_t add_activation(Model& model, std::string name, int64_t columns);  // [rows, columns]
uint32_t add_token_input(Model& model, std::string name);                  // int32 [rows]

// A layer of one segment, whose template is new. `use.segment` is filled in.
void add_layer(Model& model, std::string name, Segment segment, SegmentUse use);

class SegmentBuilder {
 public:
  using Tensor = uint32_t;
  using Weight = uint32_t;

  SegmentBuilder(const Model& model, std::string name);

  // Binds the next group slot; its weights are named by the part of their global name after `prefix`.
  void bind(const Group& group, const std::string& prefix);
  Weight weight(std::string_view name);  // CHECKs that a bound group has it
  bool has(std::string_view name) const;

  Tensor input(std::string name, int64_t columns);  // activations [rows, columns]
  Tensor input_tokens(std::string name);            // int32 [rows]

  // Appends an op and returns its first output, which gets `name`; further outputs get name.1, name.2.
  Tensor op(OpKind kind, std::string name, std::initializer_list<Tensor> inputs,
            std::vector<Weight> weights = {}, const OpAttributes& attributes = {});
  // y = x * weight + bias, with `name`.weight and, if it is bound, `name`.bias.
  Tensor linear(const std::string& name, Tensor x, bool weight_out_in);
  // layer_norm or rms_norm, by `kind`, with `name`.weight and, if it is bound, `name`.bias.
  Tensor norm(OpKind kind, const std::string& name, Tensor x, double epsilon);

  void output(Tensor tensor);
  Segment take();

 private:
  std::vector<Weight> weight_and_bias(const std::string& name);

  struct Named {
    std::string name;
    uint32_t slot, parameter;
    Shape shape;
  };
  DType precision_;
  int64_t rows_;
  uint32_t slots_ = 0;
  std::vector<Named> bound_;
  Segment segment_;
};

}  // namespace sluice
