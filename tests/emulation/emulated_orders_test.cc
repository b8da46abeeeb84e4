// Training in three tiers on a GPU that takes its work in any order that CUDA allows, with random delays,
// gives the bits of the serial run.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sluice
