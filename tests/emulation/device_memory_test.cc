// What a run takes of a GPU, as the emulated GPU counts it. A run takes exactly what the plan says, before
// the first step, and gives it back at the end. Together with what driver and libraries hold, it stays within
// --gpu-mem.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/base/pack.h"
#include "engine/base/units.h"
#include "offload/nvme_files.h"
#include "tests/emulation/emulated_command.h"
#include "tests/support/training_support.h"
#include "tests/support/units.h"

namespace sluice {
namespace {

using emulation::Counts;

constexpr uint64_t kGranule = 2 * kMiB;

class DeviceMemory : public EmulatedRun {};

// How many calls there were of each kind that is not allowed after the freeze.
std::vector<uint64_t> taken(const Counts& c) { return {c.allocations, c.registrations, c.streams, c.events}; }
std::vector<uint64_t> held(const Counts& c) {
  return {c.allocated_bytes, c.registered_bytes, c.streams_there, c.events_there, c.held};
}

// Three tiers with the least memory, validations and checkpoints. A session makes the lanes' I/O queues last,
// so the counts at that time are those of the freeze.
TEST_F(DeviceMemory, IsTakenBeforeTheFirstStepAndGivenBack) {
  TestRun run;
  run.options = short_run(directory, kTiny, text);
  run.options.data.validation = {validation};
  run.options.data.val_every = 2;
  run.options.data.val_batches = 2;
  run.options.run.checkpoint_every = {2};
  run.options.memory.device = {DeviceKind::cuda};
  run.arenas = least_arenas(run, true);
  Counts frozen;
  run.wrap_queue = [&](std::unique_ptr<IoQueue> queue) {
    frozen = emulation::counts();
    return queue;
  };
  run.on_step = [&](const StepMetrics&) {
    EXPECT_EQ(taken(emulation::counts()), taken(frozen));
    EXPECT_EQ(held(emulation::counts()), held(frozen));
  };
  emulation::set_up({.product_bytes = kMiB, .copy_bytes = 4 * kMiB});
  const TestResult result = sluice::train(run);
  EXPECT_EQ(result.validations.size(), 2u);
  EXPECT_EQ(result.checkpoints, 2u);
  EXPECT_EQ(taken(emulation::counts()), taken(frozen));
  expect_nothing_on_the_gpu();

  const std::vector<uint64_t>& arenas = result.plan.program.arena_bytes;
  const uint64_t checksums = round_up(arenas[2], kStripeBytes) / kRequestBytes * sizeof(uint64_t);
  EXPECT_EQ(frozen.allocations, 1u);
  EXPECT_EQ(frozen.allocated_bytes, arenas[0]);
  EXPECT_GE(frozen.registrations, 2u);  // the host arena, and a page to try copies with
  EXPECT_LE(frozen.registrations, 3u);  // one more where a pinned piece ends within the host arena
  EXPECT_EQ(frozen.registered_bytes, round_up(arenas[1] + checksums, 4096));  // whole pages
  EXPECT_EQ(frozen.streams, 4u);
}

// The plan's figures, the run's, and the GPU's are the same.
TEST_F(DeviceMemory, StaysWithinItsBudgetAndIsWhatThePlanSays) {
  const emulation::EmulatedGpu gpu{
      .used_by_others = 500 * kMiB, .context_bytes = 300 * kMiB, .library_bytes = 100 * kMiB};
  int number = 0;
  for (const uint64_t budget : {530 * kMiB, 1000 * kMiB, 4000 * kMiB})
    for (const emulation::Nvml nvml :
         {emulation::Nvml::lists_processes, emulation::Nvml::lists_none, emulation::Nvml::lists_no_bytes}) {
      SCOPED_TRACE(std::to_string(budget / kMiB) + " MiB");
      emulation::EmulatedGpu known = gpu;
      known.nvml = nvml;
      emulation::set_up(known);
      const Words memory{"--device", "cuda", "--gpu-mem", std::to_string(budget), "--host-mem", "1000MiB"};
      const Ended planned = run_command(
          Words{"plan", "--json", "--model", kTiny, "--batch", "4", "--micro-batch", "2", "--threads", "2"} +
          memory);
      ASSERT_EQ(planned.code, ExitCode::done) << planned.what;
      const auto plan = nlohmann::json::parse(planned.out);
      emulation::set_up(known);
      const Ended trained = run_command(train("run" + std::to_string(++number), 2, memory));
      ASSERT_EQ(trained.code, ExitCode::done) << trained.what;
      const uint64_t reserve = plan["device_reserve"], arena = plan["arenas"]["device"];
      EXPECT_GE(reserve, gpu.context_bytes + gpu.library_bytes);
      EXPECT_NE(trained.out.find("outside the device arena: " + format_size(reserve) + " "),
                std::string::npos)
          << trained.out;
      EXPECT_NE(trained.out.find("GPU memory after the first step: "), std::string::npos) << trained.out;
      const uint64_t most = emulation::counts().held_most;
      const uint64_t page_tables = round_up(plan["arenas"]["host"].get<uint64_t>() / 512, 4096);
      EXPECT_EQ(most, gpu.context_bytes + gpu.library_bytes + round_up(arena, kGranule) + page_tables);
      EXPECT_LE(most, budget);
      EXPECT_EQ(emulation::counts().untouched_bytes, 0u);  // otherwise the driver would fill it on one thread
      expect_nothing_on_the_gpu();
    }
}

// A thread that forgot to choose its GPU would have made a context on the first one.
TEST_F(DeviceMemory, IsOfTheGpuThatWasChosenAlone) {
  const emulation::EmulatedGpu two{.count = 2, .context_bytes = 300 * kMiB};
  const Words saves{"--val-data",    validation, "--val-every",        "1", "--val-batches", "1",
                    "--nvme-dir",    scratch,    "--checkpoint-every", "1", "--gpu-mem",     "600MiB",
                    "--lr-schedule", "constant"};
  const auto contexts_of = [&](const Words& arguments) {
    emulation::set_up(two);
    const Ended ended = run_command(arguments);
    EXPECT_EQ(ended.code, ExitCode::done) << ended.what;
    expect_nothing_on_the_gpu();
    return emulation::counts().contexts;
  };
  EXPECT_EQ(contexts_of(train("second", 2, saves + Words{"--device", "cuda:1"})), std::vector<int>{1});
  EXPECT_LE(emulation::counts().held_most, 600 * kMiB);
  EXPECT_EQ(contexts_of(train("second", 3, saves + Words{"--device", "cuda:1", "--resume", "auto"})),
            std::vector<int>{1});
  EXPECT_EQ(contexts_of(train("first", 3, saves + Words{"--device", "cuda:0"})), std::vector<int>{0});
  EXPECT_EQ(differences(newest_tensors(directory / "first"), newest_tensors(directory / "second")), "");
  EXPECT_EQ(contexts_of({"eval", "--from", directory / "second", "--data", validation, "--val-batches", "1",
                         "--threads", "2", "--device", "cuda:1"}),
            std::vector<int>{1});
}

// The first arena is given back before anything lies in it. Then a smaller one suffices, or the error names a
// budget that suffices.
TEST_F(DeviceMemory, LibrariesThatTakeMoreThanWasSetAside) {
  const emulation::EmulatedGpu gpu{.context_bytes = 300 * kMiB, .library_bytes = 400 * kMiB};
  constexpr uint64_t kHost = 1000 * kMiB;  // page tables for so much are as large as the host arena's
  const auto train_within = [&](const std::string& out, uint64_t budget) {
    emulation::set_up(gpu);
    return run_command({"train",
                        "--model",
                        "gpt2:layers=5,width=96,heads=2,vocab=256,context=8",
                        "--data",
                        text,
                        "--batch",
                        "2",
                        "--micro-batch",
                        "1",
                        "--steps",
                        "2",
                        "--threads",
                        "2",
                        "--device",
                        "cuda",
                        "--gpu-mem",
                        std::to_string(budget),
                        "--host-mem",
                        std::to_string(kHost),
                        "--out",
                        directory / out});
  };
  constexpr uint64_t kBeside = 700 * kMiB + page_table_bytes(kHost);
  const uint64_t roomy = 1000 * kMiB;
  ASSERT_EQ(train_within("roomy", roomy).code, ExitCode::done);
  EXPECT_EQ(emulation::counts().allocations, 1u);
  const uint64_t arena =
      (emulation::counts().held_most - gpu.context_bytes - gpu.library_bytes) / kGranule * kGranule;

  constexpr uint64_t kTables = 4096;  // page tables of what is pinned before the arena is weighed
  for (const uint64_t over : {kTables, kMiB, kGranule - 1}) {
    const uint64_t tight = kBeside + arena - kGranule + over;
    const std::string out = "tight" + std::to_string(over);
    const Ended trained = train_within(out, tight);
    ASSERT_EQ(trained.code, ExitCode::done) << trained.what << trained.remedy;
    EXPECT_EQ(emulation::counts().allocations, 2u);
    EXPECT_LE(emulation::counts().held_most, tight);
    expect_nothing_on_the_gpu();
    EXPECT_EQ(differences(newest_tensors(directory / "roomy"), newest_tensors(directory / out)), "");
  }

  const Ended refused = train_within("refused", kBeside + kMiB);
  EXPECT_EQ(refused.code, ExitCode::infeasible) << refused.what;
  EXPECT_FALSE(std::filesystem::exists(directory / "refused"));
  expect_nothing_on_the_gpu();
  const std::string option = "--gpu-mem ";
  const uint64_t least = std::stoull(refused.remedy.substr(refused.remedy.find(option) + option.size()));
  EXPECT_EQ(train_within("least", least).code, ExitCode::done);
  const auto metrics = lines_of(read_text_file(directory / "least/metrics.jsonl", 1 << 20));
  const uint64_t reached = nlohmann::json::parse(metrics.back())["peak_bytes"]["device"];
  EXPECT_LE(gpu.context_bytes + gpu.library_bytes + reached, least);
}

// Memory comes in granules, and a few bytes of the last granule may exceed the budget. If replanning took off
// only those bytes, it would go on byte by byte.
TEST_F(DeviceMemory, APlanThatFillsItsBudgetIsMadeTwiceAtMost) {
  Options options = short_run(directory, kTiny, text);
  options.memory.device = {DeviceKind::cuda};
  options.memory.nvme_directories.clear();
  options.memory.host = {.kind = Size::Kind::bytes, .bytes = 1000 * kMiB};
  const ModelConfig config = resolve_model(options.model).config;
  options.batch.sequence = config.context;
  for (const uint64_t limit : {1000 * kMiB, 1000 * kMiB - 1, 999 * kMiB, 998 * kMiB + 1}) {
    emulation::set_up({.context_bytes = 300 * kMiB, .library_bytes = 400 * kMiB});
    options.memory.gpu = {.kind = Size::Kind::bytes, .bytes = limit};
    const auto device = make_device(options.memory, 2);
    Budgets budgets = resolve_budgets(options.memory, memory_limits(), true, accelerator_use(*device));
    int plans = 0;
    const auto fill = [&] {
      if (++plans > 2) throw Error(ExitCode::bug, "A third plan.", "");
      const PlanRequest request = plan_request(options, config, budgets, needs_of(*device), {});
      Plan plan = plan_or_throw(request, budgets);
      plan.program.arena_bytes.front() = budgets.device->arena;
      return plan;
    };
    const auto started =
        start_session(*device, budgets, session_options(options, 2), fill, [](const Plan&) {});
    EXPECT_EQ(plans, 2);
    EXPECT_LE(emulation::counts().held, limit);
    EXPECT_GT(emulation::counts().held + 2 * kGranule, limit - page_table_bytes(1000 * kMiB)) << "waste";
  }
}

}  // namespace
}  // namespace sluice
