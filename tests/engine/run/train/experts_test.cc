// Training mixtures of experts: the least memory is that of one expert, and all tokens may choose one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/support/figures.h"
#include "tests/support/ranks_support.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

TestRun run_of(const std::string& model, const DriveDirectory& directory) {
  write_tokens(directory / "train.bin", 6000);
  TestRun run;
  run.options = short_run(directory, model, directory / "train.bin");
  return run;
}

// Experts are large beside the rest of a layer, so the largest task is that of an expert.
double least_device_bytes(int experts, int ffn, const DriveDirectory& directory) {
  const std::string model = fmt::format(
      "mixtral:layers=1,width=256,heads=4,kv_heads=4,ffn={},vocab=256,context=64,top=2,experts={}", ffn,
      experts);
  return static_cast<double>(*least_arenas(run_of(model, directory), true).device);
}

TEST(Experts, TheLeastDeviceMemoryGrowsWithOneExpertAndNotWithAll) {
  const DriveDirectory directory;
  const double few = least_device_bytes(8, 1024, directory), many = least_device_bytes(64, 1024, directory);
  EXPECT_LE(many, 1.05 * few);
  // The least is that of an expert. An expert twice as wide takes 2 bytes of weights and 4 of gradient for
  // each added parameter.
  EXPECT_GE(least_device_bytes(8, 2048, directory) - few, 3 * 256 * 1024 * (2 + 4));
  figures.at_most("least device memory of a layer with 64 experts / with 8 of the same size", many / few,
                  1.05);
}

// The router's weights are such that every token chooses expert 0: nothing is dropped, and memory suffices.
TEST(Experts, AllTokensMayChooseOneExpert) {
  const DriveDirectory directory;
  TestRun run = run_of(
      "mixtral:layers=2,width=64,heads=4,kv_heads=2,ffn=96,vocab=300,context=64,experts=4,top=1", directory);
  run.alter_model = [](Model model) {
    for (Group& group : model.groups)
      for (Parameter& p : group.parameters)
        if (p.name.ends_with("gate.weight"))
          p.initializer = Initializer::zeros;  // the lower expert wins ties
    return model;
  };
  run.arenas = least_arenas(run, true);
  const TestResult result = train(run);
  ASSERT_EQ(result.steps.size(), 4u);
  for (const StepMetrics& m : result.steps) EXPECT_TRUE(std::isfinite(m.loss));
  const std::vector<LayerTokens>& first = result.steps.front().expert_tokens;
  ASSERT_EQ(first.size(), 2u);
  for (const LayerTokens& of : first) EXPECT_EQ(of.tokens, (std::vector<uint64_t>{256, 0, 0, 0}));
  EXPECT_LT(result.steps.back().loss, result.steps.front().loss);
}

// Capacities are of sequences and draws are of tokens, not of micro-batches. So the size of micro-batches
// only changes roundings, and not what is dropped or drawn. The routers' loss is left out, since it is taken
// over a micro-batch.
TEST(Experts, WhatIsDroppedAndDrawnDoesNotDependOnTheMicroBatch) {
  const std::string model =
      "gpt2-moe:layers=4,width=32,heads=2,vocab=300,context=64,experts=4,top=2,capacity=0.75,second=random,"
      "router_loss=false";
  std::vector<std::vector<double>> losses;
  for (const int64_t micro_batch : {1, 2, 4}) {
    const DriveDirectory directory;
    TestRun run = run_of(model, directory);
    run.options.batch = {4, std::nullopt, micro_batch, 6};
    run.options.numbers.precision = DType::f32;
    run.options.numbers.seed = 3;
    losses.emplace_back();
    for (const StepMetrics& m : train(run).steps) losses.back().push_back(m.loss);
  }
  for (size_t i = 1; i < losses.size(); ++i)
    for (size_t step = 0; step < losses[0].size(); ++step)
      EXPECT_NEAR(losses[i][step], losses[0][step], 2e-6 * losses[0][step]) << i << ", step " << step;
}

