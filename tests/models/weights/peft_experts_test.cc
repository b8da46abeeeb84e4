// Adapters of experts. Those that PEFT keeps for all experts of a layer are read as adapters of each expert.
// Adapters that PEFT would read in another sense are not exported.
#include "models/weights/peft_experts.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/file.h"
#include "models/families/family.h"
#include "models/weights/peft.h"
#include "models/weights/stacked.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

const std::string kFolder = "tests/fixtures/";
using Floats = std::vector<float>;

Floats values_of(const HfWeights& weights, const std::string& name) {
  Floats values(weights.find(name)->elements());
  weights.read(name, 0, values.size(), values.data());
  return values;
}

Model adapted(const std::string& json, const std::string& name, const Adapters& adapters) {
  ModelConfig config = config_from_json(json, name);
  config.adapters = adapters;
  return build_model(config, DType::f32, 1, 8);
}
Model adapted(const std::string& name, const Adapters& adapters) {
  return adapted(read_text_file(kFolder + name + "/config.json", 1 << 16), name, adapters);
}

// For every expert of the first layer, s B A is what PEFT adds to its weight.
TEST(PeftExperts, AdaptersOfPeftChangeWhatTheyChangeThere) {
  for (const std::string name : {"mixtral", "olmoe"}) {
    SCOPED_TRACE(name);
    const Family& family = *find_family(name);
    std::vector<std::string> notes;
    const std::string folder = kFolder + "peft_experts/" + name;
    const Adapters adapters = read_adapter_config(folder, notes, &family);
    EXPECT_TRUE(notes.empty());
    EXPECT_EQ(adapters.rank, name == "mixtral" ? 4 : 3);
    const HfWeights weights = HfWeights::open_adapters(folder, name);
    ASSERT_NO_THROW(check_weights(weights, adapted(name, adapters)));
    const SafetensorsFile file = SafetensorsFile::open(folder + "/changes.safetensors");
    size_t compared = 0;
    for (const SafetensorsTensor& tensor : file.tensors()) {
      Floats all(tensor.elements());
      file.read_f32(tensor, 0, all.size(), all.data());
      for (const TensorPart& part :
           stacked_parts(family, "model.layers.0.mlp.experts." + tensor.name, tensor.shape)) {
        const std::string linear = linear_name(part.parameter);
        const Floats a = values_of(weights, linear + std::string(kAdapterDown)),
                     b = values_of(weights, linear + std::string(kAdapterUp));
        const auto rank = static_cast<size_t>(adapters.rank), in = static_cast<size_t>(part.shape[1]);
        ASSERT_EQ(a.size(), rank * in);
        for (size_t i = 0; i < part.elements(); ++i) {
          double sum = 0;
          for (size_t r = 0; r < rank; ++r)
            sum += static_cast<double>(b[i / in * rank + r]) * a[r * in + i % in];
          ASSERT_NEAR(adapters.scale() * sum, all[part.skip + i], 1e-6) << part.parameter << " " << i;
        }
        ++compared;
      }
    }
    EXPECT_EQ(compared, 3u * static_cast<size_t>(name == "mixtral" ? 4 : 8));
  }
}

// These adapters have rank 2, those of experts rank 4. A gets rows of zeros, B columns of zeros. Reading a
// range gives a part of what reading all gives.
TEST(PeftExperts, SmallerFactorsArePaddedByZeros) {
  const HfWeights weights = HfWeights::open_adapters(kFolder + "peft_experts/mixtral", "mixtral");
  const SafetensorsFile file =
      SafetensorsFile::open(kFolder + "peft_experts/mixtral/adapter_model.safetensors");
  const std::string linear = "model.layers.1.self_attn.q_proj";
  for (const std::string_view suffix : {kAdapterDown, kAdapterUp}) {
    const std::string name = linear + std::string(suffix);
    const SafetensorsTensor& stored = *file.find("base_model.model." + name);
    Floats small(stored.elements());
    file.read_f32(stored, 0, small.size(), small.data());
    const Shape& shape = weights.find(name)->shape;
    const bool down = suffix == kAdapterDown;
    EXPECT_EQ(shape[down ? 0 : 1], 4);
    const Floats all = values_of(weights, name);
    const auto columns = static_cast<size_t>(shape[1]);
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t row = i / columns, column = i % columns;
      const bool is_there = (down ? row : column) < 2;
      ASSERT_EQ(all[i], is_there ? small[down ? i : row * 2 + column] : 0) << name << " " << i;
    }
    for (size_t first = 0; first < all.size(); first += 7) {
      Floats part(std::min<size_t>(7, all.size() - first), -1);
      weights.read(name, first, part.size(), part.data());
      for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], all[first + i]) << name << " " << first;
    }
  }
}

