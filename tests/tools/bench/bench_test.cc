// What `sluice bench` fits and writes, and a whole run of it.
#include "tools/bench/bench.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "engine/base/file.h"
#include "tests/support/format_test_support.h"
#include "tests/support/test_directory.h"
#include "tools/bench/drive_rates.h"
#include "tools/bench/machine.h"
#include "tools/bench/nvme_lane.h"

namespace sluice {
namespace {

// Times that 5 flops and 2 bytes a second would give.
TEST(Bench, AFitFindsBothRates) {
  std::vector<OpPoint> points;
  for (const auto& [flops, bytes] : {std::pair{100.0, 4.0}, {10.0, 8.0}, {50.0, 1.0}})
    points.push_back({flops, bytes, flops / 5 + bytes / 2});
  const OpFit fit = fit_op(points);
  EXPECT_NEAR(fit.flops_per_second, 5, 1e-9);
  EXPECT_NEAR(fit.bytes_per_second, 2, 1e-9);
  EXPECT_LT(fit.error_max, 1e-9);
  EXPECT_NEAR(fit.flops_together, 160 / (160 / 5.0 + 13 / 2.0), 1e-9);
}

// With 2 flops each, the points take 1 s for 9 bytes and 3 s for 1 byte. A time that falls as bytes grow has
// no rate of bytes, so flops alone count. Least squares of 2x - 1 and 2x/3 - 1: x = (2 + 2/3) / (4 + 4/9), or
// 0.6.
TEST(Bench, AFitHasNoNegativeRates) {
  const OpPoint points[] = {{2, 9, 1}, {2, 1, 3}};
  const OpFit fit = fit_op(points);
  EXPECT_NEAR(fit.flops_per_second, 1 / 0.6, 1e-9);
  EXPECT_EQ(fit.bytes_per_second, kUnlimited);
  EXPECT_NEAR(fit.error_max, 0.6, 1e-9);  // 1.2 s instead of 3: off by 0.6
}

TEST(Bench, OpsWithoutFlopsHaveARateOfBytes) {
  const OpPoint points[] = {{0, 6, 2}, {0, 9, 3}};
  const OpFit fit = fit_op(points);
  EXPECT_EQ(fit.flops_per_second, kUnlimited);
  EXPECT_NEAR(fit.bytes_per_second, 3, 1e-9);
}

// A rate of zero would leave a drive no part of the tier.
TEST(Bench, EvenADriveThatCompletesNothingInTimeHasRates) {
  constexpr double kNoTime = 1e-9;
  const TestDirectory directory;
  const DriveSizes sizes{2 * kTransferBytes, 2 * kTransferBytes};
  const DriveMeasurement drive = measure_drive(directory / "", sizes, nullptr, kNoTime);
  for (const double rate : {drive.read, drive.write, drive.mixed}) EXPECT_GT(rate, 0);
  EXPECT_LT(drive.core_seconds_a_byte, 1e-6);
  for (const RequestRate& r : measure_requests(directory / "", sizes, nullptr, kNoTime))
    EXPECT_GT(r.bytes_per_second, 0) << r.bytes << " bytes, " << r.depth << " in flight";
}

TEST(Bench, ADescriptionReadsBackAsItWasWritten) {
  MachineRates r = default_machine_rates();
  r.lanes[0].ops = {{OpKind::attention, {1.0 / 3, 2, kUnlimited}, {kUnlimited, kUnlimited, 0.1}}};
  r.lanes[0].tier = "device";
  r.network = {{"node", 8, 1e9, 2e-6}};
  r.source = "a test";
  r.gpu = "T4";
  r.memory = {std::nullopt, 1 << 30, uint64_t{1} << 31};
  r.matmul_algorithms = R"({"cublaslt":130100,"gpu":"T4","products":{"p":"id=1"}})";
  const std::string text = machine_rates_json(r);
  const MachineRates back = parse_machine_rates(text, "text");
  EXPECT_EQ(machine_rates_json(back), text);
  EXPECT_EQ(back.matmul_algorithms, r.matmul_algorithms);
  EXPECT_EQ(back.lanes[0].ops[0].flops.fp32, 1.0 / 3);
  EXPECT_EQ(back.lanes[0].ops[0].flops.fp16, kUnlimited);
  EXPECT_EQ(back.lanes[0].ops[0].bytes.fp16, 0.1);
  EXPECT_EQ(back.source, "a test");
  EXPECT_EQ(back.gpu, "T4");
  EXPECT_EQ(back.memory->nvme, uint64_t{1} << 31);
  EXPECT_EQ(back.network[0].latency_seconds, 2e-6);
  EXPECT_EQ(back.drives[0].mixed, r.drives[0].mixed);
  EXPECT_EQ(back.links.size(), r.links.size());
}

// The name of a directory need not be valid UTF-8.
TEST(Bench, WhatIsNoTextIsReplaced) {
  MachineRates r = default_machine_rates();
  r.drives[0].directory = "/\xfe";
  EXPECT_EQ(parse_machine_rates(machine_rates_json(r), "text").drives[0].directory, "/\uFFFD");
}

// The bytes that ops are taken to need: 1 GiB in the full sizes, and an eighth when each side is halved.
uint64_t cubic(const OpSizes& sizes) {
  return static_cast<uint64_t>(sizes.rows * sizes.width) * static_cast<uint64_t>(sizes.vocabulary) / 16;
}

TEST(Bench, ScalesAreHalvedUntilTheyFit) {
  const BenchScale full;
  EXPECT_EQ(cubic(full.ops), 1u << 30);
  EXPECT_EQ(host_bytes(full, cubic(full.ops)), 1u << 30);
  EXPECT_EQ(host_bytes(full, 0), 512u << 20) << "the optimizer, copies, or two lanes";
  const BenchScale same = scale_within(full, 1 << 30, cubic);
  EXPECT_EQ(same.ops.rows, full.ops.rows);
  EXPECT_EQ(same.parameters, full.parameters);
  const BenchScale some = scale_within(full, 300 << 20, cubic);
  EXPECT_EQ(some.parameters, full.parameters / 2);
  EXPECT_EQ(some.round_elements, full.round_elements / 2);
  EXPECT_EQ(some.copy_bytes, full.copy_bytes / 2);
  EXPECT_EQ(some.lane_bytes, full.lane_bytes / 2);
  EXPECT_EQ(some.ops.rows, full.ops.rows / 2);
  EXPECT_EQ(some.drive_bytes, full.drive_bytes) << "files take no memory";
  EXPECT_LE(host_bytes(some, cubic(some.ops)), 300u << 20);
  const BenchScale least = scale_within(full, 1, cubic);
  EXPECT_EQ(host_bytes(least, 0), 64u << 20);
  EXPECT_EQ(least.ops.rows, 256);
}

// Refuses within seconds, before anything is measured: the output is the refusal alone.
TEST(Bench, RefusesBeforeItMeasures) {
  const TestDirectory directory{std::filesystem::current_path()};
  MemoryOptions options;
  options.device.kind = DeviceKind::cpu;
  std::FILE* const out = std::tmpfile();
  ASSERT_NE(out, nullptr);
  const auto refused = [&](ExitCode code, std::initializer_list<std::string> parts, const BenchScale& scale) {
    expect_error(code, parts, [&] { measure_machine(options, {}, scale, out); });
    EXPECT_EQ(std::ftell(out), 0);
  };
  options.host = {Size::Kind::bytes, 1 << 20};
  refused(ExitCode::infeasible, {"of host memory at least, but only 0"}, {});
  options.host = {};
  options.nvme_directories = {directory.path(), directory / "missing"};
  refused(ExitCode::environment, {"missing does not exist"}, {});
  options.nvme_directories = {"/proc"};
  refused(ExitCode::environment, {"/proc holds no files"}, {});
  options.nvme_directories = {directory.path()};
  refused(ExitCode::environment, {"is too small: bench writes"}, {.drive_bytes = 1ull << 60});
  std::fclose(out);
}

// A small scale, whose figures mean nothing.
BenchScale small_scale() {
  BenchScale scale{.parameters = 4 << 20,
                   .round_elements = 1 << 20,
                   .copy_bytes = 1 << 20,
                   .drive_bytes = 32 << 20,
                   .drive_seconds = 0.05,
                   .request_seconds = 0.01};
  scale.ops = {.rows = 64, .width = 64, .vocabulary = 128, .seconds_at_least = 0, .repeat_seconds = 0};
  return scale;
}

Options small_options(const std::string& out) {
  Options options;
  options.memory.device.kind = DeviceKind::cpu;
  options.memory.threads = 2;
  options.bench.out = out;
  return options;
}

// The description is named after its file, as far as JSON can hold that name.
TEST(Bench, ADescriptionIsNamedAsItsFileAsFarAsThatCanBeWritten) {
  const TestDirectory directory{std::filesystem::current_path()};
  const std::string path = directory / "a\xff\n.json";
  std::FILE* const out = std::tmpfile();
  ASSERT_NE(out, nullptr);
  EXPECT_EQ(run_bench(small_options(path), out, small_scale()), ExitCode::done);
  std::fclose(out);
  EXPECT_EQ(parse_machine_rates(read_text_file(path, 1 << 20), "m.json").name, "a\\xff\\x0a, measured");
}

// A file that appears while it measures is not overwritten.
TEST(Bench, WhatIsThereAtTheEndStays) {
  const TestDirectory directory{std::filesystem::current_path()};
  const std::string path = directory / "m.json";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::FILE* const out = fdopen(ends[1], "w");
  ASSERT_NE(out, nullptr);
  std::thread other([&] {  // the first output comes after the first check of the path
    char byte;
    if (read(ends[0], &byte, 1) == 1) std::ofstream(path) << "theirs";
    while (read(ends[0], &byte, 1) == 1) {
    }
  });
  expect_error(ExitCode::usage, {"exists already", "m.json"},
               [&] { run_bench(small_options(path), out, small_scale()); });
  std::fclose(out);
  other.join();
  close(ends[0]);
  EXPECT_EQ(read_text_file(path, 100), "theirs");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

std::string text_of(std::FILE* file) {
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

// Every figure is there, and the description reads back.
TEST(Bench, MeasuresAllThatADescriptionHolds) {
  const TestDirectory directory{std::filesystem::current_path()};
  Options all = small_options("");
  MemoryOptions& options = all.memory;
  options.nvme_directories = {directory.path()};
  const BenchScale scale = small_scale();
  std::FILE* const out = std::tmpfile();
  ASSERT_NE(out, nullptr);
  const MachineRates r = measure_machine(options, {}, scale, out);
  const std::string said = text_of(out);
  for (const char* words : {"ops in bf16  ", "off by   rounds\n", "seconds = flops / F + bytes / B"})
    EXPECT_NE(said.find(words), std::string::npos) << said;
  EXPECT_EQ(said.find("\ndoubtful: ") == std::string::npos, said.find("\nrounds: ") != std::string::npos);
  EXPECT_EQ(said.find("\ndoubtful: ") == std::string::npos,
            r.source.find(" rates were doubtful") == std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  const LaneRates* const compute = find_lane(r, "compute", "host");
  ASSERT_NE(compute, nullptr);
  ASSERT_EQ(compute->ops.size(), static_cast<size_t>(kOpKinds));
  for (const OpRates& op : compute->ops)
    for (const DType precision : {DType::bf16, DType::f16, DType::f32})
      EXPECT_LT(std::min(op.flops.of(precision), op.bytes.of(precision)), kUnlimited)
          << op_rule(op.kind).name;
  EXPECT_GT(find_lane(r, "optimizer", "host")->bytes_per_second, 0);
  ASSERT_EQ(r.drives.size(), 1u);
  EXPECT_GT(r.drives[0].mixed, 0);
  EXPECT_EQ(r.links.size(), 4u);
  EXPECT_EQ(r.pools[0].capacity, 2);
  const MachineRates back = parse_machine_rates(machine_rates_json(r), "text");
  EXPECT_EQ(find_lane(back, "compute", "host")->flops.bf16, compute->flops.bf16);
  EXPECT_EQ(back.drives[0].read, r.drives[0].read);
  EXPECT_TRUE(std::filesystem::is_directory(back.drives[0].directory)) << back.drives[0].directory;
}

}  // namespace
}  // namespace sluice
