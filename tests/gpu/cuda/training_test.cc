// Whole trainings on the cuda device, on a GPU or on its emulation: against PyTorch, against the cpu device,
// and under budgets, executors and resumes that must not change a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "gpu/cuda/device.h"
#include "tests/support/figures.h"
#include "tests/support/fixtures.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

class CudaTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaStatus status = cuda_status(0);
    if (!status.available) GTEST_SKIP() << status.reason;
  }
};

constexpr TierCapacities kTwoTiers{kRoomy, kRoomy, std::nullopt};

TestRun small_run(const DriveDirectory& directory, DType precision, const std::string& model) {
  write_tokens(directory / "train.bin", 4000);
  TestRun run;
  run.options = short_run(directory, model, directory / "train.bin");
  run.options.batch = {4, std::nullopt, 2, 3};
  run.options.numbers.precision = precision;
  run.options.memory.device = {DeviceKind::cuda};
  run.options.memory.nvme_directories.clear();
  run.arenas = kTwoTiers;
  return run;
}

const std::string kGpt2 = "gpt2:layers=2,width=32,heads=2,vocab=258,context=24";
const std::string kLlama = "llama-1b:layers=2,width=32,heads=4,kv_heads=2,ffn=48,vocab=300,context=24";

double relative(double measured, double expected) { return std::abs(measured - expected) / expected; }

// Runs the first case of every fixture, which clips. Micro-batches have 2 sequences if the fixture lists that
// size, else the first size that it lists. The tolerances are the contract's.
TEST_F(CudaTraining, AgreesWithPyTorch) {
  constexpr double kLossTolerance = 1e-5, kNormTolerance = 1e-4;
  size_t compared = 0;
  for (const Fixture& fixture : fixtures()) {
    const nlohmann::json c = nlohmann::json::parse(fixture.expected)["cases"].at(0);
    ASSERT_EQ(c["clip"], 0.25) << fixture.name;
    const std::vector<int64_t> micro_batches = c["micro_batches"];
    const int64_t micro_batch = std::ranges::count(micro_batches, 2) > 0 ? 2 : micro_batches.front();
    const DriveDirectory directory;
    TestRun run = small_run(directory, DType::f32, fixture.directory);
    Options& o = run.options;
    o.data.train = {kFixtureTokens};
    o.data.order = RowOrder::sequential;
    o.batch = {c["batch"], c["sequence"].get<int64_t>(), micro_batch, c["steps"]};
    o.optimizer.learning_rate = c["learning_rate"];
    o.optimizer.min_learning_rate = c["min_learning_rate"].get<double>();
    o.optimizer.warmup.steps = c["warmup"];
    o.optimizer.schedule = c["schedule"] == "cosine"   ? Schedule::cosine
                           : c["schedule"] == "linear" ? Schedule::linear
                                                       : Schedule::constant;
    o.optimizer.weight_decay = c["weight_decay"];
    o.optimizer.beta1 = c["beta1"];
    o.optimizer.beta2 = c["beta2"];
    o.optimizer.epsilon = c["epsilon"];
    o.optimizer.clip = c["clip"];
    run.stop_after = 2;  // two steps run ahead of what is read
    for (const StepMetrics& m : train(run).steps) {
      const auto i = static_cast<size_t>(m.step - 1);
      const double loss = relative(m.loss, c["loss"][i]), norm = relative(m.grad_norm, c["grad_norm"][i]);
      EXPECT_LE(loss, kLossTolerance) << c["name"] << ", step " << m.step;
      EXPECT_LE(norm, kNormTolerance) << c["name"] << ", step " << m.step;
      figures.at_most("cuda, fp32, loss of a step against PyTorch's, relative", loss, kLossTolerance);
      figures.at_most("cuda, fp32, gradient norm of a step against PyTorch's", norm, kNormTolerance);
      ++compared;
    }
  }
  EXPECT_GE(compared, fixtures().size() * 4);  // steps
}

// 16-bit operands round differently where the devices' sums differ in the last bit: by 2^-9 and 2^-12 of a
// logit.
TEST_F(CudaTraining, SixteenBitsAgreeWithTheCpuDevice) {
  for (const std::string& model : {kGpt2, kLlama})
    for (const DType precision : {DType::bf16, DType::f16}) {
      const DriveDirectory directory;
      TestRun run = small_run(directory, precision, model);
      const std::vector<StepMetrics> found = train(run).steps;
      run.options.memory.device = {DeviceKind::cpu};
      run.options.run.out = directory / "cpu";
      const std::vector<StepMetrics> wanted = train(run).steps;
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t i = 0; i < found.size(); ++i) {
        const double difference = relative(found[i].loss, wanted[i].loss);
        EXPECT_LE(difference, 2e-3) << model << ", " << dtype_name(precision) << ", step " << i + 1;
        figures.at_most("cuda, 16 bits, loss of a step against the cpu device's, relative", difference, 2e-3);
        EXPECT_FALSE(found[i].skipped);
      }
    }
}

// With pinned memory, files, and the least budgets. The reference device sums in double, and 16-bit operands
// round differently where sums differ in the last bit.
TEST_F(CudaTraining, ThreeTiersAgreeWithTheReferenceDevice) {
  for (const auto& [model, precision, tolerance] :
       {std::tuple(kGpt2, DType::f32, 1e-5), std::tuple(kLlama, DType::bf16, 2e-3)}) {
    const DriveDirectory directory;
    TestRun run = small_run(directory, precision, model);
    run.options.memory.nvme_directories = {directory.path()};
    run.arenas = least_arenas(run, true);
    const std::vector<StepMetrics> found = train(run).steps;
    run.options.memory.device = {DeviceKind::reference};
    run.options.memory.nvme_directories.clear();
    run.options.run.out = directory / "reference";
    run.arenas = {std::nullopt, kRoomy, std::nullopt};
    const std::vector<StepMetrics> wanted = train(run).steps;
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      const double difference = relative(found[i].loss, wanted[i].loss);
      EXPECT_LE(difference, tolerance) << model << ", step " << i + 1;
      figures.at_most("cuda, three tiers, loss of a step against the reference, of its tolerance",
                      difference / tolerance, 1);
    }
  }
}

