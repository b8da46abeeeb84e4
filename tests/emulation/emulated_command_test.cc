// The command as a process over the emulated GPU: signals, and runs under the smallest budgets that it names.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

// Sets up the GPU of the commands that are started while this object lives.
class GpuOfCommands {
 public:
  explicit GpuOfCommands(const char* settings) { EXPECT_EQ(setenv(kName, settings, 1), 0); }
  ~GpuOfCommands() { EXPECT_EQ(unsetenv(kName), 0); }
  GpuOfCommands(const GpuOfCommands&) = delete;
  GpuOfCommands& operator=(const GpuOfCommands&) = delete;

 private:
  static constexpr const char* kName = "SLUICE_EMULATED_GPU";
};

class EmulatedCommand : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    std::filesystem::create_directory(scratch);
  }
  Words train(const std::string& out, int64_t steps) const {
    return Words{"train", "--data", text, "--steps", std::to_string(steps), "--out", directory / out} + model;
  }
  CommandResult run_emulated(const Words& arguments) const {
    return Command(directory, arguments, kBinary).wait();
  }
  int64_t newest_step(const std::string& out) const {
    const auto path = newest_checkpoint(directory / out);
    return path ? CheckpointReader::open(*path).state().step : -1;
  }
  size_t steps_reported(const std::string& out) const {
    const std::string file = directory / out + "/metrics.jsonl";
    return std::filesystem::exists(file) ? lines_of(read_text_file(file, 1 << 24)).size() : 0;
  }
  // `first` under budgets of memory; the drive has plenty.
  CommandResult run_within(const Words& first, uint64_t device, uint64_t host) const {
    return run_emulated(first + budgets(device, host));
  }
  Words budgets(uint64_t device, uint64_t host) const {
    const std::string of_device = std::to_string(device) + "B", of_host = std::to_string(host) + "B";
    return {"--device", "cuda",       "--gpu-mem", of_device,    "--host-mem",
            of_host,    "--nvme-dir", scratch,     "--nvme-mem", "64MiB"};
  }
  // The smallest budgets that the plan of train() names when memory does not suffice.
  nlohmann::json smallest_budgets(uint64_t device, uint64_t host) const {
    const CommandResult none = run_within(plan + Words{"--json"}, device, host);
    EXPECT_EQ(none.code, 3) << none.err;
    return nlohmann::json::parse(none.out)["smallest_budgets"];
  }
  // Words of a run under the smallest budgets, with a checkpoint after every third step.
  Words long_run(const std::string& out, int64_t steps = 1000000) const {
    const auto least = smallest_budgets(1, 1)["together"];
    return train(out, steps) + budgets(least["device"], least["host"]) +
           Words{"--lr-schedule", "constant", "--checkpoint-every", "3", "--resume", "auto"};
  }
  // Begins or resumes the run, up to step `steps`. Returns the tensors of its newest checkpoint.
  Tensors finished(const std::string& out, int64_t steps) const {
    const CommandResult result = run_emulated(long_run(out, steps));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(newest_step(out), steps);
    return newest_tensors(directory / out);
  }
  void expect_nvme_in_use(const std::string& out) const {
    const auto lines = lines_of(read_text_file(directory / out + "/metrics.jsonl", 1 << 24));
    EXPECT_GT(nlohmann::json::parse(lines.front())["moved_bytes"]["nvme_read"].get<uint64_t>(), 0u);
  }

  static constexpr const char* kBinary = "sluice_emulated";
  const std::string scratch = directory / "scratch";
  // The smallest budgets leave a few bytes free, too few for this model's optimizer state.
  const Words model{"--model",       "gpt2:layers=5,width=96,heads=2,vocab=256,context=8",
                    "--batch",       "2",
                    "--micro-batch", "1",
                    "--threads",     "2"};
  const Words plan = Words{"plan"} + model;
};

TEST_F(EmulatedCommand, StopsOnASignalWithADurableCheckpoint) {
  Command command(directory, long_run("stopped"), kBinary);
  ASSERT_TRUE(command.until([&] { return steps_reported("stopped") >= 4; })) << command.wait().err;
  command.send(SIGTERM);
  const CommandResult result = command.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_TRUE(std::filesystem::is_empty(scratch));
  const int64_t stopped = newest_step("stopped");
  EXPECT_EQ(static_cast<size_t>(stopped), steps_reported("stopped"));
  expect_nvme_in_use("stopped");
  EXPECT_EQ(differences(finished("stopped", stopped + 2), finished("straight", stopped + 2)), "");
}

TEST_F(EmulatedCommand, KilledItLeavesNoScratch) {
  Command command(directory, long_run("killed"), kBinary);
  ASSERT_TRUE(command.until([&] { return steps_reported("killed") >= 4; })) << command.wait().err;
  command.send(SIGKILL);
  EXPECT_EQ(command.wait().code, -SIGKILL);
  EXPECT_TRUE(std::filesystem::is_empty(scratch));
  const int64_t saved = newest_step("killed");
  EXPECT_GE(saved, 3);
  expect_nvme_in_use("killed");
  EXPECT_EQ(differences(finished("killed", saved + 1), finished("straight", saved + 1)), "");
}

