// Options that change what a model's config says, and what its weights take of memory.
#include "engine/run/start/model_source.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace sluice {
namespace {

ModelConfig config_with(const char* model, std::optional<double> router_loss) {
  return resolve_model({.model = model, .router_loss = router_loss}).config;
}

TEST(ModelSource, DescriptionsMayHaveSlashes) {
  EXPECT_EQ(config_with("gpt2-moe:layers=4,experts=2/4", {}).expert_counts, (std::vector<int64_t>{2, 4}));
  EXPECT_THROW(config_with("there/is:none=1/2", {}), Error);
}

// The model has 2 layers of 3 experts. An expert has 64 x 32 elements of gate, of up and of down each.
TEST(ModelSource, MemoryForMxfp4IsCounted) {
  const std::string directory = "tests/fixtures/mxfp4/model";
  const uint64_t table = table_bytes_at_most(directory, 2 * 3 * 6);
  EXPECT_EQ(Mxfp4Reader::bytes_most(2 * 64 * 32), 2u * (2 * 64 * 32 / 32 * 17));
  EXPECT_EQ(resolve_model({.model = directory}).table_bytes, table + 2 * (2 * 64 * 32 / 32 * 17));
}

TEST(RouterLoss, IsTheConfigsUnlessOneIsGiven) {
  EXPECT_FALSE(config_with("mixtral-8x7b", {}).has_router_loss);
  const ModelConfig given = config_with("mixtral-8x7b", 0.25);
  EXPECT_TRUE(given.has_router_loss);
  EXPECT_EQ(given.router_loss, 0.25);
  EXPECT_FALSE(config_with("mixtral:router_loss=true", 0).has_router_loss);
  EXPECT_TRUE(config_with("mixtral:router_loss=true", {}).has_router_loss);
}

TEST(RouterLoss, TheZLossCountsAloneToo) {
  const ModelConfig given = resolve_model({.model = "mixtral-8x7b", .router_z_loss = 0.5}).config;
  EXPECT_EQ(given.router_z_loss, 0.5);
  EXPECT_FALSE(given.has_router_loss);
  EXPECT_TRUE(router_loss_counts(given));
  EXPECT_FALSE(router_loss_counts(config_with("mixtral-8x7b", {})));
}

std::string refusal(const ModelOptions& options) {
  try {
    resolve_model(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "accepted";
}

TEST(RouterLoss, IsRefusedWhereThereAreNoExperts) {
  EXPECT_EQ(refusal({.model = "gpt2", .router_loss = 0.1}),
            "--router-loss is for models with experts, and this one has none.");
  EXPECT_EQ(refusal({.model = "gpt2", .router_z_loss = 0.1}),
            "--router-z-loss is for models with experts, and this one has none.");
}

}  // namespace
}  // namespace sluice
