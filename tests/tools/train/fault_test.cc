// The death of the process while it writes checkpoints: from the last whole one, the run goes on to the bits
// of a run that nothing interrupted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/cli_support.h"
#include "tests/support/figures.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

// The command is killed at random moments while it writes a checkpoint after every step.
TEST(TrainingFaults, KilledWhileItWritesCheckpoints) {
  const DriveDirectory directory;
  const std::string out = directory / "run", scratch = directory / "scratch";
  std::filesystem::create_directory(scratch);
  write_bytes(directory / "train.txt", sample_text(4000));
  constexpr int64_t kLong = 200;
  constexpr size_t kKills = 12;
  const std::vector<std::string> common{"train",
                                        "--model",
                                        "gpt2:layers=2,width=64,heads=2,vocab=256,context=32",
                                        "--data",
                                        directory / "train.txt",
                                        "--batch",
                                        "2",
                                        "--micro-batch",
                                        "1",
                                        "--lr-schedule",
                                        "constant",
                                        "--threads",
                                        "2",
                                        "--checkpoint-every",
                                        "1",
                                        "--host-mem",
                                        "80MiB",
                                        "--nvme-dir",
                                        scratch,
                                        "--nvme-mem",
                                        "64MiB"};
  const auto steps_done = [&]() -> int64_t {
    const auto newest = newest_checkpoint(out);
    return newest ? CheckpointReader::open(*newest).state().step : 0;
  };
  std::mt19937_64 random(11);
  int64_t before = 0;
  size_t torn = 0;  // checkpoints whose writer was killed
  for (size_t round = 0; round < kKills; ++round) {
    const auto arguments = common + std::vector<std::string>{"--out",    out,
                                                             "--resume", "auto",
                                                             "--steps",  std::to_string(kLong),
                                                             "--waves",  std::to_string(1 + round % 2)};
    Command command(directory, arguments);
    const int64_t wanted = before + 1 + static_cast<int64_t>(random() % 4);
    const auto complete = [&] {  // the directory of a completed checkpoint has its final name
      char name[32];
      std::snprintf(name, sizeof name, "step-%09lld", static_cast<long long>(wanted));
      return std::filesystem::exists(out + "/checkpoints/" + name);
    };
    ASSERT_TRUE(command.until(complete)) << command.wait().err;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40000));
    command.send(SIGKILL);
    EXPECT_EQ(command.wait().code, -SIGKILL);
    const int64_t after = steps_done();
    EXPECT_GE(after, wanted) << "a complete checkpoint was lost";
    for (const auto& entry : std::filesystem::directory_iterator(out + "/checkpoints"))
      torn += !entry.path().filename().string().starts_with("step-");
    EXPECT_TRUE(std::filesystem::is_empty(scratch));
    before = after;
  }
  const int64_t last = before + 3;
  const auto finish = [&](const std::string& where) {
    auto arguments = common + std::vector<std::string>{"--out", where,     "--resume",
                                                       "auto",  "--steps", std::to_string(last)};
    const CommandResult result = sluice_command(directory, arguments);
    EXPECT_EQ(result.code, 0) << where << ": " << result.err;
  };
  finish(out);
  const auto newest = newest_checkpoint(out);
  ASSERT_TRUE(newest);
  EXPECT_EQ(CheckpointReader::open(*newest).state().step, last);
  const Tensors killed = tensors_of(*newest);
  finish(directory / "straight");
  const std::string different = differences(killed, newest_tensors(directory / "straight"));
  EXPECT_EQ(different, "");
  EXPECT_GE(torn, 1u);
  figures.holds(fmt::format("SIGKILLs, {} in the middle of a checkpoint: resumed to the same bits", torn),
                different.empty() ? kKills : 0, kKills);
  // Each round dropped the metrics lines after its checkpoint, so every step is there once.
  int64_t step = 0;
  for (const std::string& line : lines_of(read_text_file(out + "/metrics.jsonl", 1 << 24)))
    EXPECT_TRUE(line.starts_with("{\"step\":" + std::to_string(++step) + ",")) << line;
  EXPECT_EQ(step, last);
  // What dead writers left in the run directory is gone too: it has complete checkpoints only, two of them.
  size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out + "/checkpoints")) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
    ++entries;
  }
  EXPECT_EQ(entries, 2u);
}

}  // namespace
}  // namespace sluice
