// The command with the nvme tier in three directories: bad ones are refused by name, and a killed run leaves
// nothing in any.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/run/start/nvme_directories.h"
#include "tests/support/cli_support.h"
#include "tests/support/three_drives.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
constexpr const char* kModel = "gpt2:layers=2,width=128,heads=2,vocab=256,context=32";

// The process dies with 64 MiB and more of scratch files in three directories.
TEST(TrainingDirectories, KilledItLeavesNothingInAny) {
  const DriveDirectory directory;
  const Directories scratch(directory);
  write_machine(directory / "machine.json");
  write_bytes(directory / "train.txt", sample_text(4000));
  const std::string listed = fmt::format("{}", fmt::join(scratch.paths, ","));
  Command command(directory, {"train",
                              "--model",
                              kModel,
                              "--data",
                              directory / "train.txt",
                              "--batch",
                              "2",
                              "--steps",
                              "100000",
                              "--threads",
                              "2",
                              "--gpu-mem",
                              "4MiB",
                              "--host-mem",
                              "70MiB",
                              "--nvme-dir",
                              listed,
                              "--nvme-mem",
                              "64MiB",
                              "--machine",
                              directory / "machine.json",
                              "--out",
                              directory / "run"});
  const auto has_scratch = [&](const std::string& path) {
    for (const auto& fd : fs::directory_iterator(fmt::format("/proc/{}/fd", command.process()))) {
      std::error_code gone;
      const std::string file = fs::read_symlink(fd.path(), gone).string();
      if (file.starts_with(path + "/")) return true;
    }
    return false;
  };
  const auto trains = [&] { return fs::exists(directory / "run/metrics.jsonl"); };
  ASSERT_TRUE(command.until(trains)) << command.wait().err;
  for (const std::string& path : scratch.paths) EXPECT_TRUE(has_scratch(path)) << path;
  command.send(SIGKILL);
  const CommandResult killed = command.wait();
  EXPECT_EQ(killed.code, -SIGKILL);
  EXPECT_TRUE(scratch.are_empty());
  for (const std::string& note :
       {"By the drives of machine description cpu-2core, the nvme tier lies 12.5 % in " + scratch.paths[0] +
            " (9 GB/s read, 9 written, 1 both at once), 25 % in " + scratch.paths[1],
        scratch.paths[0] + ", " + scratch.paths[1] + " and " + scratch.paths[2] +
            " are on one file system: they share its space and its speed."})
    EXPECT_NE(killed.out.find(note), std::string::npos) << killed.out;
}

// If one of several directories is unusable, it is refused by its name, as it would be alone.
TEST(TrainingDirectories, BadOnesAreRefusedByName) {
  const DriveDirectory directory;
  const Directories scratch(directory);
  write_bytes(directory / "train.txt", sample_text(4000));
  const auto refused = [&](const std::string& list, const std::string& size) {
    const CommandResult result =
        sluice_command(directory, {"train", "--model", kModel, "--data", directory / "train.txt", "--threads",
                                   "2", "--host-mem", "80MiB", "--nvme-dir", list, "--nvme-mem", size,
                                   "--out", directory / "run"});
    EXPECT_EQ(result.code, 4) << result.err;
    EXPECT_FALSE(fs::exists(directory / "run/checkpoints"));
    return result.err;
  };
  const std::string good = scratch.paths[0], missing = directory / "missing", file = directory / "train.txt";
  const auto names = [](const std::string& text, const std::string& words) {
    return text.find(words) != std::string::npos;
  };
  EXPECT_TRUE(names(refused(good + "," + missing, "64MiB"), missing + " does not exist."));
  EXPECT_TRUE(names(refused(missing + "," + good, "auto"), missing + " does not exist."));
  EXPECT_TRUE(names(refused(good + "," + file, "64MiB"), file + " is not a directory."));
  if (is_memory("/dev/shm")) {
    EXPECT_TRUE(names(refused(good + ",/dev/shm", "64MiB"), "/dev/shm is on a file system in memory"));
  }
  const std::string large = refused(good + "," + scratch.paths[1], "1000TiB");
  EXPECT_TRUE(names(large, "are free until it is full in " + good + " and " + scratch.paths[1])) << large;
  EXPECT_TRUE(scratch.are_empty());
}

}  // namespace
}  // namespace sluice
