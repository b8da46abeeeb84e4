// The run that tests of profiles record.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>

#include "engine/run/execute/recorder.h"
#include "tests/support/training_support.h"

namespace sluice {

inline constexpr const char* kProfiledModel = "gpt2:layers=3,width=64,heads=4,vocab=256,context=64";
inline constexpr int64_t kProfiledSteps = 6;

class Profiles : public ::testing::Test {
 protected:
  // Three tiers with little room, so that everything moves.
  TestRun three_tiers() {
    TestRun run;
    run.options = short_run(directory, kProfiledModel, text);
    run.options.batch.steps = kProfiledSteps;
    run.options.optimizer.clip = 1e6;  // so that steps are alike
    run.arenas = {0, 0, 0};
    const auto least = std::get<Infeasible>(plan_of(run)).least_together;
    run.arenas = {least[0] * 5 / 4, least[1] * 5 / 4, kRoomy};
    run.recorder = &recorder;
    return run;
  }
  void SetUp() override { write_bytes(text, sample_text(6000)); }

  std::optional<Recorder> recorder;
  const DriveDirectory directory;
  const std::string text = directory / "train.txt";
};

}  // namespace sluice