class PeftExpertsConfig : public FormatTest {
 protected:
  PeftTargets read(const std::string& keys, const char* family = "qwen3_moe") const {
    write_file("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, )" + keys + "}");
    std::vector<std::string> notes;
    return read_peft_targets(directory.string(), find_family(family), notes);
  }
  void refuses(const std::string& keys, const std::string& part, const char* family = "qwen3_moe") const {
    SCOPED_TRACE(keys);
    expect_error(ExitCode::malformed_file, {part}, [&] { read(keys, family); });
  }
};

TEST_F(PeftExpertsConfig, TargetsAndRanks) {
  const PeftTargets one = read(R"("target_modules": [], "target_parameters": ["experts.down_proj"])");
  EXPECT_EQ(one.adapters.targets, std::vector<std::string>{"down_proj"});
  EXPECT_EQ(one.adapters.rank, 2);
  const PeftTargets two =
      read(R"("target_modules": ["q_proj"], "target_parameters": ["down_proj", "gate_up_proj"],)"
           R"("rank_pattern": {".*\\.gate_up_proj": 6}, "alpha_pattern": {".*\\.gate_up_proj": 9})");
  EXPECT_EQ(two.adapters.targets, (std::vector<std::string>{"q_proj", "gate_proj", "up_proj", "down_proj"}));
  EXPECT_EQ(two.adapters.rank, 6);
  EXPECT_EQ(two.adapters.alpha, 9);
  EXPECT_EQ(two.rank, 2);
  ASSERT_EQ(two.parameters.size(), 2u);
  EXPECT_EQ(two.parameters[0].rank, 6) << "gate_up_proj comes first, as in the module";
  EXPECT_EQ(two.parameters[1].rank, 2);
}

TEST_F(PeftExpertsConfig, WhatIsNotComputedIsRefused) {
  refuses(R"("target_modules": ["q_proj"], "target_parameters": ["gate.weight"])",
          "target_parameters has gate.weight, which gets no adapter here");
  refuses(R"("target_modules": ["q_proj"], "target_parameters": ["gate_up_proj"])", "gets no adapter",
          "gpt_oss");
  refuses(R"("target_modules": ["q_proj"], "target_parameters": ["gate_up_proj"])", "gets no adapter",
          "llama");
  refuses(R"("target_modules": ["q_proj"], "target_parameters": ["down_proj"],)"
          R"("rank_pattern": {".*\\.down_proj": 4})",
          "down_proj have rank 4 and alpha 3, and so another scale than 1.5");
  for (const char* rank : {"1e300", "2.7", "0", "-1", "4097", "18446744073709551615", "\"2\"", "true"})
    refuses(fmt::format(R"("target_modules": ["q_proj"], "target_parameters": ["down_proj"],)"
                        R"("rank_pattern": {{".*\\.down_proj": {}}})",
                        rank),
            "rank_pattern: .*\\.down_proj is ");
  refuses(
      R"("target_modules": ["q_proj"], "target_parameters": ["down_proj"], "rank_pattern": {"q_proj": 4})",
      "rank_pattern has q_proj, which is not supported");
  refuses(R"("target_modules": ["q_proj"], "rank_pattern": {"q_proj": 4})", "rank_pattern");
  refuses(R"("target_modules": ["q_proj"], "target_parameters": "down_proj")", "target_parameters is");
}