// The first step's loss is taken before any update, so it depends on the seed alone. An expert takes at most
// 1.25 * 64 * 2 / 4 = 40 tokens of a sequence.
TEST(Experts, WhatRoutersAddToTheLossAndWhatExpertsDropIsTold) {
  const auto first_of = [](const char* more) {
    const DriveDirectory directory;
    TestRun run = run_of(
        std::string("gpt2-moe:layers=4,width=32,heads=2,vocab=300,context=64,experts=4,top=2,capacity=1.25") +
            more,
        directory);
    run.options.numbers.precision = DType::f32;
    run.options.batch.micro_batch = 2;
    run.options.data.validation = {directory / "train.bin"};
    run.options.data.val_every = 4;
    return train(run);
  };
  const TestResult with = first_of(""), without = first_of(",router_loss=false");
  const StepMetrics &first = with.steps.front(), &plain = without.steps.front();
  EXPECT_EQ(plain.router_loss, std::nullopt);
  EXPECT_EQ(without.validations.back().router_loss, std::nullopt);
  // Two layers have experts. The routers' loss of each is about 0.01 if experts are chosen evenly.
  EXPECT_NEAR(first.router_loss.value(), 0.02, 0.005);
  EXPECT_NEAR(first.loss - *first.router_loss, plain.loss, 1e-9 * plain.loss);
  EXPECT_NEAR(with.validations.back().router_loss.value(), 0.02, 0.005);
  const uint64_t sequences = 4, choices = sequences * 64 * 2;
  for (const StepMetrics& m : with.steps) {
    ASSERT_EQ(m.expert_tokens.size(), 2u);
    for (const LayerTokens& of : m.expert_tokens) {
      const uint64_t beyond = std::accumulate(
          of.tokens.begin(), of.tokens.end(), uint64_t{0},
          [](uint64_t sum, uint64_t tokens) { return sum + tokens - std::min(tokens, sequences * 40); });
      EXPECT_EQ(std::accumulate(of.tokens.begin(), of.tokens.end(), uint64_t{0}), choices);
      EXPECT_GE(of.dropped.value(), beyond);  // a sequence may be fuller than others
      EXPECT_LT(*of.dropped, choices);
    }
  }
}

// Every token chooses expert 0, which takes 32 of the 64 tokens of a sequence.
TEST(Experts, DroppedChoicesAreCounted) {
  const DriveDirectory directory;
  TestRun run =
      run_of("gpt2-moe:layers=2,width=32,heads=2,vocab=300,context=64,experts=4,top=1,capacity=2", directory);
  run.alter_model = [](Model model) {
    for (Group& group : model.groups)
      for (Parameter& p : group.parameters)
        if (p.name.ends_with("router.weight")) p.initializer = Initializer::zeros;
    return model;
  };
  const LayerTokens of = train(run).steps.front().expert_tokens.at(0);
  EXPECT_EQ(of.tokens, (std::vector<uint64_t>{256, 0, 0, 0}));
  EXPECT_EQ(of.dropped, 128u);
}

// The weights of a token's two choices sum to 1. The second choice, of weight w, is tried with probability
// 2w. Experts without a capacity take every choice that is tried.
TEST(Experts, SecondChoicesThatAreNotDrawnAreDropped) {
  const DriveDirectory directory;
  TestRun run = run_of(
      "gpt2-moe:layers=2,width=32,heads=2,vocab=300,context=64,experts=4,top=2,second=random", directory);
  const TestResult result = train(run);
  for (const StepMetrics& m : result.steps) {
    const uint64_t dropped = m.expert_tokens.at(0).dropped.value();
    EXPECT_GT(dropped, 0u);
    EXPECT_LT(dropped, 256u);  // tokens of a step
  }
}

class ExpertsOnRanks : public RanksTest {};

