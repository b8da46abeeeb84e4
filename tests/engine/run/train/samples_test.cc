// Samples of a run: texts depend on no budget, executor or number of ranks, the run's bits do not depend on
// samples, and a plan without room for them is refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/verify/verify.h"
#include "tests/support/ranks_support.h"

namespace sluice {
namespace {

// Three prompts of bytes, which the model of these tests reads as tokens. Two are answered at once, so the
// third comes alone. One prompt is longer than a chunk.
std::shared_ptr<const SamplePrompts> prompts(double temperature = 0) {
  SamplePrompts p;
  for (const std::string text : {"the earth was ", "a", "void"})
    p.tokens.emplace_back(text.begin(), text.end());
  p.sizes = {.sequences = 2, .context = 24, .chunk = 5};
  p.tokens_max = 10;
  p.sampling = {.temperature = temperature, .seed = 7};
  p.text_of = [](const std::vector<uint32_t>& tokens) { return std::string(tokens.begin(), tokens.end()); };
  return std::make_shared<const SamplePrompts>(std::move(p));
}

std::vector<std::string> texts_of(const TestResult& result) {
  std::vector<std::string> texts;
  for (const SampleMetrics& m : result.samples)
    for (const SampledText& t : m.texts)
      texts.push_back(std::to_string(m.step) + " " + t.prompt + " | " + t.text);
  return texts;
}

class Samples : public RanksTest {
 protected:
  TestRun sampled(const std::string& out, DType precision = DType::f32) const {
    TestRun run = run_on(1, out);
    run.options.numbers.precision = precision;
    run.options.batch.steps = 5;
    run.options.batch.micro_batch = 2;
    run.options.optimizer.learning_rate = 2e-2;
    run.options.sample.every = 2;
    run.samples = prompts();
    run.threads = 2;
    return run;
  }
  TestResult checked(const TestRun& run) const {
    const TestResult result = train_on(run);
    for (const Violation& v : verify(result.plan.program, 5))
      ADD_FAILURE() << describe(result.plan.program, v);
    return result;
  }
};

TEST_F(Samples, AreWrittenAtTheirStepsAndChangeNoBit) {
  for (const DType precision : {DType::f32, DType::bf16}) {
    TestRun run = sampled("with", precision);
    const TestResult with = checked(run);
    const std::vector<std::string> texts = texts_of(with);
    ASSERT_EQ(texts.size(), 9u);  // of three prompts after steps 2, 4 and 5
    EXPECT_TRUE(texts[0].starts_with("2 the earth was  | ")) << texts[0];
    EXPECT_EQ(texts[0].size(), std::string("2 the earth was  | ").size() + 10);
    EXPECT_TRUE(texts[8].starts_with("5 void | ")) << texts[8];
    EXPECT_NE(texts[0].substr(2), texts[6].substr(2)) << "the weights have changed";
    run.samples = nullptr;
    run.options.run.out = directory_ / "without";
    const TestResult without = checked(run);
    EXPECT_TRUE(without.samples.empty());
    EXPECT_EQ(fixed_bits(with.steps), fixed_bits(without.steps));
    EXPECT_EQ(differences(newest_tensors(directory_ / "with"), newest_tensors(directory_ / "without")), "");
  }
}

TEST_F(Samples, DependOnNoBudgetAndExecutor) {
  TestRun roomy = sampled("roomy");
  roomy.samples = prompts(0.8);
  const std::vector<std::string> wanted = texts_of(checked(roomy));
  int made = 0;
  for (const bool device : {false, true})
    for (const ExecutorKind executor : {ExecutorKind::threaded, ExecutorKind::shuffled}) {
      SCOPED_TRACE(made);
      TestRun tight = roomy;
      tight.options.run.out = directory_ / std::to_string(made++);
      tight.executor = executor;
      tight.arenas = least_arenas(tight, device);
      const TestResult result = checked(tight);
      EXPECT_EQ(texts_of(result), wanted);
      for (const Buffer& b : result.plan.program.buffers)
        EXPECT_TRUE(b.kind != BufferClass::caches || b.permanent) << b.name;
    }
}

TEST_F(Samples, ANewRunThatGoesOnWritesTheSame) {
  TestRun run = sampled("whole");
  const std::vector<std::string> wanted = texts_of(checked(run));
  run.options.run.out = directory_ / "parts";
  run.options.run.checkpoint_every.steps = 3;
  run.stop_after = 3;
  std::vector<std::string> texts = texts_of(checked(run));
  EXPECT_EQ(texts.size(), 3u);
  run.stop_after = 0;
  run.options.run.resume = "auto";
  for (const std::string& text : texts_of(checked(run))) texts.push_back(text);
  EXPECT_EQ(texts, wanted);
  EXPECT_EQ(differences(newest_tensors(directory_ / "whole"), newest_tensors(directory_ / "parts")), "");
}

TEST_F(Samples, WhatAStopLeavesOutIsMadeUpFor) {
  const std::vector<std::string> wanted = texts_of(checked(sampled("whole")));
  TestRun run = sampled("stopped");
  run.stop_after = 2;  // seen before the samples after step 2 are written
  std::string trouble;
  run.on_trouble = [&](const std::string& sentences) { trouble += sentences; };
  const TestResult result = train(run);
  EXPECT_TRUE(result.end.stopped);
  EXPECT_TRUE(result.samples.empty());
  EXPECT_EQ(trouble, "The samples after step 2 are left to --resume auto, since the run stops.");
  EXPECT_EQ(result.checkpoints, 1u);
  run.stop_after = 0;
  run.options.run.resume = "auto";
  EXPECT_EQ(texts_of(checked(run)), wanted);
}

TEST_F(Samples, RanksWriteWhatOneWrites) {
  TestRun alone = run_on(1, "alone");
  alone.options.batch.steps = 4;
  alone.options.sample.every = 2;
  alone.samples = prompts(0.8);
  // Sums over ranks are rounded in another order. The tiny rate keeps the first weights, so texts can be
  // compared.
  alone.options.optimizer.learning_rate = 1e-9;
  const std::vector<std::string> wanted = texts_of(checked(alone));
  ASSERT_EQ(wanted.size(), 6u);
  for (const int64_t stage : {0, 2, 3}) {
    SCOPED_TRACE(stage);
    TestRun shared = alone;
    shared.options.ranks.gpus = shared.options.ranks.count = 3;
    shared.options.ranks.zero = stage;
    shared.options.run.out = directory_ / ("zero" + std::to_string(stage));
    const TestResult result = checked(shared);
    EXPECT_EQ(texts_of(result), wanted);
    shared.samples = nullptr;
    shared.options.run.out += "plain";
    const TestResult plain = checked(shared);
    EXPECT_EQ(fixed_bits(result.steps), fixed_bits(plain.steps));
  }
}

TEST_F(Samples, LayersThatStillShareWeightsSpeakToo) {
  TestRun run = sampled("shared");
  run.options.ranks.share_layers_until = 3;
  const TestResult with = checked(run);
  EXPECT_EQ(with.samples.size(), 3u);
  run.samples = nullptr;
  run.options.run.out = directory_ / "plain";
  EXPECT_EQ(fixed_bits(with.steps), fixed_bits(checked(run).steps));
}

TEST_F(Samples, APlanWithoutRoomForThemIsRefused) {
  TestRun run = sampled("none");
  SamplePrompts large = *prompts();
  large.sizes = {.sequences = 64, .context = 32, .chunk = 32};  // caches of 2 MiB, prefill of 2048 rows
  TestRun with = run;
  with.samples = std::make_shared<const SamplePrompts>(large);
  run.samples = nullptr;
  run.arenas = least_arenas(run, false);
  with.arenas = run.arenas;
  EXPECT_TRUE(std::holds_alternative<Plan>(plan_of(run)));
  const auto result = plan_of(with);
  const auto* const why = std::get_if<Infeasible>(&result);
  ASSERT_NE(why, nullptr);
  EXPECT_TRUE(why->task.starts_with("forward of prefill.")) << why->task;
  EXPECT_GT(*why->least[0], run.arenas.host);
}

}  // namespace
}  // namespace sluice
