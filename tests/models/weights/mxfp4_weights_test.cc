// gpt-oss in MXFP4: its experts are what transformers makes of them, wherever blocks and scales lie.
#include "models/families/family.h"
#include "models/files/file.h"
#include "models/weights/hf_weights.h"
#include "models/weights/stacked.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

const std::string kFolder = "tests/fixtures/mxfp4/";
constexpr const char* kGate = "model.layers.0.mlp.experts.gate_up_proj";

class Mxfp4Weights : public FormatTest {
 protected:
  void write(const std::string& file, const std::vector<TensorSpec>& specs) const {
    SafetensorsWriter writer(path(file), specs, {}, kExportAlignment);
    for (const TensorSpec& spec : specs) {
      const std::string bytes(static_cast<size_t>(element_count(spec.shape)) * dtype_bytes(spec.dtype), 0x22);
      writer.write(bytes.data(), bytes.size());
    }
    writer.finish();
  }
  HfWeights opened() const { return HfWeights::open(directory.string(), "gpt_oss"); }
};

TEST_F(Mxfp4Weights, ExpertsAreThoseOfTransformers) {
  const ModelConfig config =
      config_from_json(read_text_file(kFolder + "model/config.json", 1 << 16), "config.json");
  const Model model = build_model(config, DType::bf16, 1, 8);
  const HfWeights weights = HfWeights::open(kFolder + "model", "gpt_oss");
  ASSERT_NO_THROW(check_weights(weights, model));
  const SafetensorsFile file = SafetensorsFile::open(kFolder + "experts.safetensors");
  size_t compared = 0;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    std::vector<float> all(tensor.elements());
    file.read_f32(tensor, 0, all.size(), all.data());
    for (const TensorPart& part : stacked_parts(*find_family("gpt_oss"), tensor.name, tensor.shape)) {
      ASSERT_EQ(weights.find(part.parameter)->shape, part.shape) << part.parameter;
      std::vector<float> values(part.elements());
      weights.read(part.parameter, 0, values.size(), values.data());
      for (uint64_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(values[i], all[part.skip + i * part.step]) << part.parameter << " " << i;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2u * 3 * 3);  // layers, experts, matrices
}

TEST_F(Mxfp4Weights, BlocksAndScalesMayLieInDifferentFiles) {
  write("a.safetensors", {{std::string(kGate) + "_blocks", DType::u8, {2, 4, 1, 16}}});
  write("b.safetensors", {{std::string(kGate) + "_scales", DType::u8, {2, 4, 1}}});
  write_file("model.safetensors.index.json",
             R"({"weight_map":{"model.layers.0.mlp.experts.gate_up_proj_blocks":"a.safetensors",)"
             R"("model.layers.0.mlp.experts.gate_up_proj_scales":"b.safetensors"}})");
  const HfWeights weights = opened();
  EXPECT_EQ(weights.names().size(), 4u);
  EXPECT_EQ(weights.find("model.layers.0.mlp.experts.1.up_proj.weight")->shape, (Shape{32, 2}));
}

TEST_F(Mxfp4Weights, WhatDoesNotFitIsSaid) {
  const std::string blocks = std::string(kGate) + "_blocks", scales = std::string(kGate) + "_scales";
  write("model.safetensors", {{blocks, DType::u8, {2, 4, 1, 16}}, {scales, DType::u8, {2, 4, 2}}});
  expect_error(
      ExitCode::malformed_file,
      {"gate_up_proj_blocks' U8 [2, 4, 1, 16] and ", "gate_up_proj_scales' U8 [2, 4, 2] are no blocks"},
      [&] { opened(); });
  write("model.safetensors", {{blocks, DType::u8, {2, 4, 1, 16}}});
  EXPECT_EQ(opened().names(), std::vector<std::string>{blocks}) << "an unknown tensor";
  write("model.safetensors", {{scales, DType::u8, {2, 4, 1}}});
  EXPECT_EQ(opened().names(), std::vector<std::string>{scales});
  write(
      "model.safetensors",
      {{blocks, DType::u8, {2, 4, 1, 16}}, {scales, DType::u8, {2, 4, 1}}, {kGate, DType::bf16, {2, 32, 4}}});
  expect_error(ExitCode::malformed_file, {"twice, under two names"}, [&] { opened(); });
}

std::string config_with(const std::string& quantization, const char* family = "gpt_oss") {
  std::string json = config_to_json(config_from_name(std::string(family) + ":layers=2"), DType::bf16);
  return json.insert(json.find('{') + 1, "\"quantization_config\": " + quantization + ",");
}

TEST_F(Mxfp4Weights, OtherQuantizationsAreRefused) {
  EXPECT_NO_THROW(
      config_from_json(config_with(R"({"quant_method": "mxfp4", "modules_to_not_convert": []})"), "c"));
  EXPECT_NO_THROW(config_from_json(config_with("null"), "c"));
  const auto refused = [](const std::string& json, const std::string& part) {
    expect_error(ExitCode::malformed_file, {part}, [&] { config_from_json(json, "c"); });
  };
  refused(config_with(R"({"quant_method": "fp8"})"), "quant_method \"fp8\" is not supported, only \"mxfp4\"");
  refused(config_with("{}"), "quant_method is missing");
  refused(config_with("3"), "quantization_config is 3");
  refused(config_with(R"({"quant_method": "mxfp4"})", "qwen3_moe"), "quantization_config is");
}

}  // namespace
}  // namespace sluice
