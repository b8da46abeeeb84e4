// Tensors that have the parameters of all experts of a layer: read into these, and made of them again.
#include "models/weights/stacked.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <filesystem>
#include <map>
#include <numeric>

#include "models/families/family.h"
#include "models/weights/hf_export.h"
#include "models/weights/hf_weights.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

class StackedTest : public FormatTest {
 protected:
  // A file with these tensors, whose values are 0, 1, 2, ...
  void write(const std::vector<TensorSpec>& specs) const {
    SafetensorsWriter writer(path("model.safetensors"), specs, {}, kExportAlignment);
    for (const TensorSpec& spec : specs) {
      std::vector<float> values(static_cast<size_t>(element_count(spec.shape)));
      std::iota(values.begin(), values.end(), 0.0f);
      writer.write(values.data(), values.size() * sizeof(float));
    }
    writer.finish();
  }
  HfWeights opened(const std::string& name, const Shape& shape, const char* family,
                   const ExpertCounts& most = {}) const {
    write({{name, DType::f32, shape}});
    return HfWeights::open(directory.string(), family, most);
  }
};

std::vector<float> values_of(const HfWeights& weights, const std::string& parameter) {
  std::vector<float> values(weights.find(parameter)->elements());
  weights.read(parameter, 0, values.size(), values.data());
  return values;
}

using Floats = std::vector<float>;

