// Ranks under mpirun that die, hang, are stopped by hand or lose their disk: all of them end, in time and
// with the reason in their statuses, and the last checkpoint goes on with the ranks that are left.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <thread>

#include "tests/mpi_support.h"

namespace sluice {
namespace {

using RankFault = Mpi;

TEST_F(RankFault, KillOfARank) {
  struct Case {
    int ranks, victim, left;
  };
  for (const Case c : {Case{4, 2, 3}, Case{2, 0, 1}}) {
    const std::string out = "kill" + std::to_string(c.ranks);
    Command command(directory / "", under_mpirun(c.ranks, endless(out, {"--checkpoint-every", "5"})));
    ASSERT_TRUE(reaches(command, out, 7)) << statuses(out);
    ::kill(rank_processes(command.process(), c.ranks).at(static_cast<size_t>(c.victim)), SIGKILL);
    const CommandResult result = command.wait();
    EXPECT_EQ(result.code, 128 + SIGKILL);
    for (int rank = 0; rank < c.ranks; ++rank)
      expect_status(out, rank,
                    rank == c.victim ? "7 This rank was ended from outside, before it could say why.\n"
                                     : "7 Rank " + std::to_string(c.victim) +
                                           " gives no sign of life after SIGTERM: " + kWaits);
    expect_that_it_goes_on(out, c.left);
  }
}

// The others' connections to it break, and MPI may not return from that: then some miss ranks that only
// cannot speak any more.
TEST_F(RankFault, KillOfARankOverTcp) {
  Words words = under_mpirun(4, endless("tcp"));
  words.insert(words.begin() + 1, {"--mca", "btl", "tcp,self"});
  Command command(directory / "", words);
  ASSERT_TRUE(reaches(command, "tcp", 7)) << statuses("tcp");
  ::kill(rank_processes(command.process(), 4).at(1), SIGKILL);
  EXPECT_EQ(command.wait().code, 128 + SIGKILL);
  for (const int rank : {0, 2, 3})
    expect_status(
        "tcp", rank,
        "7 (MPI does not return after SIGTERM, as when a rank has died|Rank [0-3] gives no sign of life "
        "after SIGTERM): " +
            kWaits);
}

TEST_F(RankFault, StopOfARank) {
  Command command(directory / "",
                  under_mpirun(4, endless("stop", {"--checkpoint-every", "5", "--rank-timeout", "4"})));
  ASSERT_TRUE(reaches(command, "stop", 7)) << statuses("stop");
  ::kill(rank_processes(command.process(), 4).at(1), SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(command.wait().code, 7);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 4 + 6) << "the patience, and what mpirun takes to end the others";
  for (const int rank : {0, 2, 3})
    expect_status("stop", rank, "7 Rank 1 has not answered for 4 s: " + kWaits);
  expect_that_it_goes_on("stop", 2);
}

// For longer than the patience: nobody is to blame.
TEST_F(RankFault, AJobThatIsStoppedByHandGoesOn) {
  Command command(directory / "", under_mpirun(3, endless("job", {"--rank-timeout", "1"})));
  ASSERT_TRUE(reaches(command, "job", 3)) << statuses("job");
  const std::vector<pid_t> ranks = rank_processes(command.process(), 3);
  for (const pid_t rank : ranks) ::kill(rank, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  const size_t before = steps_of("job");
  for (const pid_t rank : ranks) ::kill(rank, SIGCONT);
  EXPECT_TRUE(reaches(command, "job", before + 5));
  command.send(SIGUSR1);
  EXPECT_EQ(command.wait().code, 75);
}

// Wherever the signal comes from, all stop after the same step, with its checkpoint.
TEST_F(RankFault, GracefulStops) {
  for (const char* from : {"SIGUSR1 to mpirun", "SIGTERM to one rank", "SIGTERM to all ranks"}) {
    std::filesystem::remove_all(directory / "stops");
    Command command(directory / "", under_mpirun(4, endless("stops")));
    ASSERT_TRUE(reaches(command, "stops", 3)) << from;
    const std::vector<pid_t> ranks = rank_processes(command.process(), 4);
    if (from == std::string("SIGUSR1 to mpirun"))
      command.send(SIGUSR1);
    else if (from == std::string("SIGTERM to one rank"))
      ::kill(ranks.at(3), SIGTERM);
    else
      for (const pid_t rank : ranks) ::kill(rank, SIGTERM);
    const CommandResult result = command.wait();
    EXPECT_EQ(result.code, 75) << from << result.err;
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(status("stops", rank), "75 \n") << from;
    const auto newest = newest_checkpoint(directory / "stops");
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(CheckpointReader::open(*newest).state().step, static_cast<int64_t>(steps_of("stops"))) << from;
  }
  expect_that_it_goes_on("stops", 2);
}

TEST_F(RankFault, AProcessAloneStopsOnTheSameSignal) {
  Command command(directory, endless("alone"));
  ASSERT_TRUE(reaches(command, "alone", 3)) << statuses("alone");
  command.send(SIGUSR1);
  const CommandResult result = command.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_NE(result.out.find("go on with --resume auto"), std::string::npos) << result.out;
}

// One rank's scratch takes no more bytes. Its own status says so, the others' that it was lost.
TEST_F(RankFault, LossOfADisk) {
  const Words small{"--gpu-mem", "556KiB", "--host-mem", "69448576", "--nvme-dir", directory / ""};
  const Words more{"--precision", "fp32", "--lr-schedule", "constant"};
  ASSERT_EQ(mpirun(2, train_rows("disk", 5, 12, more + small)).code, 0);
  Command command(directory / "", under_mpirun(2, endless("disk", small + Words{"--resume", "auto"})));
  ASSERT_TRUE(reaches(command, "disk", 8)) << statuses("disk");
  const rlimit low{4096, 4096};
  ASSERT_EQ(prlimit(rank_processes(command.process(), 2).at(1), RLIMIT_FSIZE, &low, nullptr), 0);
  const CommandResult result = command.wait();
  EXPECT_EQ(result.code, 6) << result.err;
  expect_status("disk", 1, "6 .*\n");
  expect_status("disk", 0, "7 Rank 1 failed: .*\n");
  EXPECT_NE(result.err.find("Rank 1 failed: "), std::string::npos) << result.err;
  expect_that_it_goes_on("disk", 1);
}

}  // namespace
}  // namespace sluice
