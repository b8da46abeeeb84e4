// What a rank holds at ZeRO stage 3: its part of the training state, and the working set that its plan
// states. Checked on plans of models of all sizes, and on runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/figures.h"
#include "tests/support/training_support.h"
#include "tools/plan/report.h"

namespace sluice {
namespace {

Figures& figures = Figures::print_at_end();

TestRun run_of(const DriveDirectory& directory, const std::string& model, DType precision, int64_t ranks) {
  TestRun run;
  run.options = short_run(directory, model, directory / "text.txt");
  run.options.numbers.precision = precision;
  run.options.batch.batch = 12;
  run.options.batch.micro_batch = 1;
  run.options.batch.sequence = 32;
  run.options.batch.steps = 3;
  run.options.run.out = directory / ("out" + std::to_string(ranks));
  run.options.ranks.gpus = run.options.ranks.count = ranks;
  run.threads = 1;
  return run;
}

// Bytes of one rank's permanent buffers, without tokens and scalars.
uint64_t permanent_bytes(const Plan& plan) {
  uint64_t bytes = 0;
  for (const Buffer& b : plan.program.buffers)
    if (b.permanent && b.kind != BufferClass::scalars) bytes += b.bytes();
  return bytes;
}

// Home bytes of one class of buffers, summed over tiers.
uint64_t home_bytes(const Plan& plan, const TestRun& run, const std::string& kind) {
  uint64_t bytes = 0;
  const auto facts = nlohmann::json::parse(plan_json(plan, budgets_of(run), run.options));
  for (const auto& [tier, of_tier] : facts["homes"][kind].items()) bytes += of_tier.get<uint64_t>();
  return bytes;
}

double excess(uint64_t of_rank, uint64_t of_one, int64_t ranks) {
  return std::abs(static_cast<double>(of_rank) * static_cast<double>(ranks) / static_cast<double>(of_one) -
                  1);
}

TEST(RankMemory, PlansGiveEachRankItsPart) {
  const DriveDirectory directory;
  write_bytes(directory / "text.txt", sample_text(40'000));
  for (const char* model : {"gpt2", "llama-1b", "gpt2:layers=3,width=512,heads=8,vocab=256,context=32"})
    for (const DType precision : {DType::f32, DType::bf16}) {
      const Plan one = std::get<Plan>(plan_of(run_of(directory, model, precision, 1)));
      for (const int64_t ranks : {2, 3, 4}) {
        SCOPED_TRACE(testing::Message() << model << " " << dtype_name(precision) << " " << ranks);
        const TestRun run = run_of(directory, model, precision, ranks);
        const Plan plan = std::get<Plan>(plan_of(run));
        // Padding: a rank's part of a group ends with 2048 elements, its planes with 8 KiB.
        const double state = excess(home_bytes(plan, run, "state"), home_bytes(one, run, "state"), ranks);
        const double all = excess(permanent_bytes(plan), permanent_bytes(one), ranks);
        EXPECT_LE(state, 0.01);
        EXPECT_LE(all, 0.01);
        figures.at_most("plans: a rank's training state against 1/N, relative", std::max(state, all), 0.01);
      }
    }
}

TEST(RankMemory, RunsHoldThatAndTheWorkingSetOfThePlan) {
  const DriveDirectory directory;
  write_bytes(directory / "text.txt", sample_text(40'000));
  for (const char* model : {"gpt2:layers=2,width=512,heads=8,vocab=256,context=32",
                            "llama:layers=2,width=512,heads=8,kv_heads=4,ffn=1408,vocab=256,context=32"})
    for (const DType precision : {DType::f32, DType::bf16}) {
      const Plan one = std::get<Plan>(plan_of(run_of(directory, model, precision, 1)));
      for (const int64_t ranks : {2, 3, 4}) {
        SCOPED_TRACE(testing::Message() << model << " " << dtype_name(precision) << " " << ranks);
        const TestRun run = run_of(directory, model, precision, ranks);
        const Plan plan = std::get<Plan>(plan_of(run));
        const double part = static_cast<double>(permanent_bytes(one)) / static_cast<double>(ranks);
        const uint64_t working_set = plan.program.arena_bytes.front() - permanent_bytes(plan);
        std::mutex mutex;
        run_in_process(
            static_cast<int>(ranks),
            [&](const Ranks& r) {
              TestRun mine = run;
              mine.ranks = r;
              const TestResult result = train(mine);
              const std::lock_guard lock(mutex);
              ASSERT_EQ(result.steps.size(), 3u);
              const auto& [tier, peak] = result.steps.back().peak_bytes.front();
              EXPECT_EQ(tier, "host");
              const double state = static_cast<double>(peak) - static_cast<double>(working_set);
              EXPECT_LE(state, 1.01 * part) << "rank " << r.rank();
              EXPECT_GE(static_cast<double>(peak), part) << "rank " << r.rank();  // the part was held
              figures.at_most("runs: (peak - the plan's working set) / (state / N)", state / part, 1.01);
            },
            [](const std::exception& e) { ADD_FAILURE() << "a rank is stuck after: " << e.what(); });
        std::filesystem::remove_all(run.options.run.out);
      }
    }
}

}  // namespace
}  // namespace sluice
