// Signals to the `sluice` command: before the first step, during a run, and twice.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/run/checkpoint/checkpoint.h"
#include "tests/support/cli_support.h"
#include "tests/support/last_metrics.h"

namespace sluice {
namespace {

TEST_F(Cli, ASignalEndsTheRunWithADurableCheckpoint) {
  for (const int number : {SIGTERM, SIGINT}) {
    const std::string name = "run" + std::to_string(number), metrics = directory / (name + "/metrics.jsonl");
    Command command(directory, train(name, 1000000));
    ASSERT_TRUE(command.until(
        [&] { return std::filesystem::exists(metrics) && std::filesystem::file_size(metrics) > 2000; }));
    command.send(number);
    const CommandResult stopped = command.wait();
    EXPECT_EQ(stopped.code, 75) << stopped.err;
    const auto path = newest_checkpoint(directory / name);
    ASSERT_TRUE(path);
    const int64_t step = CheckpointReader::open(*path).state().step;
    EXPECT_EQ(last_metrics(metrics)["step"], step);
    EXPECT_NE(stopped.out.find("step " + std::to_string(step)), std::string::npos) << stopped.out;
    const CommandResult resumed = run(train(name, step + 2, {"--resume", "auto"}));
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(last_metrics(metrics)["step"], step + 2);
    EXPECT_EQ(lines_of(read_text_file(metrics, 1 << 24)).size(), static_cast<size_t>(step + 2));
  }
}

// The model takes seconds to plan.
TEST_F(Cli, ASignalBeforeTheFirstStepEndsAtOnce) {
  for (const int number : {SIGTERM, SIGINT}) {
    Command command(
        directory, {"train", "--model", "gpt2:layers=48,width=8,heads=1,vocab=256,context=8", "--batch",
                    "512", "--micro-batch", "1", "--data", text, "--out", directory / "run", "--steps", "2"});
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    command.send(number);
    const CommandResult stopped = command.wait();
    EXPECT_EQ(stopped.code, 75);  // as later, so that one rule starts it again
    EXPECT_NE(stopped.err.find("sluice: stopped before the first step, with nothing to save. Start it again "
                               "in the same way.\n"),
              std::string::npos)
        << stopped.err;
    EXPECT_FALSE(std::filesystem::exists(directory / "run"));
  }
}

// In a container, the system drops every signal that the first process does not handle, even if its default
// action would end the process. That concerns signals before the first step, signals to verbs that save
// nothing, and a second signal during a stop.
TEST_F(Cli, TheFirstProcessOfAContainerAnswersSignals) {
  const Words container{"unshare", "--pid", "--fork"};
  if (Command(directory / "", container + Words{"true"}).wait().code != 0)
    GTEST_SKIP() << "no namespace can be made here";
  const Words model{"--model",       "gpt2:layers=48,width=8,heads=1,vocab=256,context=8",
                    "--batch",       "512",
                    "--micro-batch", "1"};
  const Words train = Words{"train", "--data", text, "--out", directory / "run"} + model;
  for (const Words& verb : {train, Words{"plan"} + model}) {
    Command command(directory / "", container + sluice_words(verb, "sluice"));
    const std::string children = fmt::format("/proc/{0}/task/{0}/children", command.process());
    std::string first;
    ASSERT_TRUE(command.until([&] {
      std::ifstream(children) >> first;
      return !first.empty() &&
             std::filesystem::read_symlink("/proc/" + first + "/exe").filename() == "sluice";
    }));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::kill(std::stoi(first), SIGTERM);
    EXPECT_EQ(command.wait().code, verb[0] == "train" ? 75 : 128 + SIGTERM) << verb[0];
  }
}

// The reference device is slow enough for a signal in the middle of a step. Signals within a second count as
// one, since terminals and timeout(1) send theirs to the process and to its group.
TEST_F(Cli, ASecondSignalEndsAtOnce) {
  const auto arguments = [&](int64_t steps, const Words& more) {
    return Words{"train",
                 "--model",
                 "gpt2:layers=2,width=128,heads=2,vocab=256,context=64",
                 "--data",
                 text,
                 "--batch",
                 "128",
                 "--micro-batch",
                 "16",
                 "--precision",
                 "fp32",
                 "--threads",
                 "2",
                 "--out",
                 directory / "run",
                 "--steps",
                 std::to_string(steps)} +
           more;
  };
  ASSERT_EQ(run(arguments(1, {"--device", "reference"})).code, 0);
  Command command(directory, arguments(1000, {"--resume", "auto"}));
  ASSERT_TRUE(command.until(
      [&] { return read_text_file(directory / "stdout", 1 << 20).find("Resuming") != std::string::npos; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // into the first step, which takes seconds
  command.send(SIGTERM);
  command.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  command.send(SIGTERM);
  const auto sent = std::chrono::steady_clock::now();
  EXPECT_EQ(command.wait().code, -SIGTERM);
  EXPECT_LT(std::chrono::steady_clock::now() - sent, std::chrono::seconds(1));
  const auto path = newest_checkpoint(directory / "run");
  ASSERT_TRUE(path);
  EXPECT_EQ(CheckpointReader::open(*path).state().step, 1);
  const CommandResult resumed = run(arguments(2, {"--resume", "auto"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(last_metrics(directory / "run/metrics.jsonl")["step"], 2);
}

}  // namespace
}  // namespace sluice
