// Losses, gradient norms, weights, master weights and moments do not depend on where bytes live or who moves
// them, nor on when updates run. The factors of a run are model, precision, how many steps are clipped,
// budgets, recomputation, overlap, waves, back end, threads, executor, and whether it is resumed. A table of
// runs covers every pair of levels of two factors. Each run must give the bits of the plainest run, which is
// all in host memory, serial, with one thread.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>

#include "offload/io/backends.h"
#include "tests/support/figures.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

// Wider vocabularies would only cost time; 258 and 300 are multiples of nothing that kernels use. With a
// batch of eight single sequences, the activations between layers outweigh the largest task.
constexpr const char* kModels[] = {
    "gpt2:layers=8,width=32,heads=2,vocab=258,context=128",
    "llama-1b:layers=8,width=32,heads=4,kv_heads=2,ffn=48,vocab=300,context=128",
    "qwen2_moe:layers=3,width=32,heads=4,kv_heads=2,ffn=48,vocab=300,context=128,experts=4,top=2,expert_ffn="
    "24,"
    "shared_ffn=32,router_loss=true",
    "gpt2-moe:layers=4,width=32,heads=2,vocab=258,context=128,experts=4/6,top=2,capacity=1.25,second=random,"
    "noise=yes,residual=yes",
};
// The options of the last model. A parameter group may be frozen as a whole, and a router within its group.
const std::vector<std::string> kGroupOptions = {"experts:lr=0.5,decay=0.3", "routers:frozen=yes",
                                                "*.experts.3.*:frozen=yes", "norms:lr=3,decay=0.01"};
constexpr DType kPrecisions[] = {DType::bf16, DType::f32, DType::f16};
enum Clipped { kOff, kNoStep, kSomeSteps, kEveryStep, kClippedLevels };
constexpr int64_t kSteps = 7;
constexpr std::optional<int64_t> kWaveCounts[] = {std::nullopt, 1, 2, 4};  // of eight micro-batches
constexpr int kOneWave = 1;

enum BudgetSet {
  kDram,
  kDeviceAndDram,
  kDeviceHalf,
  kLeastHost,
  kHalfHost,
  kThreeTiersHalf,
  kStateInDevice,
  kLeastOfAll,
  kTransientInDevice,
  kBudgetSets
};

enum Factor {
  kModel,
  kPrecision,
  kClipped,
  kBudgets,
  kRecompute,
  kOverlap,
  kWaves,
  kIo,
  kThreads,
  kExecutor,
  kResumed,
  kFactors
};
constexpr std::array<int, kFactors> kLevels{std::size(kModels),
                                            std::size(kPrecisions),
                                            kClippedLevels,
                                            kBudgetSets,
                                            1 + kRecomputes.size(),
                                            3,
                                            std::size(kWaveCounts),
                                            std::size(kIoBackends),
                                            3,
                                            3,
                                            2};
using Row = std::array<int, kFactors>;

// Greedy: of random rows, always the one that covers the most pairs that are not covered yet (Cohen et al.,
// "The AETG System", 1997, without its seeds).
std::vector<Row> covering_rows() {
  std::vector<std::vector<bool>> covered;  // by pair of factors, pair of levels
  for (int a = 0; a < kFactors; ++a)
    for (int b = 0; b < a; ++b) covered.emplace_back(static_cast<size_t>(kLevels[a] * kLevels[b]));
  const auto visit = [&](const Row& row, bool mark) {
    int fresh = 0;
    size_t pair = 0;
    for (int a = 0; a < kFactors; ++a)
      for (int b = 0; b < a; ++b, ++pair) {
        auto entry = covered[pair][static_cast<size_t>(row[a] * kLevels[b] + row[b])];
        fresh += !entry;
        if (mark) entry = true;
      }
    return fresh;
  };
  std::mt19937_64 random(115);  // one of the first seeds that give so few rows
  std::vector<Row> rows;
  for (;;) {
    Row best{};
    int most = 0;
    for (int attempt = 0; attempt < 4000; ++attempt) {
      Row row;
      for (int f = 0; f < kFactors; ++f)
        row[f] = static_cast<int>(random() % static_cast<uint64_t>(kLevels[f]));
      if (const int fresh = visit(row, false); fresh > most) most = fresh, best = row;
    }
    if (most == 0) return rows;
    visit(best, true);
    rows.push_back(best);
  }
}

std::string name_of(const Row& row) {
  std::string text;
  for (const int level : row) text += std::to_string(level);
  return text;
}

struct Bits {
  std::vector<std::string> steps;
  Tensors tensors;
};

TestRun base_run(int model, int precision, double clip, const DriveDirectory& directory) {
  write_tokens(directory / "train.bin", 12000);
  TestRun run;
  run.options = short_run(directory, kModels[model], directory / "train.bin");
  run.options.batch = {8, std::nullopt, 1, kSteps};
  run.options.optimizer.clip = clip;
  if (model + 1 == std::size(kModels)) run.options.optimizer.of_groups = kGroupOptions;
  run.options.numbers.precision = kPrecisions[precision];
  return run;
}

