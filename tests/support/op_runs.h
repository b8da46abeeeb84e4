// Runs one op of a case (op_cases.h) on one device, in guarded memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/graph/draws.h"
#include "gpu/device.h"
#include "gpu/reference/convert.h"
#include "tests/support/op_cases.h"

namespace sluice {

// Memory between two guard bands, aligned to 64 bytes as workspaces and placed ranges are.
class Guarded {
 public:
  Guarded(uint64_t bytes, uint8_t fill) : bytes_(bytes), storage_(bytes + 2 * kBand + kAlignment, kPattern) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data()) + kBand;
    offset_ = kBand + (kAlignment - address % kAlignment) % kAlignment;
    std::memset(data(), fill, bytes);
  }
  Guarded(Guarded&&) = default;  // keeps the storage's address
  Guarded(const Guarded&) = delete;

  void* data() { return storage_.data() + offset_; }
  const void* data() const { return storage_.data() + offset_; }
  uint64_t bytes() const { return bytes_; }
  void freeze() { frozen_ = storage_; }
  bool unchanged() const { return frozen_ == storage_; }
  bool bands_intact() const {
    const auto is_pattern = [](uint8_t byte) { return byte == kPattern; };
    const auto data = storage_.begin() + static_cast<std::ptrdiff_t>(offset_);
    return std::all_of(storage_.begin(), data, is_pattern) &&
           std::all_of(data + static_cast<std::ptrdiff_t>(bytes_), storage_.end(), is_pattern);
  }

 private:
  static constexpr uint64_t kBand = 256, kAlignment = 64;
  static constexpr uint8_t kPattern = 0xA5;
  uint64_t bytes_, offset_ = 0;
  std::vector<uint8_t> storage_, frozen_;
};

constexpr uint32_t kLayer = 5;     // of all calls: random draws depend on it
constexpr uint8_t kPoison = 0xFF;  // NaN in every floating-point type, -1 as an index

inline std::vector<double> read_values(const void* data, DType type, int64_t count) {
  std::vector<double> out(static_cast<size_t>(count));
  if (type == DType::f64) {
    std::memcpy(out.data(), data, out.size() * sizeof(double));
    return out;
  }
  if (type == DType::i32) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<const int32_t*>(data)[i];
    return out;
  }
  reference::with_precision(type, [&]<typename T>(T) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = reference::widen(static_cast<const T*>(data)[i]);
  });
  return out;
}

inline void write_value(void* data, DType type, int64_t i, double value) {
  reference::with_precision(type,
                            [&]<typename T>(T) { static_cast<T*>(data)[i] = reference::narrow<T>(value); });
}

// Values uniform in shift +- scale, then rounded to the type. They come from the generator's raw output,
// which the C++ standard specifies.
inline Guarded random_tensor(const Shape& shape, DType type, uint32_t seed, double scale, double shift) {
  const int64_t count = element_count(shape);
  Guarded out(static_cast<uint64_t>(count) * dtype_bytes(type), 0);
  std::mt19937 generator(seed);
  for (int64_t i = 0; i < count; ++i)
    write_value(out.data(), type, i, shift + scale * (generator() * 0x1p-31 - 1));
  return out;
}

// Token ids below `vocabulary`. In labels, every fifth from the third on is ignored.
inline Guarded random_indices(int64_t count, int64_t vocabulary, uint32_t seed, bool labels) {
  Guarded out(static_cast<uint64_t>(count) * sizeof(int32_t), 0);
  std::mt19937 generator(seed);
  for (int64_t i = 0; i < count; ++i) {
    const auto token = static_cast<int32_t>(generator() % static_cast<uint64_t>(vocabulary));
    static_cast<int32_t*>(out.data())[i] = labels && i % 5 == 2 ? kIgnoreLabel : token;
  }
  return out;
}

// Labels from random_indices(), with padding in the last quarter.
inline Guarded random_labels(int64_t count, int64_t vocabulary, uint32_t seed) {
  Guarded out = random_indices(count, vocabulary, seed, true);
  std::fill_n(static_cast<int32_t*>(out.data()) + count - count / 4, count / 4, kPaddingLabel);
  return out;
}

// For each row, the position in its sequence at which its document begins; see OpCase::documents.
inline Guarded document_begins(int64_t rows, int64_t sequence, const std::vector<int64_t>& documents) {
  Guarded out(static_cast<uint64_t>(rows) * sizeof(int32_t), 0);
  int64_t begin = 0, end = 0;  // of the document: positions in the sequence
  size_t next = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = row % sequence;
    if (position == 0 || position == end) {
      begin = position;
      end = position + (documents.empty() ? sequence : documents[next++ % documents.size()]);
    }
    static_cast<int32_t*>(out.data())[row] = static_cast<int32_t>(begin);
  }
  return out;
}

