// What the tests of several ranks share: runs on ranks that are threads of the test.
#pragma once

#include <gtest/gtest.h>

#include <mutex>

#include "engine/run/ranks/ranks.h"
#include "models/families/family.h"
#include "tests/support/training_support.h"

namespace sluice {

constexpr const char* kRanksModel = "gpt2:layers=2,width=64,heads=2,vocab=256,context=32";

class RanksTest : public ::testing::Test {
 protected:
  void SetUp() override { write_bytes(directory_ / "text.txt", sample_text(40'000)); }

  TestRun run_on(int64_t ranks, const std::string& out) const {
    TestRun run;
    run.options = short_run(directory_, kRanksModel, directory_ / "text.txt");
    run.options.numbers.precision = DType::f32;
    run.options.batch.batch = 12;
    run.options.batch.micro_batch = 1;
    run.options.batch.steps = 10;
    run.options.run.out = directory_ / out;
    run.options.ranks.gpus = run.options.ranks.count = ranks;
    run.threads = 1;
    return run;
  }

  // Makes the run validate after every second step.
  void validate(TestRun& run) const {
    run.options.data.validation = {directory_ / "text.txt"};
    run.options.data.val_every = 2;
    run.options.data.val_batches = 2;
  }

  // Calls check(run, name) with runs that differ from `run` only in budgets, executor or recomputation.
  template <typename Check>
  static void with_other_budgets_and_executors(const TestRun& run, const Check& check) {
    for (const bool device : {false, true}) {
      TestRun least = run;
      least.arenas = least_arenas(run, device);
      check(least, device ? "three tiers" : "two tiers");
      least.executor = ExecutorKind::shuffled;
      check(least, device ? "three tiers, shuffled" : "two tiers, shuffled");
    }
    TestRun serial = run;
    serial.executor = ExecutorKind::serial;
    check(serial, "serial");
    TestRun recompute = run;
    recompute.options.memory.recompute = Recompute::all;
    check(recompute, "recompute");
  }

  // Trains on all ranks and returns the first rank's result.
  static TestResult train_on(const TestRun& run) {
    if (run.options.ranks.gpus == 1) return train(run);
    TestResult first;
    std::mutex mutex;
    run_in_process(
        static_cast<int>(run.options.ranks.gpus),
        [&](const Ranks& ranks) {
          TestRun mine = run;
          mine.ranks = ranks;
          TestResult result = train(mine);
          const std::lock_guard lock(mutex);
          if (ranks.is_first()) first = std::move(result);
        },
        [](const std::exception& e) { ADD_FAILURE() << "a rank is stuck after: " << e.what(); });
    return first;
  }

  // The master weights of the newest checkpoint, from however many files.
  static std::vector<float> newest_masters(const std::string& out, const char* name = kRanksModel) {
    const CheckpointReader reader = CheckpointReader::open(newest_checkpoint(out).value());
    const ModelConfig config = config_from_name(name);
    const Model model = build_model(config, DType::f32, 1, config.context);
    std::vector<float> values;
    for (const Group& group : model.groups)
      for (const Parameter& p : group.parameters) {
        const auto elements = static_cast<uint64_t>(element_count(p.shape));
        const size_t begin = values.size();
        values.resize(begin + elements);
        EXPECT_TRUE(reader.read(p.name, kMasterWeights, 0, elements, values.data() + begin));
      }
    return values;
  }

  DriveDirectory directory_;
};

}  // namespace sluice