// The plainest run.
TestResult train_plainly(TestRun& run) {
  run.executor = ExecutorKind::serial;
  run.threads = 1;
  run.options.memory.nvme_directories.clear();
  run.options.memory.overlap = Overlap::never;
  run.options.batch.waves = 1;
  return train(run);
}

// A bound on the norm, which is exceeded in no, some or all steps, as `clipped` says. For some steps it is
// the median norm.
double clip_of(int model, int precision, int clipped) {
  if (clipped == kOff) return 0;
  if (clipped == kNoStep) return 1e6;
  if (clipped == kEveryStep) return 1e-3;
  static std::map<std::pair<int, int>, double> medians;
  const auto [known, is_new] = medians.try_emplace({model, precision});
  if (!is_new) return known->second;
  const DriveDirectory directory;
  TestRun run = base_run(model, precision, 1e6, directory);
  std::vector<double> norms;
  for (const StepMetrics& m : train_plainly(run).steps) norms.push_back(m.grad_norm);
  std::sort(norms.begin(), norms.end());
  return known->second = norms[norms.size() / 2];
}

uint64_t state_bytes(const TestRun& run) {  // weights and optimizer state
  TestRun roomy = run;
  roomy.arenas = {std::nullopt, kRoomy, std::nullopt};
  const auto plan = plan_of(roomy);
  uint64_t bytes = 0;
  for (const Buffer& b : std::get<Plan>(plan).program.buffers)
    if (b.kind == BufferClass::state || b.kind == BufferClass::weights) bytes += b.bytes();
  return bytes;
}

TierCapacities arenas_of(BudgetSet set, const TestRun& run) {
  switch (set) {
    case kDram:
      return {std::nullopt, kRoomy, std::nullopt};
    case kDeviceAndDram:
      return {kRoomy, kRoomy, std::nullopt};
    case kDeviceHalf:
      return {*least_arenas(run, true).device * 3 / 2, kRoomy, std::nullopt};
    case kLeastHost:
      return {std::nullopt, least_arenas(run, false).host, kRoomy};
    case kHalfHost:
      return {std::nullopt, least_arenas(run, false).host + state_bytes(run) / 2, kRoomy};
    case kThreeTiersHalf: {
      const TierCapacities least = least_arenas(run, true);
      return {*least.device * 5 / 4, least.host + state_bytes(run) / 3, kRoomy};
    }
    case kStateInDevice:  // the host's least: what does not go to the drive lives in the device
      return {kRoomy, least_arenas(run, true).host, kRoomy};
    case kLeastOfAll:
      return least_arenas(run, true);
    case kTransientInDevice: {  // no drive, and too little host memory for activations between layers
      TestRun none = run;
      none.arenas = {kRoomy, 0, std::nullopt};
      const auto plan = plan_of(none);
      return {kRoomy, std::get<Infeasible>(plan).least.at(1).value(), std::nullopt};
    }
    case kBudgetSets:
      break;
  }
  return {};
}

void configure(TestRun& run, const Row& row) {
  run.options.memory.recompute.reset();
  if (row[kRecompute] > 0)
    run.options.memory.recompute = kRecomputes[static_cast<size_t>(row[kRecompute] - 1)];
  run.options.memory.overlap = static_cast<Overlap>(row[kOverlap]);
  run.options.batch.waves = kWaveCounts[row[kWaves]];
  static const std::vector<const IoBackend*> io_backends = working_io_backends();
  run.options.memory.io = io_backends[static_cast<size_t>(row[kIo]) % io_backends.size()];
  run.threads = row[kThreads] + 1;
  run.executor = static_cast<ExecutorKind>(row[kExecutor]);
  run.seed = static_cast<uint64_t>(row[kBudgets] * 10 + row[kThreads]);
  run.arenas = arenas_of(static_cast<BudgetSet>(row[kBudgets]), run);
  if (!run.arenas.nvme) run.options.memory.nvme_directories.clear();
}

TestRun base_run(const Row& row, const DriveDirectory& directory) {
  return base_run(row[kModel], row[kPrecision], clip_of(row[kModel], row[kPrecision], row[kClipped]),
                  directory);
}

const Bits& plain_bits(const Row& row) {
  static std::map<std::array<int, 3>, Bits> all;
  const std::array<int, 3> key{row[kModel], row[kPrecision], row[kClipped]};
  if (const auto it = all.find(key); it != all.end()) return it->second;
  const DriveDirectory directory;
  const double clip = clip_of(key[0], key[1], key[2]);
  TestRun run = base_run(key[0], key[1], clip, directory);
  const TestResult result = train_plainly(run);
  const auto clipped = std::count_if(result.steps.begin(), result.steps.end(),
                                     [&](const StepMetrics& m) { return clip > 0 && m.grad_norm > clip; });
  EXPECT_EQ(clipped > 0, key[2] == kSomeSteps || key[2] == kEveryStep);
  EXPECT_EQ(clipped == kSteps, key[2] == kEveryStep);
  return all[key] = {fixed_bits(result.steps), newest_tensors(run.options.run.out)};
}

