// What GPT-2 and GPT-2 with experts share: keys of config.json, parameters, and a layer's attention. Radford
// et al., "Language Models are Unsupervised Multitask Learners" (2019).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/families/config_reader.h"
#include "models/families/decoder.h"

namespace sluice {

// As published: a vocabulary of 50257 and a context of 1024.
ModelConfig gpt2_config(int64_t layers, int64_t width, int64_t heads);
int64_t gpt2_ffn(int64_t width);

void read_gpt2(const ConfigReader& file, ModelConfig& config);
void write_gpt2(const ModelConfig& config, nlohmann::ordered_json& file);

// h.0.attn.bias and h.0.attn.masked_bias: the causal mask, not a parameter.
bool is_gpt2_buffer(std::string_view tensor);

// gpt2_parameters(): norms and attention of a layer. add_gpt2_mlp(): c_fc and c_proj, behind `prefix`, of a
// feed-forward part with `ffn` columns.
std::vector<Parameter> gpt2_parameters(const ModelConfig& config, const std::string& prefix);
void add_gpt2_mlp(const ModelConfig& config, const std::string& prefix, int64_t ffn,
                  std::vector<Parameter>& parameters);

// middle: x plus what attention makes of it. rows: the norm of middle.
struct Gpt2Attended {
  SegmentBuilder::Tensor middle, rows;
};
Gpt2Attended gpt2_attended(const ModelConfig& config, SegmentBuilder& builder, SegmentBuilder::Tensor x);
// What NAME.c_fc, gelu and NAME.c_proj make of x.
SegmentBuilder::Tensor gpt2_mlp(SegmentBuilder& builder, const std::string& name, SegmentBuilder::Tensor x);

// The frame: names of embeddings, layers and the last norm.
Decoder gpt2_decoder();

}  // namespace sluice