TEST_F(ExpertsOnRanks, DropAndDrawAsOneRankDoes) {
  std::vector<TestResult> results;
  for (const int64_t ranks : {1, 2}) {
    TestRun run = run_on(ranks, "out" + std::to_string(ranks));
    run.options.model.model =
        "gpt2-moe:layers=2,width=32,heads=2,vocab=256,context=32,experts=4,top=2,capacity=0.75,second=random,"
        "noise=yes";
    run.options.batch.steps = 5;
    results.push_back(train_on(run));
    ASSERT_EQ(results.back().steps.size(), 5u);
  }
  for (size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(results[1].steps[i].loss, results[0].steps[i].loss, 2e-6 * results[0].steps[i].loss) << i;
}

// Every step has the same batch, so only draws make losses differ. Validation draws nothing.
TEST(Experts, EveryStepDrawsOthers) {
  const std::string model =
      "gpt2-moe:layers=2,width=32,heads=2,vocab=300,context=64,experts=4,top=2,second=random,noise=yes";
  const auto losses_of = [&](uint64_t seed) {
    const DriveDirectory directory;
    write_tokens(directory / "train.bin", 2 * 64 + 1);  // a batch
    TestRun run;
    run.options = short_run(directory, model, directory / "train.bin");
    run.options.batch = {2, std::nullopt, 1, 3};
    run.options.numbers.precision = DType::f32;
    run.options.numbers.seed = seed;
    run.options.optimizer.learning_rate = 1e-30;  // weights stay as they are
    run.options.data.validation = run.options.data.train;
    run.options.data.val_every = run.options.data.val_batches = 1;
    const TestResult result = train(run);
    EXPECT_EQ(result.validations.size(), 3u);
    for (const ValidationMetrics& v : result.validations)
      EXPECT_EQ(v.val_loss, result.validations.front().val_loss);
    std::vector<double> losses;
    for (const StepMetrics& m : result.steps) losses.push_back(m.loss);
    return losses;
  };
  const std::vector<double> losses = losses_of(1);
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_NE(losses[1], losses[2]);
  EXPECT_EQ(losses, losses_of(1));
}

// Tokens of all micro-batches and waves are counted, with a routers' loss and without. The least memory gives
// the same counts.
TEST(Experts, AStepTellsItsTokensByExpertAndLayer) {
  const DriveDirectory directory;
  for (const char* loss : {"false", "true"}) {
    TestRun run =
        run_of(fmt::format(
                   "qwen3_moe:layers=3,width=64,heads=4,kv_heads=2,ffn=96,expert_ffn=32,vocab=300,context=64,"
                   "experts=4,top=2,router_loss={}",
                   loss),
               directory);
    run.options.batch.batch = 8;
    const TestResult roomy = train(run);
    run.arenas = least_arenas(run, true);
    const TestResult least = train(run);
    ASSERT_EQ(roomy.steps.size(), 4u);
    for (size_t i = 0; i < roomy.steps.size(); ++i) {
      ASSERT_EQ(roomy.steps[i].expert_tokens.size(), 3u);
      for (size_t l = 0; l < 3; ++l) {
        const LayerTokens& of = roomy.steps[i].expert_tokens[l];
        EXPECT_EQ(of.layer, static_cast<int64_t>(l));
        EXPECT_EQ(std::accumulate(of.tokens.begin(), of.tokens.end(), uint64_t{0}), 8u * 64u * 2u);
        EXPECT_EQ(least.steps[i].expert_tokens[l].tokens, of.tokens);
      }
    }
  }
}

// Routers whose weights are zero have logits of zero, whose log-sum-exp is the logarithm of the number of
// experts.
TEST(Experts, TheZLossIsTheMeanSquareOfTheLogSumExp) {
  const DriveDirectory directory;
  const auto first_loss = [&](double z_loss) {
    TestRun run =
        run_of("mixtral:layers=2,width=64,heads=4,kv_heads=2,ffn=96,vocab=300,context=64,experts=4,top=2",
               directory);
    run.options.model.router_z_loss = z_loss;
    run.options.batch.steps = 2;
    run.alter_model = [](Model model) {
      for (Group& group : model.groups)
        for (Parameter& p : group.parameters)
          if (p.name.ends_with("gate.weight")) p.initializer = Initializer::zeros;
      return model;
    };
    return train(run).steps.front().loss;
  };
  const double squared = std::log(4.0) * std::log(4.0);
  EXPECT_NEAR(first_loss(0.5) - first_loss(0), 0.5 * squared, 1e-6);
}

// The run is in bf16 with a clip, so that updates are guessed. A router is a part of its parameter group, and
// an expert is a whole group.
TEST(Experts, WhatIsFrozenStaysAsItIs) {
  const DriveDirectory directory;
  TestRun run = run_of(
      "mixtral:layers=2,width=64,heads=4,kv_heads=2,ffn=96,vocab=300,context=64,experts=4,top=2", directory);
  run.options.optimizer.of_groups = {"routers:frozen=yes", "*.experts.1.*:frozen=yes"};
  run.options.run.checkpoint_every.steps = 1;
  run.options.run.keep = 4;
  train(run);
  const Tensors first = tensors_of(directory / "out/checkpoints/step-000000001"),
                last = newest_tensors(directory / "out");
  size_t routers = 0, experts = 0;
  for (const auto& [name, bytes] : last) {
    if (name.find(":padding.") != name.npos) continue;
    const bool router = name.ends_with("gate.weight"), expert = name.find(".experts.1.") != name.npos;
    EXPECT_EQ(name.starts_with("frozen.safetensors:"), expert) << name;
    EXPECT_EQ(bytes == first.at(name), router || expert) << name;
    if (router && name.starts_with("exp_avg")) {
      EXPECT_EQ(bytes.find_first_not_of('\0'), bytes.npos) << name;
    }
    routers += router, experts += expert;
  }
  EXPECT_EQ(routers, 2u * 3u);  // planes of state
  EXPECT_EQ(experts, 2u * 3u);  // matrices
}

// Bits are the same after a stop and a resume in other memory, in every precision. Some steps are clipped.
TEST(Experts, OptionsOfGroupsDoNotTakeBitsFromMemory) {
  for (const DType precision : {DType::bf16, DType::f32, DType::f16}) {
    SCOPED_TRACE(dtype_name(precision));
    const DriveDirectory one, other;
    const auto run_in = [&](const DriveDirectory& directory) {
      TestRun run = run_of(
          "qwen2_moe:layers=2,width=32,heads=4,kv_heads=2,ffn=48,vocab=300,context=64,experts=4,top=2,"
          "expert_ffn=24,shared_ffn=32,router_loss=true",
          directory);
      run.options.optimizer.of_groups = {"experts:lr=0.5,decay=0.3", "routers:frozen=yes",
                                         "*.experts.3.*:frozen=yes", "norms:lr=3,decay=0.01"};
      run.options.optimizer.clip = 1.5;
      run.options.numbers.precision = precision;
      run.options.batch.batch = 8;
      run.options.batch.steps = 6;
      return run;
    };
    TestRun plain = run_in(one);
    plain.executor = ExecutorKind::serial;
    plain.threads = 1;
    plain.options.memory.overlap = Overlap::never;
    plain.options.batch.waves = 1;
    const TestResult whole = train(plain);
    TestRun least = run_in(other);
    least.options.batch.waves = 2;
    least.arenas = least_arenas(least, true);
    least.stop_after = 1;
    std::vector<std::string> steps = fixed_bits(train(least).steps);
    least.arenas = {kRoomy, kRoomy, kRoomy};
    least.options.batch.waves = 1;
    least.options.run.resume = "auto";
    least.stop_after = 0;
    for (const std::string& line : fixed_bits(train(least).steps)) steps.push_back(line);
    EXPECT_EQ(steps, fixed_bits(whole.steps));
    EXPECT_EQ(differences(newest_tensors(one / "out"), newest_tensors(other / "out")), "");
  }
}

TEST(Experts, NaNOfARouterEndsTheRunWithItsLayer) {
  const DriveDirectory directory;
  TestRun run = run_of(
      "mixtral:layers=3,width=64,heads=4,kv_heads=2,ffn=96,vocab=300,context=64,experts=4,top=1", directory);
  run.alter_model = [](Model model) {
    for (Group& group : model.groups)
      for (Parameter& p : group.parameters)
        if (p.name == "model.layers.1.block_sparse_moe.gate.weight") p.standard_deviation = INFINITY;
    return model;
  };
  try {
    train(run);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::numerics);
    EXPECT_STREQ(error.what(), "The router of layer 1 made NaN at step 1.");
    EXPECT_NE(error.remedy().find("it is not --lr: look at the weights"), std::string::npos)
        << error.remedy();
  }
}

}  // namespace
}  // namespace sluice
