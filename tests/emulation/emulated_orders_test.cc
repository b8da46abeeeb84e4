// Training in three tiers on a GPU that takes its work in any order that CUDA allows, with random delays,
// gives the bits of the serial run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/emulation/emulated_gpu.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

// The least memory that works, so that every range is used again and again.
TestRun tight_run(const DriveDirectory& directory, const std::string& model, DType precision) {
  write_tokens(directory / "train.bin", 4000);
  TestRun run;
  run.options = short_run(directory, model, directory / "train.bin");
  run.options.batch = {4, std::nullopt, 1, 4};
  run.options.numbers.precision = precision;
  run.options.memory.device = {DeviceKind::cuda};
  run.options.memory.recompute = Recompute::all;
  run.arenas = least_arenas(run, true);
  return run;
}

TEST(EmulatedOrders, NoOrderChangesABit) {
  constexpr uint32_t kSeeds = 4;  // for each delay
  const auto gpt2 = "gpt2:layers=3,width=32,heads=2,vocab=258,context=24";
  const auto llama = "llama-1b:layers=3,width=32,heads=4,kv_heads=2,ffn=48,vocab=300,context=24";
  for (const auto& [model, precision] : {std::pair(gpt2, DType::bf16), std::pair(llama, DType::f32)}) {
    const DriveDirectory serial_directory;
    TestRun serial = tight_run(serial_directory, model, precision);
    serial.executor = ExecutorKind::serial;
    emulation::set_up({});
    const std::vector<std::string> wanted = fixed_bits(train(serial).steps);
    const Tensors tensors = newest_tensors(serial.options.run.out);
    for (const int delay : {0, 300})
      for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
        SCOPED_TRACE(std::string(model) + ", seed " + std::to_string(seed) + ", delay " +
                     std::to_string(delay));
        const DriveDirectory directory;
        const TestRun run = tight_run(directory, model, precision);
        emulation::set_up({.seed = seed, .delay_microseconds_max = delay});
        EXPECT_EQ(fixed_bits(train(run).steps), wanted);
        EXPECT_EQ(differences(tensors, newest_tensors(run.options.run.out)), "");
      }
  }
}

// The steps under way that a stop drops are trained again, to the same bits. Streams have work that was
// enqueued ahead, and then nothing for what was dropped.
TEST(EmulatedOrders, WhatAStopDropsChangesNoBit) {
  constexpr auto kModel = "gpt2:layers=3,width=32,heads=2,vocab=258,context=24";
  const auto run_in = [&](const DriveDirectory& directory) {
    TestRun run = tight_run(directory, kModel, DType::bf16);
    run.options.memory.overlap = Overlap::never;
    run.options.batch.waves = 1;
    return run;
  };
  const DriveDirectory whole;
  emulation::set_up({});
  train(run_in(whole));
  const Tensors tensors = newest_tensors(whole / "out");
  int64_t dropped = 0;
  for (uint32_t seed = 1; seed <= 4; ++seed)
    for (const int64_t stop_after : {1, 2}) {
      SCOPED_TRACE(fmt::format("seed {}, stopped after step {}", seed, stop_after));
      const DriveDirectory directory;
      TestRun run = run_in(directory);
      emulation::set_up({.seed = seed, .delay_microseconds_max = 300});
      run.options.run.stop_within = {0, 1};
      StopForecast forecast({.step = 1, .drain = 0, .save = 1e9});
      run.forecast = &forecast;
      run.stop_after = stop_after;
      const TestResult first = train(run);
      EXPECT_TRUE(first.end.stopped || first.end.step == 4);
      dropped += std::min<int64_t>(4, stop_after + 2) - first.end.step;
      run.stop_after = 0;
      run.options.run.resume = "auto";
      if (first.end.step < 4) {
        EXPECT_EQ(train(run).end.step, 4);
      }
      EXPECT_EQ(differences(tensors, newest_tensors(run.options.run.out)), "");
    }
  EXPECT_GT(dropped, 0);
}

}  // namespace
}  // namespace sluice
