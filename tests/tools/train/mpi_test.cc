// Ranks as processes under mpirun: they give the bits of ranks in one process, and each leaves its exit code
// in its status.
#include <gtest/gtest.h>

#include "offload/system/memory_limits.h"
#include "offload/system/processors.h"
#include "tests/support/mpi_support.h"
#include "tests/support/training_support.h"

namespace sluice {
namespace {

class MpiBits : public Mpi {
 protected:
  void expect_bits_of_threads(int ranks, const std::string& name, const Words& more) const {
    const CommandResult threads =
        run(train_rows("threads" + name, 6, 8, more + Words{"--gpus", std::to_string(ranks)}));
    ASSERT_EQ(threads.code, 0) << threads.err;
    const CommandResult processes = mpirun(ranks, train_rows("mpi" + name, 6, 8, more));
    ASSERT_EQ(processes.code, 0) << processes.out << processes.err;
    EXPECT_EQ(numbers_of("mpi" + name).size(), 6u);
    EXPECT_EQ(numbers_of("mpi" + name), numbers_of("threads" + name));
    EXPECT_EQ(
        differences(newest_tensors(directory / "mpi" + name), newest_tensors(directory / "threads" + name)),
        "");
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(status("mpi" + name, rank), "0 \n");
  }
};

TEST_F(MpiBits, AreThoseOfRanksInOneProcess) {
  const Words factors{"--zero",           "0", "--compress",           "powersgd:2",
                      "--compress-after", "3", "--share-layers-until", "2"};
  for (const int ranks : {2, 4})
    for (const Words& numbers : {Words{"fp32"}, Words{"bf16"}, Words{"fp32"} + factors})
      expect_bits_of_threads(ranks, std::to_string(ranks) + numbers[0] + std::to_string(numbers.size()),
                             Words{"--micro-batch", "1", "--precision"} + numbers);
}

TEST_F(MpiBits, AreThoseOfRanksInOneProcessWhereExpertsAreDivided) {
  trained = kExperts;
  const Words more{"--micro-batch", "1", "--experts-over"};
  expect_bits_of_threads(2, "2over2", more + Words{"2"});
  expect_bits_of_threads(4, "4over2", more + Words{"2"});
  expect_bits_of_threads(4, "4over4", more + Words{"4"});
}

// A launcher that starts ranks "on another machine" starts them here, so that this machine stands for two
// nodes of two ranks. Every rank sees one other beside it, and gradients are summed within node groups first.
TEST_F(Mpi, BitsAreTheSameOnTwoNodes) {
  const std::string agent = directory / "agent";  // stands for ssh: host, command
  write_bytes(agent, "#!/bin/sh\nTMPDIR=" + std::string(directory / "") +
                         "$1\nexport TMPDIR\nmkdir -p $TMPDIR\nshift\nexec /bin/sh -c \"$*\"\n");
  std::filesystem::permissions(agent, std::filesystem::perms::owner_all);
  const Words nodes{"--mca", "plm_rsh_agent", agent,      "--host", "nodea:2,nodeb:2",
                    "--mca", "btl",           "self,tcp", "--mca",  "btl_tcp_if_include",
                    "lo"};
  for (const char* stage : {"0", "2", "3", "3 within nodes"}) {
    const bool in_machines = std::string(stage).size() > 1;
    const Words more{"--micro-batch",   "1",
                     "--zero",          std::string(stage, 1),
                     "--shard-weights", in_machines ? "node" : "all"};
    const CommandResult apart =
        Command(directory / "", Words{"mpirun"} + kAnywhere + nodes + Words{"-np", "4"} +
                                    sluice_words(train_rows("nodes" + std::string(stage), 4, 8,
                                                            more + Words{"--machine", "a100-cluster"}),
                                                 "sluice"))
            .wait();
    ASSERT_EQ(apart.code, 0) << apart.out << apart.err;
    EXPECT_NE(apart.out.find("ZeRO stage " + std::string(stage) + ", 2 on a node"), std::string::npos)
        << apart.out;
    ASSERT_EQ(run(train_rows("one" + std::string(stage), 4, 8, more + Words{"--gpus", "4"})).code, 0);
    EXPECT_EQ(numbers_of("nodes" + std::string(stage)).size(), 4u);
    EXPECT_EQ(numbers_of("nodes" + std::string(stage)), numbers_of("one" + std::string(stage)));
  }
  trained = kExperts;  // over both nodes, in two steps
  const Words more{"--micro-batch", "1", "--experts-over", "4"};
  const CommandResult apart =
      Command(directory / "", Words{"mpirun"} + kAnywhere + nodes + Words{"-np", "4"} +
                                  sluice_words(train_rows("experts", 4, 8, more), "sluice"))
          .wait();
  ASSERT_EQ(apart.code, 0) << apart.out << apart.err;
  ASSERT_EQ(run(train_rows("experts.one", 4, 8, more + Words{"--gpus", "4"})).code, 0);
  EXPECT_EQ(numbers_of("experts").size(), 4u);
  EXPECT_EQ(numbers_of("experts"), numbers_of("experts.one"));
}

TEST_F(Mpi, GoesOnFromOtherNumbersOfRanks) {
  const Words more{"--precision", "fp32", "--lr-schedule", "constant"};
  ASSERT_EQ(mpirun(2, train_rows("run", 2, 8, more)).code, 0);
  const Words resume{"train", "--resume", "auto", "--out", directory / "run", "--steps"};
  ASSERT_EQ(mpirun(4, resume + Words{"4"}).code, 0);
  ASSERT_EQ(run(resume + Words{"6"}).code, 0);
  ASSERT_EQ(run(train_rows("whole", 6, 8, more)).code, 0);
  const auto found = numbers_of("run"), wanted = numbers_of("whole");
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i)  // gradients are summed in another order
    EXPECT_NEAR(std::stod(found[i]), std::stod(wanted[i]), 1e-6 * std::stod(wanted[i]));
}

// The machine's cores and memory are divided, unless the launcher has done so.
TEST_F(Mpi, RanksShareTheMachine) {
  Words words = train_rows("shared", 2, 8);
  words.resize(words.size() - 2);  // no --threads
  const uint64_t before = memory_limits().usable();
  const CommandResult result =
      Command(directory / "", Words{"mpirun"} + kAnywhere + Words{"--bind-to", "none", "-np", "2"} +
                                  sluice_words(words, "sluice"))
          .wait();
  ASSERT_EQ(result.code, 0) << result.err;
  const bool apart = cores_of(allowed_processors()).size() >= 2;
  EXPECT_NE(result.out.find(apart ? ", on cores of its own." : ", and shares the cores"), std::string::npos)
      << result.out;
  const std::string limit = "--host-mem auto: ";
  ASSERT_NE(result.out.find(limit), std::string::npos) << result.out;
  const uint64_t each = std::stoull(result.out.substr(result.out.find(limit) + limit.size())) << 20;
  EXPECT_LT(each, before * 6 / 10);  // a half, while other processes come and go
  EXPECT_NE(result.out.find(" MiB for each of the 2 ranks here, "), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("\rstep"), std::string::npos) << "a line is rewritten in what mpirun collects";
}

}  // namespace
}  // namespace sluice
