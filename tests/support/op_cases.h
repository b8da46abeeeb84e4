// Op cases, and the harness that runs one op on one device in guarded memory. op_conformance.h uses every
// case in several ways, as ggml's test-backend-ops does. A new op needs a line or more in
// op_cases().
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/reference/convert.h"

namespace sluice {

struct OpCase {
  std::string name;
  OpKind kind;
  OpAttributes attributes;
  std::vector<Shape> inputs, parameters;
  double scale = 1, shift = 0;  // inputs are uniform in shift +- scale
  bool large = false;           // only compared with the reference device and over thread counts
  // Lengths of the documents, over the rows of all sequences; again from the first after the last one. A
  // sequence's end ends a document. Empty: every sequence is one.
  std::vector<int64_t> documents = {};
};

inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name; }  // googletest's name for it

// attention with what decides which keys a query sees and how large a score is. Blocks of kernels have 16 to
// 256 queries or keys: windows and documents end inside of such blocks and on their edges.
inline std::vector<OpCase> attention_score_cases() {
  const OpAttributes h4_2{.sequence = 37, .heads = 4, .kv_heads = 2, .head_size = 32};
  const OpAttributes h2{.sequence = 130, .heads = 2, .kv_heads = 2, .head_size = 64};
  const OpAttributes h6_2{.sequence = 300, .heads = 6, .kv_heads = 2, .head_size = 16};
  const OpAttributes h4_1{.sequence = 330, .heads = 4, .kv_heads = 1, .head_size = 20};
  const OpAttributes h2_1{.sequence = 70, .heads = 2, .kv_heads = 1, .head_size = 128};
  const auto with = [](OpAttributes a, int64_t window, double soft_cap = 0, double scale = 0) {
    a.window = window, a.soft_cap = soft_cap, a.scale = scale;
    return a;
  };
  const std::vector<Shape> grouped = {{74, 128}, {74, 64}, {74, 64}}, packed = {{74, 256}};
  const std::vector<Shape> long_packed = {{260, 384}}, longer = {{330, 80}, {330, 20}, {330, 20}};
  const std::vector<Shape> wide = {{140, 512}}, pairs = {{600, 160}};
  const auto and_begins = [](std::vector<Shape> inputs) {
    inputs.push_back({inputs[0][0]});
    return inputs;
  };
  using enum OpKind;
  return {
      {"attention_window", attention, with(h4_2, 7), grouped, {}, 2},
      {"attention_window_of_one_key", attention, with(h4_2, 1), packed, {}},
      {"attention_window_of_a_block", attention, with(h2, 64), long_packed, {}},
      {"attention_window_beyond_a_block", attention, with(h2, 100), long_packed, {}, 2},
      {"attention_window_of_a_block_of_keys", attention, with(h6_2, 256), pairs, {}, 2, 0, true},
      {"attention_window_of_few_keys", attention, with(h4_1, 17), longer, {}, 2, 0, true},
      {"attention_window_of_many_keys", attention, with(h4_1, 270), longer, {}, 2, 0, true},
      {"attention_window_of_all_keys", attention, with(h4_2, 37), packed, {}},
      {"attention_window_beyond_the_sequence", attention, with(h4_2, 1000), packed, {}},
      {"attention_soft_cap", attention, with(h4_2, 0, 1.5), grouped, {}, 2},
      {"attention_soft_cap_long", attention, with(h2, 0, 30), long_packed, {}, 3},
      {"attention_scale", attention, with(h4_2, 0, 0, 0.3), grouped, {}},
      {"attention_documents", attention, h4_2, and_begins(grouped), {}, 2, 0, false, {5, 1, 1, 20}},
      {"attention_documents_packed", attention, h4_2, and_begins(packed), {}, 1, 0, false, {17, 20, 32}},
      {"attention_documents_of_one_token", attention, h4_2, and_begins(packed), {}, 1, 0, false, {1}},
      {"attention_one_document", attention, h4_2, and_begins(packed), {}},
      {"attention_documents_long", attention, h2, and_begins(long_packed), {}, 2, 0, false, {32, 33, 65, 64}},
      {"attention_documents_longer", attention, h4_1, and_begins(longer), {}, 2, 0, true, {100, 156, 3}},
      {"attention_documents_of_pairs", attention, h6_2, and_begins(pairs), {}, 2, 0, true, {256, 70}},
      {"attention_sinks", attention, h4_2, grouped, {{4}}, 2},
      {"attention_sinks_packed", attention, h4_2, packed, {{4}}},
      {"attention_sinks_wide_heads", attention, h2_1, wide, {{2}}},
      {"attention_sinks_longer", attention, h4_1, longer, {{4}}, 2, 0, true},
      {"attention_everything",
       attention,
       with(h4_2, 9, 2, 0.25),
       and_begins(grouped),
       {{4}},
       2,
       0,
       false,
       {21, 1, 13}},
      {"attention_everything_packed",
       attention,
       with(h4_2, 16, 5, 0.2),
       and_begins(packed),
       {{4}},
       1,
       0,
       false,
       {32, 6}},
      {"attention_everything_long",
       attention,
       with(h2, 50, 3, 0.15),
       and_begins(long_packed),
       {{2}},
       2,
       0,
       false,
       {64, 100}},
      {"attention_everything_wide_heads",
       attention,
       with(h2_1, 33, 10, 0.1),
       and_begins(wide),
       {{2}},
       1,
       0,
       false,
       {16, 40}},
      {"attention_everything_longer",
       attention,
       with(h4_1, 100, 4, 0.3),
       and_begins(longer),
       {{4}},
       2,
       0,
       true,
       {64, 200, 1}},
      {"attention_everything_of_pairs",
       attention,
       with(h6_2, 128, 4, 0.3),
       and_begins(pairs),
       {{6}},
       2,
       0,
       true,
       {200, 3}},
  };
}