// The driver and libraries hold far more than the arena, and another process uses the GPU.
TEST_F(EmulatedCommand, TheSmallestBudgetsItNamesAreTheSmallest) {
  const GpuOfCommands gpu("memory_bytes=4000000000,used_by_others=1000000000,context_bytes=400000000");
  const auto expect_least = [&](const std::string& out, uint64_t device, uint64_t host) {
    const CommandResult trained = run_within(train(out, 2), device, host);
    EXPECT_EQ(trained.code, 0) << trained.err;
    EXPECT_EQ(run_within(plan, device - device / 100, host).code, 3);
  };
  const auto together = smallest_budgets(1 << 20, 1 << 20)["together"];
  const uint64_t device = together["device"], host = together["host"];
  EXPECT_GT(device, 400000000u);
  expect_least("together", device, host);
  EXPECT_EQ(run_within(plan, device, host - host / 100).code, 3);
  // The device's budget alone, where host memory is plentiful.
  constexpr uint64_t kPlenty = uint64_t{2} << 30;
  const auto each = smallest_budgets(1 << 20, kPlenty);
  EXPECT_TRUE(each["host"].is_null());
  expect_least("alone", each["device"], kPlenty);
}

// What libraries take of host memory is known only once they are loaded. If it is more than was set aside,
// the run is planned anew within --host-mem, or refused with the budget that would suffice.
TEST_F(EmulatedCommand, WhatLibrariesTakeOfTheHostIsMeasured) {
  const auto least = smallest_budgets(1, 1)["together"];
  const uint64_t device = least["device"], host = least["host"];
  constexpr uint64_t kLoaded = 400'000'000;
  const GpuOfCommands gpu("library_host_bytes=400000000");
  const CommandResult refused = run_within(train("refused", 2), device, host);
  EXPECT_EQ(refused.code, 3) << refused.err;
  const std::string option = "--host-mem ";
  ASSERT_NE(refused.err.find(option), std::string::npos) << refused.err;
  const uint64_t enough = std::stoull(refused.err.substr(refused.err.find(option) + option.size()));
  // The budget named is measured, rounded up, and includes a few MiB that preparing takes.
  EXPECT_GE(enough, host + kLoaded - kLibraryKernelBytes);
  EXPECT_LE(enough, host + kLoaded - kLibraryKernelBytes + (uint64_t{48} << 20));
  const CommandResult trained = run_within(train("enough", 2), device, enough);
  EXPECT_EQ(trained.code, 0) << trained.err;
  const auto lines = lines_of(read_text_file(directory / "enough/metrics.jsonl", 1 << 24));
  const auto last = nlohmann::json::parse(lines.back());
  const uint64_t peak = last["process_peak_bytes"], emulated = last["peak_bytes"]["device"];
  EXPECT_GT(peak, kLoaded);
  EXPECT_LE(peak, enough + emulated);  // the GPU's arena lies in host memory
}

// Ranks that divide experts exchange rows by NCCL, and compute what one rank does.
TEST_F(EmulatedCommand, DividesExpertsOverGpus) {
  const GpuOfCommands gpus("count=2");
  const auto loss_on = [&](const std::string& out, const Words& more) {
    const CommandResult result = run_emulated(
        Words{"train", "--model", kExperts, "--data", text, "--steps", "3", "--batch", "4", "--micro-batch",
              "1", "--precision", "fp32", "--device", "cuda", "--threads", "1", "--out", directory / out} +
        more);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out.find("exchanging by NCCL") != std::string::npos, out != "one") << result.out;
    const auto lines = lines_of(read_text_file(directory / out + "/metrics.jsonl", 1 << 24));
    return nlohmann::json::parse(lines.back())["loss"].get<double>();
  };
  const double one = loss_on("one", {}), by_nccl = loss_on("by NCCL", {"--gpus", "2"});
  EXPECT_NEAR(by_nccl, one, 1e-6 * one);
  EXPECT_NEAR(loss_on("divided", {"--gpus", "2", "--experts-over", "2"}), one, 1e-6 * one);
}

// A profile's times come from the GPU's events. Lane compute waits for copies, and these waits add up to the
// lane's idle time.
TEST_F(EmulatedCommand, ProfilesStreams) {
  const auto least = smallest_budgets(1, 1)["together"];
  const CommandResult result =
      run_emulated(Words{"profile", "--steps", "5", "--out", directory / "report", "--", "--data", text} +
                   model + budgets(least["device"], least["host"]));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto facts = nlohmann::json::parse(read_text_file(directory / "report/profile.json", 1 << 26));
  EXPECT_EQ(facts["device"], "cuda");
  EXPECT_EQ(facts["steps"].size(), 5u);
  double waited = 0, copied = 0;
  for (const auto& stall : facts["stalls"]) {
    const double seconds = stall["seconds"]["measured"];
    waited += seconds;
    if (stall["lane"] == "h2d" && stall["executed"]) copied = seconds;
  }
  EXPECT_NEAR(waited, facts["idle_seconds"]["measured"].get<double>(), 1e-9);  // sums of doubles
  EXPECT_GT(copied, 0);
  for (const auto& link : facts["links"]) EXPECT_GT(link["bytes_per_second"], 0);
}

}  // namespace
}  // namespace sluice
