// What a refusal of budgets names: the arena that is too small, or the memory that planning takes.
#include "engine/run/start/planning.h"

#include <gtest/gtest.h>

#include "tests/support/training_support.h"

namespace sluice {
namespace {

constexpr uint64_t kMib = 1 << 20;

// The error of a run with 64 KiB of host memory, when planning takes `planning` bytes.
std::string refusal(uint64_t planning) {
  const DriveDirectory directory;
  TestRun run;
  run.options = short_run(directory, "gpt2:layers=2,width=64,heads=2,vocab=256,context=32", "none");
  run.options.batch.micro_batch = 1;
  run.arenas = {std::nullopt, 64 << 10, kRoomy};
  const auto device = make_device(run.options.memory, run.threads);
  PlanRequest request = request_of(run, *device);
  request.program_memory = {[](const ProgramSize&) { return uint64_t{1000}; },
                            [=](std::span<const ProgramSize>) { return planning; }};
  const auto result = make_plan(request);
  return infeasible_error(request, std::get<Infeasible>(result), budgets_of(run)).what();
}

TEST(Planning, ARefusalNamesWhatNeedsTheMemory) {
  const std::string arena = refusal(0);
  EXPECT_TRUE(arena.starts_with("The budgets cannot work: the host arena needs ")) << arena;
  EXPECT_NE(arena.find("; largest task: "), std::string::npos) << arena;
  EXPECT_EQ(refusal(300 * kMib),
            "The budgets cannot work: making so long a plan needs 300 MiB (314572800 bytes of host memory) "
            "and may have 64.0 KiB.");
}

}  // namespace
}  // namespace sluice