TEST(TrainingBits, TheTableCoversEveryPair) {
  const std::vector<Row> rows = covering_rows();
  size_t pairs = 0, wanted = 0;
  for (int a = 0; a < kFactors; ++a)
    for (int b = 0; b < a; ++b) {
      std::map<std::pair<int, int>, int> seen;
      for (const Row& row : rows) ++seen[{row[a], row[b]}];
      pairs += seen.size();
      wanted += static_cast<size_t>(kLevels[a] * kLevels[b]);
    }
  EXPECT_EQ(pairs, wanted);
  figures.holds("pairs of settings that the table of runs covers", pairs, wanted);
  // The two factors with the most levels alone need this many rows.
  EXPECT_LE(rows.size(), static_cast<size_t>(kLevels[kBudgets] * kLevels[kRecompute]));
}

// The row whose budgets a resumed run continues with.
const Row& next_with_other_budgets(const std::vector<Row>& rows, size_t i) {
  size_t next = i;
  do next = (next + 1) % rows.size();
  while (rows[next][kBudgets] == rows[i][kBudgets]);
  return rows[next];
}

TEST(TrainingBits, EveryRowGivesTheBitsOfThePlainRun) {
  const std::vector<Row> rows = covering_rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    SCOPED_TRACE("row " + name_of(row));
    const DriveDirectory directory;
    TestRun run = base_run(row, directory);
    configure(run, row);
    std::vector<std::string> steps;
    if (row[kResumed]) {
      run.stop_after = 1;  // when it is read, two more bodies have been issued
      const TestResult first = train(run);
      EXPECT_TRUE(first.end.stopped);
      EXPECT_GE(first.end.step, 2);
      EXPECT_LE(first.end.step, 3);
      steps = fixed_bits(first.steps);
      const Row& other = next_with_other_budgets(rows, i);
      configure(run, other);
      run.options.memory.nvme_directories = {directory.path()};
      if (!run.arenas.nvme) run.options.memory.nvme_directories.clear();
      run.options.run.resume = "auto";
      run.stop_after = 0;
    }
    const TestResult last = train(run);
    EXPECT_FALSE(last.end.stopped);
    for (const std::string& line : fixed_bits(last.steps)) steps.push_back(line);
    const Bits& plain = plain_bits(row);
    const std::string different = differences(plain.tensors, newest_tensors(run.options.run.out));
    EXPECT_EQ(steps, plain.steps);
    EXPECT_EQ(different, "");
    figures.holds(row[kResumed] ? "runs resumed under other budgets with the bits of the plain run"
                                : "runs with the bits of the plain run",
                  steps == plain.steps && different.empty());
  }
}

// In some of the runs the state lives in the device and is updated there.
TEST(TrainingBits, StateLivesInTheDeviceWhereThereIsRoom) {
  for (int model = 0; model < kLevels[kModel]; ++model)
    for (int precision = 0; precision < kLevels[kPrecision]; ++precision)
      for (const double clip : {0.0, 0.5}) {
        const DriveDirectory directory;
        TestRun run = base_run(model, precision, clip, directory);
        run.arenas = arenas_of(kStateInDevice, run);
        const auto result = plan_of(run);
        ASSERT_TRUE(std::holds_alternative<Plan>(result));
        const Program& p = std::get<Plan>(result).program;
        EXPECT_TRUE(std::any_of(p.buffers.begin(), p.buffers.end(),
                                [](const Buffer& b) { return b.kind == BufferClass::state && b.home == 0; }));
      }
}

// In some of the runs, device and host memory together hold less than the activations between layers. A
// system that keeps activations in memory could not train there.
TEST(TrainingBits, TheLeastBudgetsHoldLessThanTheActivations) {
  double least = std::numeric_limits<double>::infinity();
  for (Row row : covering_rows()) {
    if (row[kBudgets] != kLeastOfAll) continue;
    row[kWaves] = kOneWave;
    const DriveDirectory directory;
    TestRun run = base_run(row, directory);
    configure(run, row);
    const auto result = plan_of(run);
    ASSERT_TRUE(std::holds_alternative<Plan>(result));
    const Plan& plan = std::get<Plan>(result);
    uint64_t activations = 0;
    for (const Activation& a : plan.model.activations)
      if (!a.input)
        activations +=
            static_cast<uint64_t>(element_count(a.shape)) * dtype_bytes(a.dtype) * plan.lowering.slices;
    const uint64_t memory = plan.program.arena_bytes[0] + plan.program.arena_bytes[1];
    least = std::min(least, static_cast<double>(memory) / static_cast<double>(activations));
  }
  EXPECT_LT(least, 1);
  figures.at_most("device + host / activations at layer boundaries, least of the runs", least, 1);
}

}  // namespace
}  // namespace sluice