// The sizes cross the blocks of fast kernels: rows above 512, depths above 1024, sequences above 256, and
// partial vectors.
inline std::vector<OpCase> op_cases() {
  const OpAttributes none;
  const OpAttributes rows16{.loss_rows = 16}, rows512{.loss_rows = 512};
  const OpAttributes norm{.epsilon = 1e-5}, out_in{.weight_out_in = true}, t37{.sequence = 37};
  const OpAttributes h5{.sequence = 37, .heads = 5, .kv_heads = 5, .head_size = 32, .rope_theta = 10000};
  const OpAttributes h4_2{.sequence = 37, .heads = 4, .kv_heads = 2, .head_size = 32};
  const OpAttributes h5_1{.sequence = 19, .heads = 5, .kv_heads = 1, .head_size = 9};
  const OpAttributes h2{.sequence = 130, .heads = 2, .kv_heads = 2, .head_size = 64};
  const OpAttributes h4_1{.sequence = 330, .heads = 4, .kv_heads = 1, .head_size = 20};
  const OpAttributes h2_1{.sequence = 70, .heads = 2, .kv_heads = 1, .head_size = 128};
  const OpAttributes h2_1_long{.sequence = 150, .heads = 2, .kv_heads = 1, .head_size = 128};
  const OpAttributes h1{.sequence = 33, .heads = 1, .kv_heads = 1, .head_size = 75};
  const OpAttributes single{.sequence = 1, .heads = 3, .kv_heads = 3, .head_size = 6, .rope_theta = 10000};
  const OpAttributes tiny{.sequence = 5, .heads = 2, .kv_heads = 2, .head_size = 6, .rope_theta = 100};
  // Wavelengths from 6 to 1.4 million positions use all three branches of llama3's scaling.
  const RopeScaling llama3{.factor = 8, .low = 1, .high = 4, .original_context = 64};
  const OpAttributes scaled{
      .sequence = 37, .heads = 3, .head_size = 32, .rope_theta = 500000, .rope_scaling = llama3};
  using enum OpKind;
  std::vector<OpCase> cases = {
      {"embedding", embedding, none, {{74}}, {{300, 40}}},
      {"embedding_positions", embedding, t37, {{74}}, {{300, 40}, {37, 40}}},
      {"embedding_spare_positions", embedding, t37, {{37}}, {{300, 33}, {50, 33}}},
      {"embedding_wide", embedding, t37, {{111}}, {{50, 150}, {37, 150}}},
      {"embedding_wider", embedding, none, {{20}}, {{9, 2056}}},
      {"embedding_many_rows", embedding, none, {{1100}}, {{50, 12}}, 1, 0, true},
      {"embedding_one_row", embedding, none, {{1}}, {{7, 5}}},
      {"layer_norm", layer_norm, norm, {{74, 160}}, {{160}, {160}}},
      {"layer_norm_one_row", layer_norm, norm, {{1, 7}}, {{7}, {7}}},
      {"layer_norm_far_mean", layer_norm, norm, {{37, 33}}, {{33}, {33}}, 1, 8},
      {"layer_norm_many_rows", layer_norm, norm, {{600, 65}}, {{65}, {65}}},
      {"layer_norm_wide", layer_norm, norm, {{5, 1030}}, {{1030}, {1030}}},
      {"layer_norm_wider", layer_norm, norm, {{3, 2304}}, {{2304}, {2304}}},
      {"layer_norm_widest", layer_norm, norm, {{2, 5200}}, {{5200}, {5200}}},
      {"rms_norm", rms_norm, norm, {{74, 160}}, {{160}}},
      {"rms_norm_one_row", rms_norm, norm, {{1, 7}}, {{7}}},
      {"rms_norm_odd", rms_norm, norm, {{37, 33}}, {{33}}, 2},
      {"rms_norm_many_rows", rms_norm, norm, {{600, 65}}, {{65}}},
      {"rms_norm_wide", rms_norm, norm, {{5, 1030}}, {{1030}}},
      {"rms_norm_widest", rms_norm, norm, {{2, 5200}}, {{5200}}},
      {"linear", linear, none, {{37, 40}}, {{40, 24}}},
      {"linear_bias", linear, none, {{37, 160}}, {{160, 48}, {48}}},
      {"linear_out_in", linear, out_in, {{37, 40}}, {{24, 40}}},
      {"linear_out_in_bias", linear, out_in, {{5, 33}}, {{17, 33}, {17}}},
      {"linear_odd", linear, none, {{5, 33}}, {{33, 17}, {17}}},
      {"linear_one_row", linear, none, {{1, 3}}, {{3, 1}, {1}}},
      {"linear_one_row_out_in", linear, out_in, {{1, 160}}, {{300, 160}}},
      {"linear_tiles", linear, none, {{300, 161}}, {{161, 600}, {600}}, 1, 0, true},
      {"linear_tiles_out_in", linear, out_in, {{515, 161}}, {{300, 161}}, 1, 0, true},
      {"linear_deep", linear, none, {{17, 1100}}, {{1100, 33}}, 1, 0, true},
      {"linear_deep_out_in", linear, out_in, {{1100, 17}}, {{1050, 17}, {1050}}, 1, 0, true},
      {"linear_gelu", linear_gelu, none, {{37, 40}}, {{40, 24}}, 3},
      {"linear_gelu_bias", linear_gelu, none, {{37, 160}}, {{160, 48}, {48}}, 2},
      {"linear_gelu_out_in", linear_gelu, out_in, {{37, 40}}, {{24, 40}}, 3},
      {"linear_gelu_out_in_bias", linear_gelu, out_in, {{74, 33}}, {{16, 33}, {16}}},
      {"linear_gelu_odd", linear_gelu, none, {{5, 33}}, {{33, 17}}},
      {"linear_gelu_odd_bias", linear_gelu, out_in, {{5, 33}}, {{17, 33}, {17}}, 2},
      {"linear_gelu_one", linear_gelu, none, {{1, 1}}, {{1, 1}, {1}}},
      {"linear_gelu_tiles", linear_gelu, none, {{300, 161}}, {{161, 600}, {600}}, 3, 0, true},
      {"swiglu", swiglu, none, {{37, 33}, {37, 33}}, {}, 6},
      {"swiglu_one", swiglu, none, {{1, 1}, {1, 1}}, {}},
      {"swiglu_many", swiglu, none, {{74, 1000}, {74, 1000}}, {}, 3},
      {"rope", rope, h5, {{74, 160}}, {}},
      {"rope_tiny", rope, tiny, {{5, 12}}, {}},
      {"rope_one_row", rope, single, {{1, 18}}, {}},
      {"rope_llama3", rope, scaled, {{37, 96}}, {}},
      {"attention", attention, h5, {{74, 160}, {74, 160}, {74, 160}}, {}},
      {"attention_packed", attention, h5, {{74, 480}}, {}},
      {"attention_grouped", attention, h4_2, {{74, 128}, {74, 64}, {74, 64}}, {}, 2},
      {"attention_packed_grouped", attention, h4_2, {{74, 256}}, {}},
      {"attention_multi_query", attention, h5_1, {{38, 45}, {38, 9}, {38, 9}}, {}, 3},
      {"attention_wide_heads", attention, h2_1, {{70, 256}, {70, 128}, {70, 128}}, {}},
      {"attention_wide_heads_long", attention, h2_1_long, {{300, 512}}, {}, 1, 0, true},
      {"attention_odd_wide_heads", attention, h1, {{66, 225}}, {}},
      {"attention_one_row", attention, single, {{1, 54}}, {}},
      {"attention_one_token_sequences", attention, single, {{4, 54}}, {}},
      {"attention_long", attention, h2, {{260, 384}}, {}, 2},
      {"attention_longer", attention, h4_1, {{330, 80}, {330, 20}, {330, 20}}, {}, 2, 0, true},
      {"add", add, none, {{37, 33}, {37, 33}}, {}},
      {"add_one", add, none, {{1, 1}, {1, 1}}, {}},
      {"add_many", add, none, {{74, 1000}, {74, 1000}}, {}},
      {"cross_entropy", linear_cross_entropy, none, {{37, 40}, {37}}, {{300, 40}}},
      {"cross_entropy_one_row", linear_cross_entropy, none, {{1, 5}, {1}}, {{7, 5}}},
      {"cross_entropy_odd", linear_cross_entropy, none, {{74, 33}, {74}}, {{1031, 33}}},
      {"cross_entropy_wide", linear_cross_entropy, none, {{5, 8}, {5}}, {{9001, 8}}},
      {"cross_entropy_widest", linear_cross_entropy, none, {{3, 8}, {3}}, {{20011, 8}}},
      {"cross_entropy_parts", linear_cross_entropy, rows16, {{37, 40}, {37}}, {{300, 40}}},
      {"cross_entropy_wide_parts", linear_cross_entropy, rows512, {{520, 8}, {520}}, {{3001, 8}}, 1, 0, true},
  };
  for (OpCase& c : attention_score_cases()) cases.push_back(std::move(c));
  return cases;
}

