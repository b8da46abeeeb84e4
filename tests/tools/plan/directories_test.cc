// `plan` for drives that are elsewhere.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"
#include "tests/support/three_drives.h"

namespace sluice {
namespace {

// `plan` needs no directory for the drives of another machine: all described drives count.
TEST(TrainingDirectories, PlanWithoutDirectoriesTakesAllDrives) {
  const DriveDirectory directory;
  write_machine(directory / "machine.json");
  const auto seconds = [&](const std::vector<std::string>& disk) {
    std::vector<std::string> words{"plan",
                                   "--model",
                                   "gpt2",
                                   "--gpu-mem",
                                   "400MiB",
                                   "--host-mem",
                                   "400MiB",
                                   "--threads",
                                   "2",
                                   "--machine",
                                   directory / "machine.json",
                                   "--json"};
    words.insert(words.end(), disk.begin(), disk.end());
    const CommandResult result = sluice_command(directory, words);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out)["seconds_predicted"].get<double>();
  };
  const double all = seconds({"--nvme-mem", "4GiB"});
  const double slowest = seconds({"--nvme-mem", "4GiB", "--nvme-dir", "/nowhere/x"});
  const double three = seconds({"--nvme-mem", "4GiB", "--nvme-dir", "/nowhere/x,/nowhere/y,/nowhere/z"});
  EXPECT_EQ(all, three);
  EXPECT_LT(all, slowest);
}

}  // namespace
}  // namespace sluice