// For each row, where its document begins relative to the first row of its sequence: OpCase::before tokens
// earlier. An idle row gets a position after its own.
inline Guarded earlier_begins(const OpCase& c, int64_t rows) {
  Guarded out(static_cast<uint64_t>(rows) * sizeof(int32_t), 0);
  const int64_t length = c.attributes.sequence;
  const std::vector<int64_t> before = c.before.empty() ? std::vector<int64_t>{0} : c.before;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t place = row % length, earlier = before[static_cast<size_t>(row / length) % before.size()];
    static_cast<int32_t*>(out.data())[row] =
        static_cast<int32_t>(place >= length - c.idle ? place + 1 : -earlier);
  }
  return out;
}

inline std::vector<TensorView> views(std::vector<Guarded>& tensors) {
  std::vector<TensorView> out;
  for (Guarded& tensor : tensors) out.push_back({tensor.data()});
  return out;
}

// The words of Draws for a micro-batch in which the tokens' numbers exceed 32 bits.
inline Guarded draw_words() {
  const auto words = Draws{.seed = 0x123456789ABCDEF0, .first_token = 0xFFFFFFF0, .step = 3}.words();
  Guarded out(sizeof words, 0);
  std::memcpy(out.data(), words.data(), sizeof words);
  return out;
}

// What an op reads: inputs, parameters and gradients of outputs. They are frozen once filled.
struct Operands {
  OpShapes shapes;
  std::vector<DType> output_types;
  std::vector<Guarded> inputs, parameters, output_gradients;
  CaseRouting routing;

  Operands(const OpCase& c, DType precision)
      : shapes{c.kind, c.attributes, precision, c.inputs, {}, c.parameters} {
    op_rule(c.kind).infer(shapes, shapes.outputs, output_types);
    uint32_t seed = 1;
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      if (is_index(i) && is_routing() && i < 2)
        inputs.push_back(routing_tensor(c, i));
      else if (is_index(i) && is_of_routers())
        inputs.push_back(random_labels(element_count(c.inputs[i]), 100, seed++));
      else if (is_index(i) && (c.kind == OpKind::route || c.kind == OpKind::add_noise))
        inputs.push_back(draw_words());
      else if (is_index(i) && c.kind == OpKind::pick_rows)
        inputs.push_back(random_indices(element_count(c.inputs[i]), c.inputs[0][0], seed++, false));
      else if (is_index(i) && i > 0 && c.attributes.context > 0)
        inputs.push_back(earlier_begins(c, c.inputs[i][0]));
      else if (is_index(i) && i > 0 && c.kind != OpKind::linear_cross_entropy)
        inputs.push_back(document_begins(c.inputs[i][0], c.attributes.sequence, c.documents));
      else if (is_index(i))
        inputs.push_back(random_indices(element_count(c.inputs[i]), c.parameters[0][0], seed++, i == 1));
      else
        inputs.push_back(random_tensor(c.inputs[i], input_type(shapes, i), seed++, c.scale, c.shift));
    }
    // Norm weights lie around 1. The weights of one output have a length of about 1, so that results have the
    // size of the inputs.
    const bool norm = c.kind == OpKind::layer_norm || c.kind == OpKind::rms_norm;
    for (size_t i = 0; i < c.parameters.size(); ++i) {
      const bool of_expert = c.kind == OpKind::expert_linear;
      const bool matrix = i == 0 && (c.kind == OpKind::linear || c.kind == OpKind::linear_cross_entropy ||
                                     c.kind == OpKind::router || of_expert);
      const double columns = matrix ? static_cast<double>(c.inputs[of_expert ? 1 : 0][1]) : 3;
      parameters.push_back(random_tensor(c.parameters[i], precision, seed++, std::sqrt(3 / columns),
                                         norm && i == 0 && !c.attributes.weight_from_one ? 1 : 0));
    }
    for (size_t i = 0; i < shapes.outputs.size(); ++i)
      if (op_rule(c.kind).gradient_outputs >> i & 1)
        output_gradients.push_back(random_tensor(shapes.outputs[i], output_types[i], seed++, 1, 0));
    for (size_t i = 0; i < inputs.size(); ++i)
      if (is_of_expert(i)) settle(inputs[i], shapes.inputs[i]);
    if (op_rule(c.kind).of_an_expert && c.kind != OpKind::combine)
      settle(output_gradients[0], shapes.outputs[0]);
    freeze();
  }

  // Whether one of the inputs is the routing of rows.
  bool is_routing() const {
    return op_rule(shapes.kind).of_an_expert || shapes.kind == OpKind::router_statistics;
  }
  bool is_of_routers() const {
    return shapes.kind == OpKind::router_statistics || shapes.kind == OpKind::router_loss;
  }
  Guarded routing_tensor(const OpCase& c, size_t input) {
    routing = routing_of(c, c.inputs[input][0]);
    Guarded out(routing.routing.size() * sizeof(int32_t), 0);
    std::memcpy(out.data(), routing.routing.data(), out.bytes());
    return out;
  }
  // Whether the input's rows are the expert's.
  bool is_of_expert(size_t input) const {
    const bool weights = shapes.attributes.routing.weighted && input + 1 == shapes.inputs.size();
    return op_rule(shapes.kind).of_an_expert && input > 0 && !weights && shapes.kind != OpKind::dispatch;
  }
  // Fills the end of a tensor of the expert's rows: first the rows that must be zeros, then rows with poison
  // that nothing reads or writes.
  void settle(Guarded& tensor, const Shape& shape) const {
    const uint64_t row = tensor.bytes() / static_cast<uint64_t>(shape[0]);
    const uint64_t begin = static_cast<uint64_t>(routing.rows) * row;
    const uint64_t end = static_cast<uint64_t>(routing.with_zeros()) * row;
    auto* const data = static_cast<uint8_t*>(tensor.data());
    std::memset(data + begin, 0, end - begin);
    std::memset(data + end, kPoison, tensor.bytes() - end);
  }

  bool is_index(size_t input) const { return input_type(shapes, input) == DType::i32; }
  void freeze() {
    for (auto* tensors : {&inputs, &parameters, &output_gradients})
      for (Guarded& tensor : *tensors) tensor.freeze();
  }
  void expect_unchanged() {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (op_rule(shapes.kind).updates_inputs >> i & 1)
        EXPECT_TRUE(inputs[i].bands_intact()) << "an op wrote outside of an input that it updates";
      else
        EXPECT_TRUE(inputs[i].unchanged()) << "an operand that is only read was written";
    }
    for (auto* tensors : {&parameters, &output_gradients})
      for (Guarded& tensor : *tensors)
        EXPECT_TRUE(tensor.unchanged()) << "an operand that is only read was written";
  }
};

