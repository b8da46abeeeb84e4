// GPT-2: learned positions, pre-norm layers, packed q|k|v, GELU. Weights are [in, out]. Radford et al.,
// "Language Models are Unsupervised Multitask Learners" (2019); tensor names as in Hugging Face checkpoints
// without the prefix, shapes as published in the models' config.json files.
#include "models/families/family.h"
#include "models/families/gpt2_form.h"

namespace sluice {
namespace {

std::vector<Preset> presets() {
  return {{"gpt2", gpt2_config(12, 768, 12), 124'439'808},
          {"gpt2-medium", gpt2_config(24, 1024, 16), 354'823'168},
          {"gpt2-large", gpt2_config(36, 1280, 20), 774'030'080},
          {"gpt2-xl", gpt2_config(48, 1600, 25), 1'557'611'200}};
}

SegmentBuilder::Tensor layer(const ModelConfig& c, SegmentBuilder& b, SegmentBuilder::Tensor x) {
  const Gpt2Attended attended = gpt2_attended(c, b, x);
  return b.op(OpKind::add, "y", {attended.middle, gpt2_mlp(b, "mlp", attended.rows)});
}

void build(const ModelConfig& c, Model& model) {
  Decoder decoder = gpt2_decoder();
  decoder.parameters = [&](const std::string& prefix, int64_t) {
    std::vector<Parameter> parameters = gpt2_parameters(c, prefix);
    add_gpt2_mlp(c, prefix + "mlp.", c.ffn, parameters);
    return parameters;
  };
  decoder.layer = [&](SegmentBuilder& b, SegmentBuilder::Tensor x, LayerType) { return layer(c, b, x); };
  build_decoder(c, decoder, model);
}

}  // namespace

extern const Family kGpt2 = {.name = "gpt2",
                             .title = "GPT-2",
                             .architecture = "GPT2LMHeadModel",
                             .presets = presets,
                             .plain_preset = "gpt2",
                             .keys = {},
                             .ffn = gpt2_ffn,
                             .read = read_gpt2,
                             .write = write_gpt2,
                             .matrices_in_out = true,
                             .tensor_prefix = "transformer.",
                             .is_buffer = is_gpt2_buffer,
                             .build = build};

}  // namespace sluice
