// The families' layers compute what PyTorch computes: the first loss and gradients of every fixture, op by
// op.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/graph/draws.h"
#include "models/data/token_data.h"
#include "models/families/family.h"
#include "models/weights/stacked.h"
#include "tests/support/figures.h"
#include "tests/support/fixtures.h"
#include "tests/support/interpreter.h"

namespace sluice {
namespace {

// Rows are windows 0, 1, ...; labels are the tokens one position later.
void load_first_batch(Interpreter& run, const Model& model) {
  const TokenData data = TokenData::open({kFixtureTokens}, model.vocabulary);
  int32_t* const tokens = run.batch_input("tokens");
  int32_t* const labels = run.batch_input("labels");
  const auto count = static_cast<uint64_t>(model.micro_batch * model.sequence);
  data.read(0, count, tokens);  // windows lie one after the other
  data.read(1, count, labels);
  if (draws_numbers(model)) std::ranges::copy(Draws{.step = 1}.words(), run.batch_input("draws"));
}

// Every tensor's gradient against transformers', which computes in fp32: the norm of the difference by the
// norm of the gradient. transformers' own fp32 differs from its fp64 by up to 2e-6 in the norm of all.
void expect_gradients(const Interpreter& run, const Model& model, const std::string& directory) {
  constexpr double kTolerance = 1e-4;
  const SafetensorsFile file = SafetensorsFile::open(directory + "/gradients.safetensors");
  for (const StoredTensor& stored : stored_tensors(*find_family(model.family), model)) {
    const SafetensorsTensor* tensor = file.find(stored.name);
    ASSERT_NE(tensor, nullptr) << directory << " has no gradient of " << stored.name;
    ASSERT_EQ(tensor->shape, stored.shape) << stored.name;
    std::vector<float> all(tensor->elements());
    file.read_f32(*tensor, 0, all.size(), all.data());
    for (const TensorPart& parameter : stored.parts) {
      const float* found = run.gradient(parameter.parameter);
      double difference = 0, norm = 0;
      for (uint64_t i = 0; i < parameter.elements(); ++i) {
        const double wanted = all[parameter.skip + i * parameter.step];
        difference += std::pow(found[i] - wanted, 2);
        norm += std::pow(wanted, 2);
      }
      if (norm == 0) {  // an expert without tokens
        EXPECT_EQ(difference, 0) << directory << ", " << parameter.parameter;
        continue;
      }
      const double relative = std::sqrt(difference / norm);
      EXPECT_LE(relative, kTolerance) << directory << ", " << parameter.parameter;
      figures.at_most("gradient of a tensor against transformers', relative", relative, kTolerance);
    }
  }
}

TEST(PyTorch, FirstLossAndGradients) {
  size_t with_gradients = 0;
  for (const auto& [name, directory, config_text, expected] : fixtures()) {
    const nlohmann::json one = nlohmann::json::parse(expected)["cases"].at(0);
    const ModelConfig config = config_from_json(config_text, name);
    const Model model = build_model(config, DType::f32, one["batch"], one["sequence"]);
    const HfWeights weights = HfWeights::open(directory, config.family);
    ASSERT_NO_THROW(check_weights(weights, model)) << name;
    Interpreter run(model);
    run.load(weights);
    load_first_batch(run, model);
    // Measured against float64: every op computes in double and rounds once, so all roundings of a model of
    // three or four layers together stay below a few units of fp32 (1.2e-7). transformers computes norms,
    // angles and softmax in fp32 even then.
    const double loss = one["loss_float64"][0], norm = one["grad_norm_float64"][0];
    EXPECT_NEAR(run.run(model.micro_batch * model.sequence), loss, 1e-6 * loss) << name;
    EXPECT_NEAR(run.gradient_norm(), norm, 1e-5 * norm) << name;
    if (!std::filesystem::exists(directory + "/gradients.safetensors")) continue;
    expect_gradients(run, model, directory);
    ++with_gradients;
  }
  EXPECT_GE(with_gradients, 13u);
}

}  // namespace
}  // namespace sluice
