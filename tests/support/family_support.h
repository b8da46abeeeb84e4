// What tests of models/families share: two published config.json files, errors about files, and models as
// text.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "models/families/family.h"
#include "tests/support/families.h"

namespace sluice {

inline const char* const kGpt2Json = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257})";

inline const char* const kLlamaJson = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008], "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256})";

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

inline std::string with(const std::string& text, const std::string& member) {  // adds one more member
  return replaced(text, "{", "{" + member + ",");
}

inline void expect_error(const std::function<void()>& act, ExitCode code, const std::string& sentence,
                         const std::string& remedy = "") {
  try {
    act();
    ADD_FAILURE() << "accepted, instead of: " << sentence;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    EXPECT_NE(error.remedy().find(remedy), std::string::npos) << error.remedy();
    EXPECT_FALSE(error.remedy().empty());
  }
}

inline void expect_bad_file(const std::string& text, const std::string& sentence) {
  expect_error([&] { config_from_json(text, "config.json"); }, ExitCode::malformed_file, sentence);
}

inline void expect_equal(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.family, b.family);
  EXPECT_EQ(a.vocabulary, b.vocabulary);
  EXPECT_EQ(a.context, b.context);
  EXPECT_EQ(a.width, b.width);
  EXPECT_EQ(a.layers, b.layers);
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.kv_heads, b.kv_heads);
  EXPECT_EQ(a.head_size, b.head_size);
  EXPECT_EQ(a.ffn, b.ffn);
  EXPECT_EQ(a.epsilon, b.epsilon);
  EXPECT_EQ(a.tied, b.tied);
  EXPECT_EQ(a.attention_bias, b.attention_bias);
  EXPECT_EQ(a.mlp_bias, b.mlp_bias);
  EXPECT_EQ(a.rope_theta, b.rope_theta);
  EXPECT_TRUE(a.rope_scaling == b.rope_scaling);
  EXPECT_EQ(a.window, b.window);
  EXPECT_EQ(a.sliding_rope_theta, b.sliding_rope_theta);
  EXPECT_TRUE(a.sliding_rope_scaling == b.sliding_rope_scaling);
  for (int64_t i = 0; i < a.layers; ++i) EXPECT_EQ(layer_type(a, i), layer_type(b, i)) << "layer " << i;
  EXPECT_EQ(a.embedding_scale, b.embedding_scale);
  EXPECT_EQ(a.residual_scale, b.residual_scale);
  EXPECT_EQ(a.attention_scale, b.attention_scale);
  EXPECT_EQ(a.logits_divisor, b.logits_divisor);
  EXPECT_EQ(a.attention_cap, b.attention_cap);
  EXPECT_EQ(a.logits_cap, b.logits_cap);
  EXPECT_EQ(a.special_tokens, b.special_tokens);
}

inline Model build(const std::string& name, DType precision = DType::bf16, int64_t micro_batch = 2,
                   int64_t sequence = 8) {
  return build_model(config_from_name(name), precision, micro_batch, sequence);
}

inline std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

// One line for each op: "y = linear(x; w[K,N], b[N])".
inline std::string ops_text(const Model& model, const SegmentUse& use) {
  const Segment& segment = model.segments[use.segment];
  std::string text;
  for (const Op& op : segment.ops) {
    std::vector<std::string> outputs, inputs, parameters;
    for (const uint32_t t : op.outputs) outputs.push_back(segment.tensors[t].name);
    for (const uint32_t t : op.inputs) inputs.push_back(segment.tensors[t].name);
    for (const uint32_t p : op.parameters) {
      const SegmentParameter& parameter = segment.parameters[p];
      const Group& group = model.groups[use.groups[parameter.slot]];
      parameters.push_back(group.parameters[parameter.parameter].name + shape_text(parameter.shape));
    }
    text += fmt::format("{} = {}({}{}{})\n", fmt::join(outputs, ", "), op_rule(op.kind).name,
                        fmt::join(inputs, ", "), parameters.empty() ? "" : "; ", fmt::join(parameters, ", "));
  }
  return text;
}

// Matrices of the first layer that write to the residual stream: their initial values are smaller.
inline std::vector<std::string> residual_matrices(const std::string& family) {
  const Model model = build(with_heads(*find_family(family), "layers=8,width=64,vocab=96,context=16"));
  std::vector<std::string> found;
  for (const Parameter& p : model.groups[model.layers[1].segments[0].groups[0]].parameters)
    if (p.standard_deviation < 0.02) found.push_back(p.name.substr(p.name.find(".0.") + 3));
  return found;
}

}  // namespace sluice