// A named result, widened to double.
struct Result {
  std::string name;
  DType type;
  std::vector<double> values;
};

constexpr double kLossBefore = 1.5;  // the value to which the loss, or another sum, is added
constexpr float kSeed = 4;  // loss scale / valid tokens: logits' gradients stay among fp16's normal numbers

// Outputs full of poison. Losses and other outputs that are added to begin at `kLossBefore`.
inline std::vector<Guarded> make_outputs(const Operands& operands) {
  std::vector<Guarded> outputs;
  for (size_t i = 0; i < operands.output_types.size(); ++i) {
    const DType type = operands.output_types[i];
    outputs.emplace_back(static_cast<uint64_t>(element_count(operands.shapes.outputs[i])) * dtype_bytes(type),
                         kPoison);
    const int64_t count = element_count(operands.shapes.outputs[i]);
    if (type == DType::f64) std::fill_n(static_cast<double*>(outputs.back().data()), count, kLossBefore);
    if (op_rule(operands.shapes.kind).adds_to_outputs >> i & 1)
      std::fill_n(static_cast<float*>(outputs.back().data()), count, static_cast<float>(kLossBefore));
  }
  return outputs;
}

// Checks that nothing has written to the tensor behind the expert's rows. Sets the values there to zero in
// `result`.
inline void expect_idle(const Operands& operands, const Guarded& tensor, const Shape& shape, Result& result) {
  const uint64_t row = tensor.bytes() / static_cast<uint64_t>(shape[0]);
  const auto* const data = static_cast<const uint8_t*>(tensor.data());
  const uint64_t end = static_cast<uint64_t>(operands.routing.with_zeros()) * row;
  EXPECT_TRUE(std::all_of(data + end, data + tensor.bytes(), [](uint8_t b) { return b == kPoison; }))
      << result.name << " was written behind the expert's rows";
  const auto first = static_cast<std::ptrdiff_t>(operands.routing.with_zeros() * shape[1]);
  std::fill(result.values.begin() + first, result.values.end(), 0.0);
}