TEST_F(StackedTest, RowsOfTwoParametersFollowOneAnother) {  // of 2 experts; each has 2 rows of 3 columns
  const HfWeights weights = opened("model.layers.3.mlp.experts.gate_up_proj", {2, 4, 3}, "qwen3_moe");
  EXPECT_EQ(weights.names().size(), 4u);
  const std::string expert = "model.layers.3.mlp.experts.";
  EXPECT_EQ(weights.find(expert + "1.up_proj.weight")->shape, (Shape{2, 3}));
  EXPECT_EQ(values_of(weights, expert + "0.gate_proj.weight"), (Floats{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values_of(weights, expert + "0.up_proj.weight"), (Floats{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(values_of(weights, expert + "1.gate_proj.weight"), (Floats{12, 13, 14, 15, 16, 17}));
}

TEST_F(StackedTest, ColumnsOfTwoParametersAlternate) {  // of 2 experts; each has 2 rows of 2 columns
  const HfWeights weights = opened("model.layers.0.mlp.experts.gate_up_proj", {2, 2, 4}, "gpt_oss");
  const std::string expert = "model.layers.0.mlp.experts.";
  EXPECT_EQ(values_of(weights, expert + "0.gate_proj.weight"), (Floats{0, 2, 4, 6}));
  EXPECT_EQ(values_of(weights, expert + "1.up_proj.weight"), (Floats{9, 11, 13, 15}));
  float two[2];
  weights.read(expert + "1.gate_proj.weight", 1, 2, two);
  EXPECT_EQ((Floats{two[0], two[1]}), (Floats{10, 12}));
}

TEST_F(StackedTest, BiasesAndOtherNames) {
  const HfWeights biases = opened("model.layers.0.mlp.experts.gate_up_proj_bias", {2, 4}, "gpt_oss");
  EXPECT_EQ(biases.find("model.layers.0.mlp.experts.1.up_proj.bias")->shape, (Shape{2}));
  EXPECT_EQ(values_of(biases, "model.layers.0.mlp.experts.1.up_proj.bias"), (Floats{5, 7}));
  const HfWeights down = opened("model.layers.1.mlp.experts.down_proj", {2, 1, 3}, "mixtral");
  EXPECT_EQ(values_of(down, "model.layers.1.block_sparse_moe.experts.1.w2.weight"), (Floats{3, 4, 5}));
  const HfWeights router = opened("model.layers.1.mlp.gate.weight", {2, 2}, "mixtral");
  EXPECT_NE(router.find("model.layers.1.block_sparse_moe.gate.weight"), nullptr);
}

TEST_F(StackedTest, WhatCannotBeDividedStaysAsItIs) {
  const HfWeights odd = opened("model.layers.0.mlp.experts.gate_up_proj", {2, 3, 3}, "qwen3_moe");
  EXPECT_EQ(odd.names(), (std::vector<std::string>{"model.layers.0.mlp.experts.gate_up_proj"}));
  EXPECT_EQ(opened("mlp.experts.gate_up_proj", {2, 4}, "qwen3_moe").names().size(), 1u);
}

// With --shards, each exported file has some experts of a layer.
TEST_F(StackedTest, FilesHaveSomeExpertsEach) {
  const std::vector<ExportTensor> tensors = {{"model.layers.0.mlp.experts.down_proj", {5, 3, 2}},
                                             {"model.layers.0.mlp.experts.gate_up_proj", {5, 2, 6}},
                                             {"model.layers.0.mlp.experts.gate_up_proj_bias", {5, 6}},
                                             {"model.layers.0.mlp.router.weight", {5, 2}}};
  const auto export_to = [&](const std::string& name, uint64_t shards) {
    write_hf_directory(path(name), tensors, {.dtype = DType::f32, .shards = shards, .config_json = "{}"},
                       [](size_t tensor, uint64_t first, uint64_t count, float* out) {
                         std::iota(out, out + count, static_cast<float>(1000 * tensor + first));
                       });
    return HfWeights::open(path(name), "gpt_oss");
  };
  const HfWeights whole = export_to("whole", 1);
  ASSERT_EQ(whole.names().size(), 5 + 2 * 5 + 2 * 5 + 1u);
  for (const uint64_t shards : {2u, 5u, 7u}) {
    SCOPED_TRACE(shards);
    const HfWeights parts = export_to("parts" + std::to_string(shards), shards);
    EXPECT_EQ(parts.names(), whole.names());
    for (const std::string& name : whole.names()) {
      EXPECT_EQ(parts.find(name)->shape, whole.find(name)->shape) << name;
      EXPECT_EQ(values_of(parts, name), values_of(whole, name)) << name;
    }
  }
  const std::string file = "/shard-00002-model-00001-of-00001.safetensors";
  std::filesystem::copy(path("parts5" + file), path("parts5/shard-00002-model-00002-of-00002.safetensors"));
  expect_error(ExitCode::malformed_file, {"holds 'model.layers.0.mlp.experts.1.down_proj.weight' twice"},
               [&] { HfWeights::open(path("parts5"), "gpt_oss"); });
}

// The length of a header does not tell how much memory its table takes: one name stands for many parameters.
TEST_F(StackedTest, TheTableTakesNoMoreThanIsSetAside) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers allocate otherwise";
#endif
  constexpr int64_t kExperts = 2000;
  const uint64_t stacked = stacked_parameters(*find_family("gpt_oss"), {1, kExperts});
  EXPECT_EQ(stacked, 6u * kExperts);
  const size_t before = mallinfo2().uordblks;
  const HfWeights weights = opened("model.layers.0.mlp.experts.gate_up_proj", {kExperts, 2, 4}, "gpt_oss");
  const size_t taken = mallinfo2().uordblks - before;
  EXPECT_EQ(weights.names().size(), 2u * kExperts);
  EXPECT_LE(taken, table_bytes_at_most(directory.string(), 2 * kExperts));
  EXPECT_GE(taken, table_bytes_at_most(directory.string())) << "or it need not be set aside";
}

// The table of such a file would take more memory than is set aside.
TEST_F(StackedTest, MoreExpertsThanTheModelHasAreRefused) {
  const std::string layer = "model.layers.0.mlp.experts.", other = "model.layers.1.mlp.experts.";
  const auto refused = [](const std::string& sentence, const std::function<void()>& action) {
    expect_error(ExitCode::malformed_file, {sentence}, action);
  };
  for (const char* family : {"gpt_oss", "qwen3_moe"})  // of a file that is a header alone
    refused("down_proj' has 1099511627776 experts, and the model has 4096", [&] {
      opened(layer + "down_proj", {int64_t{1} << 40, 0, 2}, family);
    });
  EXPECT_EQ(opened(layer + "down_proj", {3, 2, 2}, "gpt_oss", {1, 3}).names().size(), 3u);
  refused("down_proj' has 4 experts, and the model has 3", [&] {
    opened(layer + "down_proj", {4, 2, 2}, "gpt_oss", {1, 3});
  });

  // A whole layer of 2 experts is read. With one tensor of another layer, the file is refused.
  std::vector<TensorSpec> specs;
  for (const Stacked& stacked : find_family("gpt_oss")->stacked)
    specs.push_back({"model.layers.0." + std::string(stacked.tensor), DType::f32, {2, 2, 4}});
  write(specs);
  EXPECT_EQ(HfWeights::open(directory.string(), "gpt_oss", {1, 2}).names().size(),
            stacked_parameters(*find_family("gpt_oss"), {1, 2}));
  specs.push_back({other + "down_proj", DType::f32, {2, 2, 4}});
  write(specs);
  refused("model.layers.1.mlp.experts.down_proj' is one more of such tensors than 1 layers of 2 experts have",
          [&] {
            HfWeights::open(directory.string(), "gpt_oss", {1, 2});
          });
}

// Any range of a tensor in the file has the values of its parameters at those places.
TEST(Stacked, TensorsAreMadeOfTheirParameters) {
  const std::string name =
      "gpt_oss:layers=2,width=64,heads=4,kv_heads=2,vocab=96,context=16,experts=3,top=2,ffn=8";
  const Model model = build_model(config_from_name(name), DType::f32, 1, 8);
  const std::vector<StoredTensor> tensors = stored_tensors(*find_family("gpt_oss"), model);
  size_t stacked = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto elements = static_cast<uint64_t>(element_count(tensor.shape));
    // Reads elements of a parameter that is part of a tensor in which element i has the value i.
    const ReadPart read = [](const TensorPart& part, uint64_t first, uint64_t count, float* out) {
      for (uint64_t i = 0; i < count; ++i) out[i] = static_cast<float>(part.skip + (first + i) * part.step);
    };
    uint64_t covered = 0;
    for (const TensorPart& part : tensor.parts) covered += part.elements();
    EXPECT_EQ(covered, elements) << tensor.name;
    stacked += tensor.parts.size() > 1;
    for (const auto& [first, count] : {std::pair<uint64_t, uint64_t>{0, elements},
                                       {1, elements - 1},
                                       {elements / 3, elements / 2},
                                       {elements / 2, 1}}) {
      std::vector<float> values(count, -1);
      read_stored(tensor, first, count, read, values.data());
      for (uint64_t i = 0; i < count; ++i)
        ASSERT_EQ(values[i], static_cast<float>(first + i)) << tensor.name << " from " << first;
    }
  }
  EXPECT_EQ(stacked, 2u * 4);
}

}  // namespace
}  // namespace sluice
