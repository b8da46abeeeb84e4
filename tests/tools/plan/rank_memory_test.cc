// What a rank holds at ZeRO stage 3, as plans of models of all sizes tell it: its part of the training state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/figures.h"
#include "tests/support/rank_memory_support.h"
#include "tools/plan/report.h"

namespace sluice {
namespace {

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
      const Plan one = std::get<Plan>(plan_of(rank_memory_run(directory, model, precision, 1)));
      for (const int64_t ranks : {2, 3, 4}) {
        SCOPED_TRACE(::testing::Message() << model << " " << dtype_name(precision) << " " << ranks);
        const TestRun run = rank_memory_run(directory, model, precision, ranks);
        const Plan plan = std::get<Plan>(plan_of(run));
        // The tolerance is for padding: a rank's part of a parameter group is a multiple of 2048 elements.
        const double state = excess(home_bytes(plan, run, "state"), home_bytes(one, run, "state"), ranks);
        const double all = excess(permanent_bytes(plan), permanent_bytes(one), ranks);
        EXPECT_LE(state, 0.01);
        EXPECT_LE(all, 0.01);
        figures.at_most("plans: a rank's training state against 1/N, relative", std::max(state, all), 0.01);
      }
    }
}

}  // namespace
}  // namespace sluice
