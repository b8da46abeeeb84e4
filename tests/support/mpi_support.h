// What the tests of runs under mpirun share: launching, the metrics and statuses that a run leaves, and
// finding the processes of its ranks.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/run/checkpoint/checkpoint.h"
#include "tests/support/cli_support.h"

namespace sluice {

// With these options mpirun works as root, on fewer cores than ranks, and in containers that forbid processes
// to read each other's memory. It ends after a minute.
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

// A pattern for the end of the sentence about a lost rank.
inline const std::string kWaits =
    "rank [0-3] (waits|last waited) at step [0-9]+ for (instruction [0-9]+ of body [a-z]+ on lane collective "
    "\\([a-z_]+ of [a-z_.0-9]+\\)|the trainers' sums|the checkpoint)\\.\n";

class Mpi : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    if (!std::filesystem::exists(sluice_binary("libsluice_mpi.so")))
      GTEST_SKIP() << "libsluice_mpi.so is not beside the tests: a bundle has none";
  }
  Words train_rows(const std::string& out, int64_t steps, int64_t batch, const Words& more = {}) const {
    return Words{"train",
                 "--model",
                 trained,
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
  const char* trained = kTiny;  // the model of train_rows()
  Words under_mpirun(int ranks, const Words& arguments) const {
    return Words{"mpirun"} + kAnywhere + Words{"-np", std::to_string(ranks)} +
           sluice_words(arguments, "sluice");
  }
  CommandResult mpirun(int ranks, const Words& arguments) const {
    return Command(directory / "", under_mpirun(ranks, arguments)).wait();
  }
  // mpirun can start each rank with a command line of its own.
  static Words each_under_mpirun(const std::vector<Words>& ranks) {
    Words words = Words{"mpirun"} + kAnywhere;
    for (size_t i = 0; i < ranks.size(); ++i)
      words = words + (i > 0 ? Words{":"} : Words{}) + Words{"-np", "1"} + ranks[i];
    return words;
  }
  CommandResult mpirun_each(const std::vector<Words>& ranks) const {
    return Command(directory / "", each_under_mpirun(ranks)).wait();
  }
  // Loss and gradient norm of every step, as text.
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
  // A run of more steps than a test waits for.
  Words endless(const std::string& out, const Words& more = {}) const {
    return train_rows(out, 1'000'000, 12, Words{"--precision", "fp32", "--lr-schedule", "constant"} + more);
  }
  // All statuses, for a failure's message.
  std::string statuses(const std::string& out) const {
    std::string all;
    for (int rank = 0; has_status(out, rank); ++rank) all += status(out, rank);
    return all;
  }
  bool reaches(const Command& command, const std::string& out, size_t steps) const {
    return command.until([&] { return steps_of(out) >= steps; });
  }
  void expect_status(const std::string& out, int rank, const std::string& pattern) const {
    const std::string found = status(out, rank);
    EXPECT_TRUE(std::regex_match(found, std::regex(pattern))) << "rank " << rank << ": " << found;
  }
  // Resumes on `ranks` ranks for four more steps. These steps must agree with an undisturbed run on one rank.
  void expect_that_it_goes_on(const std::string& out, int ranks) const {
    const auto newest = newest_checkpoint(directory / out);
    ASSERT_TRUE(newest.has_value());
    const int64_t saved = CheckpointReader::open(*newest).state().step;
    const Words resume{
        "train", "--resume", "auto", "--out", directory / out, "--steps", std::to_string(saved + 4)};
    CommandResult resumed = mpirun(ranks, resume);
    // mpirun may return before its last rank has ended. Until then that rank holds the lock of --out.
    for (int tries = 0; tries < 20 && resumed.err.find("Another process is training") != std::string::npos;
         ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      resumed = mpirun(ranks, resume);
    }
    ASSERT_EQ(resumed.code, 0) << resumed.out << resumed.err;
    for (int rank = 0; ranks > 1 && rank < ranks; ++rank) EXPECT_EQ(status(out, rank), "0 \n");
    EXPECT_FALSE(has_status(out, ranks)) << "a status that the run before left is still there";
    const Words more{"--precision", "fp32", "--lr-schedule", "constant"};
    ASSERT_EQ(run(train_rows(out + ".whole", saved + 4, 12, more)).code, 0);
    const auto found = numbers_of(out), wanted = numbers_of(out + ".whole");
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = static_cast<size_t>(saved); i < wanted.size(); ++i)  // sums of gradients differ in order
      EXPECT_NEAR(std::stod(found[i]), std::stod(wanted[i]), 1e-6 * std::stod(wanted[i])) << i;
  }
};

}  // namespace sluice
