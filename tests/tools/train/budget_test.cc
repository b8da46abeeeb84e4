// The process stays within what it was given: the command at the smallest budgets that its own plan names,
// and at larger ones.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"
#include "tests/support/figures.h"

namespace sluice {
namespace {

Figures& figures = Figures::print_at_end();

// The command with the least limits that its own plan names, and with larger ones: a model of 14 million
// parameters, whose training state is 200 MB.
TEST(TrainingBudgets, TheProcessStaysWithinHostMem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep shadow memory of their own";
#endif
  const DriveDirectory directory;
  write_bytes(directory / "train.txt", sample_text(20000));
  const std::vector<std::string> model{
      "--model",       "gpt2:layers=7,width=400,heads=8,vocab=256,context=128",
      "--batch",       "4",
      "--seq",         "128",
      "--data",        directory / "train.txt",
      "--nvme-dir",    directory.path(),
      "--threads",     "2",
      "--micro-batch", "2"};
  const CommandResult none = sluice_command(
      directory,
      std::vector<std::string>{"plan", "--json", "--gpu-mem", "1MiB", "--host-mem", "70MiB"} + model);
  ASSERT_EQ(none.code, 3) << none.err;
  const auto least = nlohmann::json::parse(none.out)["smallest_budgets"]["together"];
  const uint64_t device = least["device"], host = least["host"], nvme = least["nvme"];
  struct Limits {
    uint64_t device, host, nvme;
  };
  const Limits all[] = {{device, host, nvme}, {0, host + device + (100u << 20), 4 * nvme}};
  int number = 0;
  for (const Limits& limits : all) {
    const std::string out = directory / ("run" + std::to_string(++number));
    std::vector<std::string> arguments{"train",
                                       "--steps",
                                       "2",
                                       "--out",
                                       out,
                                       "--host-mem",
                                       std::to_string(limits.host),
                                       "--nvme-mem",
                                       std::to_string(limits.nvme)};
    if (limits.device)
      arguments = arguments + std::vector<std::string>{"--gpu-mem", std::to_string(limits.device)};
    const CommandResult run = sluice_command(directory, arguments + model);
    ASSERT_EQ(run.code, 0) << run.out << run.err;
    const auto lines = lines_of(read_text_file(out + "/metrics.jsonl", 1 << 20));
    ASSERT_EQ(lines.size(), 2u);
    const auto last = nlohmann::json::parse(lines.back());
    const uint64_t device_arena = limits.device ? last["peak_bytes"]["device"].get<uint64_t>() : 0;
    const uint64_t allowed = limits.host + device_arena;
    EXPECT_LE(last["process_peak_bytes"].get<uint64_t>(), allowed);
    EXPECT_LE(run.peak_bytes, allowed) << "at the process's end, checkpoint included";
    figures.at_most("process's peak / (--host-mem + device arena)",
                    static_cast<double>(run.peak_bytes) / static_cast<double>(allowed), 1);
    EXPECT_GT(run.peak_bytes, last["peak_bytes"]["host"].get<uint64_t>() / 2);
  }
}

// A tiny model in 256 micro-batches: memory holds mostly the program, with 20,000 tasks and five times as
// many instructions.
TEST(TrainingBudgets, TheProgramIsWithinHostMem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep shadow memory of their own";
#endif
  const DriveDirectory directory;
  write_bytes(directory / "train.txt", sample_text(20000));
  const std::vector<std::string> step{"--model",       "gpt2:layers=20,width=8,heads=1,vocab=256,context=8",
                                      "--batch",       "256",
                                      "--micro-batch", "1",
                                      "--data",        directory / "train.txt",
                                      "--threads",     "2"};
  const auto with = [&](const std::vector<std::string>& first, uint64_t device, uint64_t host) {
    return sluice_command(directory, first + step +
                                         std::vector<std::string>{"--gpu-mem", std::to_string(device),
                                                                  "--host-mem", std::to_string(host)});
  };
  const CommandResult none = with({"plan", "--json"}, 1, 70'000'000);
  ASSERT_EQ(none.code, 3) << none.err;
  const auto least = nlohmann::json::parse(none.out)["smallest_budgets"]["together"];
  const uint64_t device = least["device"], host = least["host"];
  EXPECT_EQ(with({"plan"}, device, host - 1).code, 3);
  const CommandResult run = with({"train", "--steps", "2", "--out", directory / "run"}, device, host);
  ASSERT_EQ(run.code, 0) << run.out << run.err;
  EXPECT_LE(run.peak_bytes, host + device);
  figures.at_most("process's peak / (--host-mem + device arena)",
                  static_cast<double>(run.peak_bytes) / static_cast<double>(host + device), 1);
}

}  // namespace
}  // namespace sluice