TEST_F(PeftExpertsConfig, TensorsThatDoNotFitStayWhatTheyAre) {
  const Family& family = *find_family("qwen3_moe");
  const PeftTargets targets = read(R"("target_modules": ["q_proj"], "target_parameters": ["down_proj"])");
  const auto names = [&](const std::string& name, const Shape& shape) {
    std::vector<std::string> all;
    for (const FactorPart& part : factor_parts(family, targets, name, shape)) all.push_back(part.name);
    return all;
  };
  const std::string experts = "model.layers.0.mlp.experts.";
  EXPECT_EQ(names(experts + "lora_A.weight", {6, 8}).size(), 3u);
  for (const auto& [name, shape] : std::vector<std::pair<std::string, Shape>>{
           {experts + "lora_A.weight", {5, 8}},
           {experts + "lora_A.weight", {6}},
           {experts + "base_layer.lora_A.weight", {6, 8}},  // one parameter has no wrapper inside
           {"model.layers.0.mlp.gate.lora_A.weight", {6, 8}},
           {"model.layers.lora_A.weight", {2, 8}}})
    EXPECT_EQ(names(name, shape), std::vector<std::string>{name});
}

// The header of the file says how many experts there are, which may be more than the model has.
TEST_F(PeftExpertsConfig, MoreExpertsThanTheModelHasAreRefused) {
  write_file("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3,)"
                                    R"("target_modules": [], "target_parameters": ["down_proj"]})");
  const auto open_with = [&](const Shape& shape, const ExpertCounts& most) {
    const std::vector<TensorSpec> specs = {
        {"base_model.model.model.layers.0.mlp.experts.lora_A.weight", DType::f32, shape}};
    SafetensorsWriter writer(path("adapter_model.safetensors"), specs, {}, kExportAlignment);
    const Floats zeros(static_cast<size_t>(element_count(shape)));
    writer.write(zeros.data(), zeros.size() * sizeof(float));
    writer.finish();
    return HfWeights::open_adapters(directory.string(), "qwen3_moe", most).names().size();
  };
  EXPECT_EQ(open_with({6, 8}, {1, 3}), 3u);
  expect_error(ExitCode::malformed_file,
               {"'model.layers.0.mlp.experts.lora_A.weight' has 3 experts, and the model has 2"}, [&] {
                 open_with({6, 8}, {1, 2});
               });
  expect_error(ExitCode::malformed_file, {"has 549755813888 experts, and the model has 4096"}, [&] {
    open_with({int64_t{1} << 40, 0}, {});
  });
}

TEST(PeftExports, AreThoseThatPeftReads) {
  const auto refused = [](const std::string& name, const Adapters& adapters, const std::string& part) {
    SCOPED_TRACE(name);
    const Model model = adapted(name, adapters);
    expect_error(ExitCode::usage, {"PEFT 0.21.2 has no form for these adapters: " + part},
                 [&] { check_peft_reads(adapters, model); });
  };
  const auto written = [](const std::string& name, const Adapters& adapters) {
    EXPECT_NO_THROW(check_peft_reads(adapters, adapted(name, adapters))) << name;
  };
  const Adapters all{.rank = 2, .alpha = 3};
  for (const char* name : {"mixtral", "olmoe", "gpt_oss", "qwen3"}) written(name, all);
  written("mixtral", {.rank = 2, .alpha = 3, .root_scale = true, .targets = {"w2"}});
  for (const char* name : {"qwen2_moe", "qwen3_moe"})
    written(name, {.rank = 2, .alpha = 3, .targets = {"q_proj"}});
  refused("mixtral", {.rank = 2, .alpha = 3, .targets = {"w3"}}, "w3 has some and w1 has none");
  refused("olmoe", {.rank = 2, .alpha = 3, .root_scale = true},
          "it doubles the rank where it joins gate_proj and");
  refused("qwen3_moe", all, "it takes down_proj for a matrix of experts");
  refused("qwen2_moe", all, "it does not convert those of single experts of Qwen2-MoE");
}

}  // namespace
}  // namespace sluice
