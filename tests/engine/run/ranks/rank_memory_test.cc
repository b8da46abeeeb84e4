// What a rank holds in a run at ZeRO stage 3: its part of the training state, and the working set that its
// plan states. tests/tools/plan/rank_memory_test.cc has the plans of larger models.
#include <gtest/gtest.h>

#include <mutex>

#include "tests/support/figures.h"
#include "tests/support/rank_memory_support.h"

namespace sluice {
namespace {

TEST(RankMemory, RunsHoldThatAndTheWorkingSetOfThePlan) {
  const DriveDirectory directory;
  write_bytes(directory / "text.txt", sample_text(40'000));
  for (const char* model : {"gpt2:layers=2,width=512,heads=8,vocab=256,context=32",
                            "llama:layers=2,width=512,heads=8,kv_heads=4,ffn=1408,vocab=256,context=32"})
    for (const DType precision : {DType::f32, DType::bf16}) {
      const Plan one = std::get<Plan>(plan_of(rank_memory_run(directory, model, precision, 1)));
      for (const int64_t ranks : {2, 3, 4}) {
        SCOPED_TRACE(::testing::Message() << model << " " << dtype_name(precision) << " " << ranks);
        const TestRun run = rank_memory_run(directory, model, precision, ranks);
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
