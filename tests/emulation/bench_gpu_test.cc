// The whole verb `sluice bench --device cuda` at a small scale, and a plan from the description that it
// writes. Figures mean nothing on an emulated GPU, but none may be missing.
#include <gtest/gtest.h>

#include "engine/base/file.h"
#include "tests/emulation/emulated_command.h"
#include "tools/bench/machine.h"

namespace sluice {
namespace {

BenchScale small() {
  const OpSizes ops{.rows = 32, .width = 64, .vocabulary = 128, .seconds_at_least = 0, .repeat_seconds = 0};
  return {.parameters = 4 << 20,
          .round_elements = 1 << 20,
          .copy_bytes = 1 << 20,
          .drive_bytes = 32 << 20,
          .lane_bytes = 16 << 20,
          .drive_seconds = 0.05,
          .request_seconds = 0.01,
          .network_seconds = 0,
          .ops = ops,
          .gpu = {.elements = 1 << 17, .ops = ops}};
}

class BenchGpu : public EmulatedRun {
 protected:
  Ended bench(const Words& more) const {
    return run_command(Words{"bench", "--device", "cuda", "--threads", "2", "--out", file} + more, small());
  }
  const std::string file = directory / "machine.json";
};

TEST_F(BenchGpu, MeasuresTheGpuTheLinkAndTheHost) {
  const Ended ended = bench({"--nvme-dir", scratch});
  ASSERT_EQ(ended.code, ExitCode::done) << ended.what << ended.out;
  expect_nothing_on_the_gpu();
  const MachineRates rates = parse_machine_rates(read_text_file(file, 1 << 20), file);
  EXPECT_EQ(rates.name, "machine, measured") << "by its file";
  EXPECT_EQ(rates.gpu, "emulated GPU");
  EXPECT_EQ(rates.memory->device, emulation::EmulatedGpu{}.memory_bytes);
  EXPECT_GT(rates.memory->host, 0u);
  EXPECT_GT(rates.memory->nvme, 0u);
  const LaneRates* const compute = find_lane(rates, "compute", "device");
  ASSERT_EQ(compute->ops.size(), static_cast<size_t>(kOpKinds));
  for (const OpRates& op : compute->ops)
    for (const DType precision : {DType::bf16, DType::f16, DType::f32})
      EXPECT_LT(std::min(op.flops.of(precision), op.bytes.of(precision)), kUnlimited)
          << op_rule(op.kind).name;
  EXPECT_LT(compute->bytes_per_second, kUnlimited);
  EXPECT_GT(compute->overhead_seconds, 0);
  EXPECT_TRUE(compute->sharing.occupies.empty()) << "the host's cores are free meanwhile";
  EXPECT_EQ(find_lane(rates, "optimizer", "host")->sharing.occupies[0].amount, 2);
  ASSERT_EQ(rates.links.size(), 4u);
  for (const LinkRates& link : {rates.links[0], rates.links[1]}) {
    EXPECT_LT(link.bytes_per_second, kUnlimited);
    EXPECT_GT(link.latency_seconds, 0);
    ASSERT_EQ(link.sharing.per_byte.size(), 2u) << "host memory, and what both directions share";
  }
  EXPECT_EQ(rates.drives.size(), 1u);
  const Words model{"--model", "gpt2:layers=2,width=32,heads=2,vocab=256,context=32", "--batch", "8"};
  for (const Words& device : {Words{"--device", "cuda"}, Words{}}) {
    const Ended planned = run_command(Words{"plan", "--machine", file} + model + device);
    ASSERT_EQ(planned.code, ExitCode::done) << planned.what << planned.out;
    EXPECT_NE(planned.out.find(", machine, measured: "), std::string::npos) << planned.out;
  }
}

// GPUs before compute capability 8.0 have no bf16.
TEST_F(BenchGpu, WithoutBf16NothingIsSaidOfIt) {
  emulation::set_up({.capability_major = 7, .capability_minor = 5});
  const Ended ended = bench({});
  ASSERT_EQ(ended.code, ExitCode::done) << ended.what << ended.out;
  const MachineRates rates = parse_machine_rates(read_text_file(file, 1 << 20), file);
  EXPECT_EQ(find_lane(rates, "compute", "device")->flops.bf16, kUnlimited);
  EXPECT_LT(find_lane(rates, "compute", "device")->flops.fp16, kUnlimited);
  EXPECT_TRUE(rates.drives.empty());
}

// What ranks exchange lies in the GPUs' memory, and is timed there.
TEST_F(BenchGpu, RanksMeetOnTheirGpus) {
  emulation::set_up({.count = 2});
  MemoryOptions options;
  options.device.kind = DeviceKind::cuda;
  options.threads = 1;
  std::FILE* const out = std::tmpfile();
  ASSERT_NE(out, nullptr);
  MachineRates rates;
  const auto rank = [&](const Ranks& ranks) {
    MachineRates mine = measure_machine(options, ranks, small(), out);
    if (ranks.is_first()) rates = std::move(mine);
  };
  run_in_process(2, rank, [](const std::exception& e) { ADD_FAILURE() << e.what(); });
  std::fclose(out);
  expect_nothing_on_the_gpu();
  ASSERT_EQ(rates.network.size(), 1u);
  EXPECT_EQ(rates.network[0].ranks, 2u);
  const LaneRates* const collective = find_lane(rates, "collective", "device");
  ASSERT_NE(collective, nullptr);
  EXPECT_EQ(collective->tier, "device");
  EXPECT_EQ(rates.pools[0].capacity, 1) << "cores of one rank";
  EXPECT_EQ(find_lane(rates, "optimizer", "host")->sharing.occupies[0].amount, 2);
  EXPECT_EQ(rates.pools[2].name, "link");
}

TEST_F(BenchGpu, RefusesAndLeavesNothing) {
  Ended ended = bench({"--nvme-dir", directory / "none"});
  EXPECT_EQ(ended.code, ExitCode::environment);
  expect_sentences(ended);
  ended = bench({"--host-mem", "1MiB"});
  EXPECT_EQ(ended.code, ExitCode::infeasible);
  expect_sentences(ended);
  emulation::set_up({.used_by_others = (uint64_t{8} << 30) - (16 << 20)});
  ended = bench({});
  EXPECT_EQ(ended.code, ExitCode::environment);
  EXPECT_NE(ended.what.find("of GPU memory at least"), std::string::npos) << ended.what;
  expect_sentences(ended);
  emulation::set_up({.registration_that_fails = 0});
  ended = bench({});
  EXPECT_EQ(ended.code, ExitCode::environment);
  expect_nothing_on_the_gpu();
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace sluice
