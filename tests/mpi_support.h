// What the tests of runs under mpirun share: the launch, the numbers and statuses that it leaves, its ranks'
// processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cli_support.h"

namespace sluice {

// As root, on fewer cores than ranks, and where a container forbids processes to read each other's memory;
// for a minute at most.
inline const Words kAnywhere{"--allow-run-as-root",
                             "--oversubscribe",
                             "--timeout",
                             "60",
                             "--mca",
                             "btl_vader_single_copy_mechanism",
                             "none"};

// The processes that `launcher` has started, by rank.
inline std::vector<pid_t> rank_processes(pid_t launcher, int ranks) {
  std::vector<pid_t> found(static_cast<size_t>(ranks), -1);
  const std::string task = "/proc/" + std::to_string(launcher) + "/task/" + std::to_string(launcher);
  std::ifstream children(task + "/children");
  for (pid_t child = 0; children >> child;) {
    std::ifstream environment("/proc/" + std::to_string(child) + "/environ");
    for (std::string variable; std::getline(environment, variable, '\0');) {
      constexpr std::string_view kRank = "OMPI_COMM_WORLD_RANK=";
      if (variable.starts_with(kRank)) found.at(std::stoul(variable.substr(kRank.size()))) = child;
    }
  }
  return found;
}

class Mpi : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    if (!std::filesystem::exists(sluice_binary("libsluice_mpi.so")))
      GTEST_SKIP() << "the MPI module is not beside the program: a bundle has none";
  }
  Words train_rows(const std::string& out, int64_t steps, int64_t batch, const Words& more = {}) const {
    return Words{"train",
                 "--model",
                 kTiny,
                 "--data",
                 text,
                 "--batch",
                 std::to_string(batch),
                 "--steps",
                 std::to_string(steps),
                 "--out",
                 directory / out,
                 "--threads",
                 "2"} +
           more;
  }
  Words under_mpirun(int ranks, const Words& arguments) const {
    return Words{"mpirun"} + kAnywhere + Words{"-np", std::to_string(ranks)} +
           sluice_words(arguments, "sluice");
  }
  CommandResult mpirun(int ranks, const Words& arguments) const {
    return Command(directory / "", under_mpirun(ranks, arguments)).wait();
  }
  // Loss and norm of every step, as they were printed.
  std::vector<std::string> numbers_of(const std::string& out) const {
    std::vector<std::string> numbers;
    for (const std::string& line : lines_of(read_text_file(directory / out + "/metrics.jsonl", 1 << 20))) {
      const auto number = [&](const std::string& name) {
        const size_t begin = line.find("\"" + name + "\":") + name.size() + 3;
        return line.substr(begin, line.find(',', begin) - begin);
      };
      numbers.push_back(number("loss") + " " + number("grad_norm"));
    }
    return numbers;
  }
  size_t steps_of(const std::string& out) const {
    std::ifstream file(directory / out + "/metrics.jsonl");
    size_t lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
  std::string status_path(const std::string& out, int rank) const {
    return directory / out + "/rank-" + std::to_string(rank) + ".status";
  }
  bool has_status(const std::string& out, int rank) const {
    return std::filesystem::exists(status_path(out, rank));
  }
  std::string status(const std::string& out, int rank) const {
    return has_status(out, rank) ? read_text_file(status_path(out, rank), 4096) : "no status";
  }
};

}  // namespace sluice