TEST_F(CudaTraining, BudgetsExecutorsAndResumesKeepTheBits) {
  struct Variant {
    const char* name;
    ExecutorKind executor;
    bool least_device, least_host, nvme, resumed;
    std::optional<Recompute> recompute;
  };
  constexpr Variant kVariants[] = {
      {"threaded, roomy", ExecutorKind::threaded, false, false, false, false, Recompute::none},
      {"three tiers, the least", ExecutorKind::threaded, true, true, true, false, std::nullopt},
      {"least device", ExecutorKind::threaded, true, false, false, true, Recompute::all},
      {"shuffled, state above", ExecutorKind::shuffled, false, true, true, false, std::nullopt},
      {"three tiers, resumed", ExecutorKind::threaded, true, true, true, true, Recompute::all},
  };
  for (const auto& [model, precision, clip] :
       {std::tuple(kGpt2, DType::bf16, 1.0), std::tuple(kLlama, DType::f32, 0.0)}) {
    const DriveDirectory plain_directory;
    TestRun plain = small_run(plain_directory, precision, model);
    plain.options.optimizer.clip = clip;
    plain.options.batch = {4, std::nullopt, 1, 5};
    TestRun serial = plain;
    serial.executor = ExecutorKind::serial;
    const std::vector<std::string> wanted = fixed_bits(train(serial).steps);
    const Tensors tensors = newest_tensors(serial.options.run.out);
    for (const Variant& v : kVariants) {
      SCOPED_TRACE(std::string(v.name) + ", " + model);
      const DriveDirectory directory;
      TestRun run = plain;
      run.options.run.out = directory / "out";
      run.options.memory.recompute = v.recompute;
      if (v.nvme) run.options.memory.nvme_directories = {directory.path()};
      run.executor = v.executor;
      const TierCapacities least = least_arenas(run, true);
      if (v.least_device) run.arenas.device = *least.device + (v.nvme ? 0 : *least.device / 4);
      if (v.least_host) run.arenas.host = least.host;
      if (v.nvme) run.arenas.nvme = kRoomy;
      std::vector<std::string> found;
      if (v.resumed) {
        run.stop_after = 1;
        found = fixed_bits(train(run).steps);
        EXPECT_EQ(found.size(), 3u);  // two more were issued when the first was read
        run.stop_after = 0;
        run.options.run.resume = "auto";
        run.arenas = kTwoTiers;
        run.options.memory.nvme_directories.clear();
      }
      for (const std::string& line : fixed_bits(train(run).steps)) found.push_back(line);
      const std::string different = differences(tensors, newest_tensors(run.options.run.out));
      EXPECT_EQ(found, wanted);
      EXPECT_EQ(different, "");
      figures.holds("cuda, runs with the bits of the serial run", found == wanted && different.empty());
    }
  }
}

// A loss scale of 2^40 makes every fp16 gradient overflow. The step must change nothing but the scale.
TEST_F(CudaTraining, AnOverflowIsSkippedAlsoWhereTheStateLivesInTheDevice) {
  const DriveDirectory directory;
  TestRun run = small_run(directory, DType::f16, kGpt2);
  run.options.batch.steps = 2;
  run.options.run.keep = 9;
  run.options.optimizer.schedule = Schedule::constant;
  run.options.memory.nvme_directories = {directory.path()};
  run.arenas = {kRoomy, least_arenas(run, true).host, kRoomy};
  const TestResult before = train(run);
  EXPECT_TRUE(std::any_of(before.plan.program.buffers.begin(), before.plan.program.buffers.end(),
                          [](const Buffer& b) { return b.kind == BufferClass::state && b.home == 0; }));
  const Tensors wanted = newest_tensors(run.options.run.out);
  run.options.run.resume = "auto";
  run.options.given = {"steps"};
  run.options.batch.steps = 3;
  run.alter_start = [](CheckpointState& s) { s.loss_scale = std::ldexp(1.0, 40); };
  const TestResult skipped = train(run);
  ASSERT_EQ(skipped.steps.size(), 1u);
  EXPECT_TRUE(skipped.steps[0].skipped);
  EXPECT_TRUE(std::isfinite(skipped.steps[0].loss));
  EXPECT_EQ(differences(wanted, newest_tensors(run.options.run.out)), "");
}

// All that a step launches was loaded before: the first steps take no memory of the GPU.
TEST_F(CudaTraining, FirstStepsLoadNothing) {
  for (const std::string& model : {kGpt2, kLlama}) {
    const DriveDirectory directory;
    const TestRun run = small_run(directory, DType::f16, model);
    const auto device = make_device(run.options.memory, run.threads);
    const Plan plan = plan_or_throw(request_of(run, *device), budgets_of(run));
    Session session(plan, *device, session_options(run.options, run.threads));
    const uint64_t held = device->accelerator()->memory().held;
    load(session, [](const ShardView&) {});
    const BodyIds& bodies = plan.lowering.bodies();
    for (const BodyId begin : {*bodies.first, *bodies.step, *bodies.step}) {
      session.scalars(session.next_position(kTrainRing)).input = {1e-3, 1};
      for (const BodyId body : bodies.step_from(begin)) session.executor().wait(session.issue(body));
      session.check();
    }
    EXPECT_LE(device->accelerator()->memory().held, held) << model;
  }
}

}  // namespace
}  // namespace sluice
