// Runs a model op by op on one device, every tensor in memory of its own. Planner, executor and trainer take
// no part.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "models/weights/hf_weights.h"

namespace sluice {

// One tensor and its gradient, in fp32 or in the type that the shape rule gives.
struct InterpretedTensor {
  std::vector<std::byte> value, gradient;
  InterpretedTensor() = default;
  InterpretedTensor(const Shape& shape, DType dtype)
      : value(static_cast<size_t>(element_count(shape)) * dtype_bytes(dtype)), gradient(value.size()) {}
};

class Interpreter {
 public:
  explicit Interpreter(const Model& model) : Interpreter(model, make_reference_device()) {}
  Interpreter(const Model& model, std::unique_ptr<Device> device)
      : model_(model), device_(std::move(device)) {
    for (const Activation& a : model.activations) activations_.emplace_back(a.shape, a.dtype);
  }

  void load(const HfWeights& weights) {
    for (const Group& group : model_.groups)
      for (const Parameter& parameter : group.parameters) {
        InterpretedTensor storage(parameter.shape, DType::f32);
        weights.read(parameter.name, 0, static_cast<uint64_t>(element_count(parameter.shape)),
                     reinterpret_cast<float*>(storage.value.data()));
        parameters_[parameter.name] = std::move(storage);
      }
  }

  int32_t* batch_input(const char* name) {
    return reinterpret_cast<int32_t*>(activations_[model_input(model_, name)].value.data());
  }

  // Gradients are all added to what is there, so that their order does not matter. Returns the mean loss over
  // `tokens_counted` tokens.
  double run(int64_t tokens_counted) {
    const auto tokens = static_cast<double>(tokens_counted);
    std::vector<std::pair<const SegmentUse*, std::vector<InterpretedTensor>>> tape;
    for (const Layer& layer : model_.layers)
      for (const SegmentUse& use : layer.segments) {
        const Segment& segment = model_.segments[use.segment];
        std::vector<InterpretedTensor> inner;
        for (const SegmentTensor& tensor : segment.tensors) inner.emplace_back(tensor.shape, tensor.dtype);
        tape.emplace_back(&use, std::move(inner));
        for (const Op& op : segment.ops)
          if (!op_rule(op.kind).is_loss) call(use, tape.back().second, op, Pass::forward, 0);
      }
    double loss = 0;
    for (auto entry = tape.rbegin(); entry != tape.rend(); ++entry) {
      const Segment& segment = model_.segments[entry->first->segment];
      for (auto op = segment.ops.rbegin(); op != segment.ops.rend(); ++op)
        call(*entry->first, entry->second, *op, Pass::backward, static_cast<float>(1 / tokens));
      for (const Op& op : segment.ops) {
        if (!op_rule(op.kind).is_loss) continue;
        double part = 0;
        std::memcpy(&part, entry->second[op.outputs[0]].value.data(), sizeof part);
        loss += part;
      }
    }
    return loss / tokens;
  }

  const float* gradient(const std::string& parameter) const {
    return reinterpret_cast<const float*>(parameters_.at(parameter).gradient.data());
  }
  double gradient_norm() const {
    double sum = 0;
    for (const auto& [name, storage] : parameters_) {
      const auto* gradient = reinterpret_cast<const float*>(storage.gradient.data());
      for (size_t i = 0; i < storage.gradient.size() / sizeof(float); ++i)
        sum += static_cast<double>(gradient[i]) * gradient[i];
    }
    return std::sqrt(sum);
  }

 private:
  InterpretedTensor& tensor(const SegmentUse& use, std::vector<InterpretedTensor>& inner, uint32_t index) {
    const Segment& segment = model_.segments[use.segment];
    for (size_t i = 0; i < segment.inputs.size(); ++i)
      if (segment.inputs[i] == index) return activations_[use.inputs[i]];
    for (size_t i = 0; i < segment.outputs.size(); ++i)
      if (segment.outputs[i] == index) return activations_[use.outputs[i]];
    return inner[index];
  }

  void call(const SegmentUse& use, std::vector<InterpretedTensor>& inner, const Op& op, Pass pass,
            float seed) {
    const Segment& segment = model_.segments[use.segment];
    const OpShapes shapes = shapes_of(segment, op, model_.precision);
    std::vector<TensorView> inputs, outputs, parameters, output_gradients, input_gradients,
        parameter_gradients;
    for (const uint32_t t : op.inputs) {
      InterpretedTensor& storage = tensor(use, inner, t);
      const bool wanted = segment.tensors[t].dtype != DType::i32;
      inputs.push_back({storage.value.data()});
      std::byte* const gradient = wanted ? storage.gradient.data() : nullptr;
      input_gradients.push_back({gradient, gradient});
    }
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      InterpretedTensor& storage = tensor(use, inner, op.outputs[i]);
      const bool arrives = op_rule(op.kind).gradient_outputs >> i & 1;
      outputs.push_back({storage.value.data()});
      output_gradients.push_back({arrives ? storage.gradient.data() : nullptr});
    }
    for (const uint32_t p : op.parameters) {
      const SegmentParameter& parameter = segment.parameters[p];
      InterpretedTensor& storage =
          parameters_.at(model_.groups[use.groups[parameter.slot]].parameters[parameter.parameter].name);
      parameters.push_back({storage.value.data()});
      parameter_gradients.push_back({storage.gradient.data(), storage.gradient.data()});
    }
    std::vector<std::byte> workspace(device_->workspace_bytes(shapes, pass) + 64);
    const auto address = reinterpret_cast<uintptr_t>(workspace.data());
    OpCall call{.shapes = &shapes, .inputs = inputs, .outputs = outputs, .parameters = parameters};
    call.output_gradients = output_gradients;
    call.input_gradients = input_gradients;
    call.parameter_gradients = parameter_gradients;
    call.workspace = workspace.data() + (64 - address % 64) % 64;
    const double loss_scale = seed, valid_tokens = 1;
    call.expert = use.expert;
    call.layer = use.layer;
    call.loss_scale = &loss_scale, call.valid_tokens = &valid_tokens;
    if (pass == Pass::forward)
      device_->forward(call);
    else
      device_->backward(call);
  }

  const Model& model_;
  std::unique_ptr<Device> device_;
  std::vector<InterpretedTensor> activations_;
  std::map<std::string, InterpretedTensor> parameters_;
};

}  // namespace sluice