// Whether a device may round matrices to the working precision between the products of this op.
inline bool rounds_between_products(OpKind kind) {
  return kind == OpKind::attention || kind == OpKind::linear_gelu || kind == OpKind::linear_cross_entropy;
}

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
    for (size_t i = 0; i < storage_.size(); ++i)
      if ((i < offset_ || i >= offset_ + bytes_) && storage_[i] != kPattern) return false;
    return true;
  }

 private:
  static constexpr uint64_t kBand = 256, kAlignment = 64;
  static constexpr uint8_t kPattern = 0xA5;
  uint64_t bytes_, offset_ = 0;
  std::vector<uint8_t> storage_, frozen_;
};

constexpr uint8_t kPoison = 0xFF;  // NaN in every floating-point type, -1 as an index

inline std::vector<double> read_values(const void* data, DType type, int64_t count) {
  std::vector<double> out(static_cast<size_t>(count));
  if (type == DType::f64) {
    std::memcpy(out.data(), data, out.size() * sizeof(double));
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

inline std::vector<TensorView> views(std::vector<Guarded>& tensors) {
  std::vector<TensorView> out;
  for (Guarded& tensor : tensors) out.push_back({tensor.data()});
  return out;
}

// What an op reads: inputs, parameters and gradients of outputs. They are frozen once filled.
struct Operands {
  OpShapes shapes;
  std::vector<DType> output_types;
  std::vector<Guarded> inputs, parameters, output_gradients;

  Operands(const OpCase& c, DType precision)
      : shapes{c.kind, c.attributes, precision, c.inputs, {}, c.parameters} {
    op_rule(c.kind).infer(shapes, shapes.outputs, output_types);
    uint32_t seed = 1;
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      if (is_index(i) && c.kind == OpKind::attention)
        inputs.push_back(document_begins(c.inputs[i][0], c.attributes.sequence, c.documents));
      else if (is_index(i))
        inputs.push_back(random_indices(element_count(c.inputs[i]), c.parameters[0][0], seed++, i == 1));
      else
        inputs.push_back(random_tensor(c.inputs[i], precision, seed++, c.scale, c.shift));
    }
    // Norm weights lie around 1. The weights of one output have a length of about 1, so that results have the
    // size of the inputs.
    const bool norm = c.kind == OpKind::layer_norm || c.kind == OpKind::rms_norm;
    for (size_t i = 0; i < c.parameters.size(); ++i) {
      const bool matrix = i == 0 && (c.kind == OpKind::linear || c.kind == OpKind::linear_gelu ||
                                     c.kind == OpKind::linear_cross_entropy);
      const double columns = matrix ? static_cast<double>(c.inputs[0][1]) : 3;
      parameters.push_back(
          random_tensor(c.parameters[i], precision, seed++, std::sqrt(3 / columns), norm && i == 0 ? 1 : 0));
    }
    for (size_t i = 0; i < shapes.outputs.size(); ++i)
      if (op_rule(c.kind).gradient_outputs >> i & 1)
        output_gradients.push_back(random_tensor(shapes.outputs[i], precision, seed++, 1, 0));
    freeze();
  }

  bool is_index(size_t input) const { return input_type(shapes, input) == DType::i32; }
  void freeze() {
    for (auto* tensors : {&inputs, &parameters, &output_gradients})
      for (Guarded& tensor : *tensors) tensor.freeze();
  }
  void expect_unchanged() {
    for (auto* tensors : {&inputs, &parameters, &output_gradients})
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

constexpr double kLossBefore = 1.5;  // the value to which the loss is added
constexpr float kSeed = 4;  // loss scale / valid tokens: logits' gradients stay among fp16's normal numbers

// Outputs full of poison; the loss begins at `kLossBefore`.
inline std::vector<Guarded> make_outputs(const Operands& operands) {
  std::vector<Guarded> outputs;
  for (size_t i = 0; i < operands.output_types.size(); ++i) {
    const DType type = operands.output_types[i];
    outputs.emplace_back(static_cast<uint64_t>(element_count(operands.shapes.outputs[i])) * dtype_bytes(type),
                         kPoison);
    if (type == DType::f64) *static_cast<double*>(outputs.back().data()) = kLossBefore;
  }
  return outputs;
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
  }
  return results;
}

struct BackwardOptions {
  bool accumulate = false;  // add to input gradients; they begin at random values (at zero if `from_zero`)
  bool from_zero = false;   // parameter gradients begin at zero too
  bool overwrite = false;   // parameter gradients are overwritten where the op can; these begin as garbage
  uint32_t without_inputs = 0;      // bit i: no gradient of input i is wanted
  uint32_t without_parameters = 0;  // bit i: parameter i is frozen
};

// The gradients that a backward writes: guarded memory, a result for each (still empty), and the views that a
// call gets.
struct Gradients {
  std::vector<Guarded> tensors;
  std::vector<Result> results;
  std::vector<TensorView> inputs, parameters;
  Guarded loss{sizeof(double), 0};

  Gradients(const OpShapes& shapes, const BackwardOptions& options)
      : inputs(shapes.inputs.size()), parameters(shapes.parameters.size()) {
    const double spread = options.from_zero ? 0 : 1;
    for (uint32_t i = 0; i < inputs.size(); ++i) {
      if (!has_gradient(shapes, i) || (options.without_inputs >> i & 1) != 0) continue;
      tensors.push_back(random_tensor(shapes.inputs[i], shapes.precision, 101 + i, spread, 0));
      Guarded& tensor = tensors.back();
      if (!options.accumulate) std::memset(tensor.data(), kPoison, tensor.bytes());
      inputs[i] = {tensor.data(), options.accumulate};
      results.push_back({"gradient of input " + std::to_string(i), shapes.precision, {}});
    }
    for (uint32_t i = 0; i < parameters.size(); ++i) {
      if (options.without_parameters >> i & 1) continue;
      tensors.push_back(random_tensor(shapes.parameters[i], DType::f32, 201 + i, spread, 0));
      Guarded& tensor = tensors.back();
      parameters[i] = {tensor.data(), !options.overwrite};
      if (options.overwrite && (op_rule(shapes.kind).overwrites_parameters >> i & 1) != 0)
        std::memset(tensor.data(), kPoison, tensor.bytes());
      results.push_back({"gradient of parameter " + std::to_string(i), DType::f32, {}});
    }
    *static_cast<double*>(loss.data()) = kLossBefore;
  }

  // Checks the guard bands, and fills the results with what was written.
  std::vector<Result> collect(bool with_loss) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(tensors[i].bands_intact()) << "backward wrote outside of the " << results[i].name;
      const uint64_t count = tensors[i].bytes() / dtype_bytes(results[i].type);
      results[i].values = read_values(tensors[i].data(), results[i].type, static_cast<int64_t>(count));
    }
    EXPECT_TRUE(loss.bands_intact()) << "backward wrote outside of the loss";
    if (with_loss) results.push_back({"loss", DType::f64, read_values(loss.data(), DType::f64, 1)});
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
  Gradients gradients(shapes, options);
  std::vector<TensorView> inputs = views(operands.inputs), outputs(saved.size()),
                          output_gradients(saved.size());
  std::vector<Guarded> overwritten;  // copies
  overwritten.reserve(saved.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    if ((rule.backward_reads_inputs >> i & 1) == 0) inputs[i].data = nullptr;
  for (size_t i = 0, next = 0; i < saved.size(); ++i) {
    saved[i].freeze();
    if (rule.backward_reads_outputs >> i & 1) outputs[i].data = saved[i].data();
    if ((rule.gradient_outputs >> i & 1) == 0) continue;
    Guarded& gradient = operands.output_gradients[next++];
    output_gradients[i].data = gradient.data();
    if ((rule.overwritten_gradients >> i & 1) == 0) continue;
    overwritten.emplace_back(gradient.bytes(), 0);
    std::memcpy(overwritten.back().data(), gradient.data(), gradient.bytes());
    output_gradients[i].data = overwritten.back().data();
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
  const double loss_scale = kSeed * 3, valid_tokens = 3;
  if (loss) call.loss_scale = &loss_scale, call.valid_tokens = &valid_tokens;
  device.backward(call);
  operands.expect_unchanged();
  for (Guarded& output : saved) EXPECT_TRUE(output.unchanged()) << "backward wrote to a saved output";
  for (Guarded& gradient : overwritten)
    EXPECT_TRUE(gradient.bands_intact()) << "backward wrote outside of an output's gradient";
  EXPECT_TRUE(workspace.bands_intact()) << "backward wrote outside of its workspace";
  return gradients.collect(loss);
}

}  // namespace sluice