inline std::vector<Guarded> run_forward(Device& device, Operands& operands) {
  std::vector<Guarded> outputs = make_outputs(operands);
  device.prepare(operands.shapes, Pass::forward);
  Guarded workspace(device.workspace_bytes(operands.shapes, Pass::forward), kPoison);
  const auto input_views = views(operands.inputs), parameter_views = views(operands.parameters);
  const auto output_views = views(outputs);
  OpCall call{.shapes = &operands.shapes, .inputs = input_views, .outputs = output_views};
  call.parameters = parameter_views;
  call.workspace = static_cast<std::byte*>(workspace.data());
  call.expert = operands.routing.expert;
  call.layer = kLayer;
  device.forward(call);
  operands.expect_unchanged();
  EXPECT_TRUE(workspace.bands_intact()) << "forward wrote outside of its workspace";
  for (Guarded& output : outputs) EXPECT_TRUE(output.bands_intact()) << "forward wrote outside of an output";
  return outputs;
}

inline std::vector<Result> results_of(const Operands& operands, const std::vector<Guarded>& outputs) {
  std::vector<Result> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const DType type = operands.output_types[i];
    const int64_t count = element_count(operands.shapes.outputs[i]);
    results.push_back({"output " + std::to_string(i), type, read_values(outputs[i].data(), type, count)});
    if (op_rule(operands.shapes.kind).of_an_expert && operands.shapes.kind != OpKind::combine)
      expect_idle(operands, outputs[i], operands.shapes.outputs[i], results.back());
  }
  return results;
}

// Runs a forward with new operands. Returns the outputs, then the inputs that the op updates.
inline std::vector<Result> forward_results(Device& device, const OpCase& c, DType precision,
                                           const std::function<void(Operands&)>& alter = nullptr) {
  Operands operands(c, precision);
  if (alter) alter(operands), operands.freeze();
  std::vector<Result> results = results_of(operands, run_forward(device, operands));
  for (size_t i = 0; i < c.inputs.size(); ++i)
    if (op_rule(c.kind).updates_inputs >> i & 1)
      results.push_back({"updated input " + std::to_string(i), precision,
                         read_values(operands.inputs[i].data(), precision, element_count(c.inputs[i]))});
  return results;
}

enum class Addend : uint8_t { none, in_place, elsewhere };

struct BackwardOptions {
  Addend addend = Addend::none;  // of input gradients: random values (zero if `from_zero`)
  bool from_zero = false;        // parameter gradients begin at zero too
  bool overwrite = false;  // parameter gradients begin as garbage and are overwritten, if the op can do that
  uint32_t without_inputs = 0;      // bit i: no gradient of input i is wanted
  uint32_t without_parameters = 0;  // bit i: parameter i is frozen
};

// The gradients that a backward writes: guarded memory, a result for each (still empty), and the views that a
// call gets.
struct Gradients {
  std::vector<Guarded> tensors, addends;
  std::vector<Result> results;
  std::vector<TensorView> inputs, parameters;
  std::vector<uint32_t> of_inputs;  // which input's gradient each of the first tensors is
  Guarded loss;                     // all numbers of the op's loss; one number if the op has no loss

  Gradients(const Operands& operands, const BackwardOptions& options) : Gradients(operands.shapes, options) {
    for (size_t k = 0; k < tensors.size(); ++k) {
      if (k >= of_inputs.size() || !operands.is_of_expert(of_inputs[k])) continue;
      if (options.addend == Addend::in_place)
        operands.settle(tensors[k], operands.shapes.inputs[of_inputs[k]]);
      if (k < addends.size()) {
        operands.settle(addends[k], operands.shapes.inputs[of_inputs[k]]);
        addends[k].freeze();
      }
    }
  }
  Gradients(const OpShapes& shapes, const BackwardOptions& options)
      : inputs(shapes.inputs.size()),
        parameters(shapes.parameters.size()),
        loss((op_rule(shapes.kind).is_loss ? static_cast<size_t>(element_count(shapes.outputs[0])) : 1) *
                 sizeof(double),
             0) {
    const double spread = options.from_zero ? 0 : 1;
    for (uint32_t i = 0; i < inputs.size(); ++i) {
      if (!has_gradient(shapes, i) || (options.without_inputs >> i & 1) != 0) continue;
      const DType type = input_type(shapes, i);
      tensors.push_back(random_tensor(shapes.inputs[i], type, 101 + i, spread, 0));
      of_inputs.push_back(i);
      Guarded& tensor = tensors.back();
      inputs[i] = {tensor.data()};
      if (options.addend == Addend::in_place) inputs[i].addend = tensor.data();
      if (options.addend == Addend::elsewhere) {
        addends.push_back(random_tensor(shapes.inputs[i], type, 101 + i, spread, 0));
        addends.back().freeze();
        inputs[i].addend = addends.back().data();
      }
      if (options.addend != Addend::in_place) std::memset(tensor.data(), kPoison, tensor.bytes());
      results.push_back({"gradient of input " + std::to_string(i), type, {}});
    }
    for (uint32_t i = 0; i < parameters.size(); ++i) {
      if (options.without_parameters >> i & 1) continue;
      tensors.push_back(random_tensor(shapes.parameters[i], DType::f32, 201 + i, spread, 0));
      Guarded& tensor = tensors.back();
      parameters[i] = {tensor.data(), options.overwrite ? nullptr : tensor.data()};
      if (options.overwrite && (op_rule(shapes.kind).overwrites_parameters >> i & 1) != 0)
        std::memset(tensor.data(), kPoison, tensor.bytes());
      results.push_back({"gradient of parameter " + std::to_string(i), DType::f32, {}});
    }
    std::fill_n(static_cast<double*>(loss.data()), loss.bytes() / sizeof(double), kLossBefore);
  }

  // Checks the guard bands, and fills the results with what was written.
  std::vector<Result> collect(const Operands& operands, bool with_loss) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(tensors[i].bands_intact()) << "backward wrote outside of the " << results[i].name;
      const uint64_t count = tensors[i].bytes() / dtype_bytes(results[i].type);
      results[i].values = read_values(tensors[i].data(), results[i].type, static_cast<int64_t>(count));
      if (i < of_inputs.size() && operands.is_of_expert(of_inputs[i]))
        expect_idle(operands, tensors[i], operands.shapes.inputs[of_inputs[i]], results[i]);
    }
    for (const Guarded& addend : addends) EXPECT_TRUE(addend.unchanged()) << "backward wrote to an addend";
    EXPECT_TRUE(loss.bands_intact()) << "backward wrote outside of the loss";
    const auto numbers = static_cast<int64_t>(loss.bytes() / sizeof(double));
    if (with_loss) results.push_back({"loss", DType::f64, read_values(loss.data(), DType::f64, numbers)});
    return results;
  }
};

// Returns the gradients of the wanted inputs and parameters, then the loss if there is one. `saved` are the
// outputs of a forward. Inputs and outputs that backward does not read, according to the op's rule, are not
// passed.
inline std::vector<Result> run_backward(Device& device, Operands& operands, std::vector<Guarded>& saved,
                                        const BackwardOptions& options = {}) {
  const OpShapes& shapes = operands.shapes;
  const OpRule& rule = op_rule(shapes.kind);
  Gradients gradients(operands, options);
  std::vector<TensorView> inputs = views(operands.inputs), outputs(saved.size()),
                          output_gradients(saved.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    if ((rule.backward_reads_inputs >> i & 1) == 0) inputs[i].data = nullptr;
  for (size_t i = 0, next = 0; i < saved.size(); ++i) {
    saved[i].freeze();
    if (rule.backward_reads_outputs >> i & 1) outputs[i].data = saved[i].data();
    if ((rule.gradient_outputs >> i & 1) == 0) continue;
    output_gradients[i].data = operands.output_gradients[next++].data();
  }
  const bool loss = operands.output_types[0] == DType::f64;
  if (loss) outputs[0].data = gradients.loss.data();
  device.prepare(shapes, Pass::backward);
  Guarded workspace(device.workspace_bytes(shapes, Pass::backward), kPoison);
  const auto parameters = views(operands.parameters);
  OpCall call{.shapes = &shapes, .inputs = inputs, .outputs = outputs, .parameters = parameters};
  call.output_gradients = output_gradients;
  call.input_gradients = gradients.inputs;
  call.parameter_gradients = gradients.parameters;
  call.workspace = static_cast<std::byte*>(workspace.data());
  call.expert = operands.routing.expert;
  call.layer = kLayer;
  const double loss_scale = kSeed * 3, valid_tokens = 3;
  if (loss) call.loss_scale = &loss_scale, call.valid_tokens = &valid_tokens;
  device.backward(call);
  operands.expect_unchanged();
  for (Guarded& output : saved) EXPECT_TRUE(output.unchanged()) << "backward wrote to a saved output";
  EXPECT_TRUE(workspace.bands_intact()) << "backward wrote outside of its workspace";
  return gradients.collect(operands, loss);
}

}  // namespace sluice
