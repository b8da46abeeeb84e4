// Ranks under mpirun that die, hang, are stopped by hand or lose their drive. All of them end, in time and
// with the reason in their statuses. The run goes on from its last checkpoint on the ranks that are left.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "engine/run/checkpoint/checkpoint.h"
#include "tests/support/mpi_support.h"

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
                                     : "7 Rank " + std::to_string(c.victim) + " has died: " + kWaits);
    expect_that_it_goes_on(out, c.left);
  }
}

// The other ranks wait for rows from the experts of the killed rank.
TEST_F(RankFault, KillOfARankWithExperts) {
  trained = kExperts;
  Command command(directory / "",
                  under_mpirun(4, endless("experts", {"--checkpoint-every", "5", "--experts-over", "4"})));
  ASSERT_TRUE(reaches(command, "experts", 7)) << statuses("experts");
  ::kill(rank_processes(command.process(), 4).at(2), SIGKILL);
  EXPECT_EQ(command.wait().code, 128 + SIGKILL);
  for (const int rank : {0, 1, 3}) expect_status("experts", rank, "7 Rank 2 has died: " + kWaits);
  expect_that_it_goes_on("experts", 2);
}

// The killed rank's connections to the others break, and a call of MPI on the other side may never return.
TEST_F(RankFault, KillOfARankOverTcp) {
  Words words = under_mpirun(4, endless("tcp"));
  words.insert(words.begin() + 1, {"--mca", "btl", "tcp,self"});
  Command command(directory / "", words);
  ASSERT_TRUE(reaches(command, "tcp", 7)) << statuses("tcp");
  ::kill(rank_processes(command.process(), 4).at(1), SIGKILL);
  EXPECT_EQ(command.wait().code, 128 + SIGKILL);
  for (const int rank : {0, 2, 3}) expect_status("tcp", rank, "7 Rank 1 has died: " + kWaits);
}

// mpirun wakes the stopped rank to end it, and the others wait for that. The stopped rank's status then gives
// the same reason, and the reason is printed once.
TEST_F(RankFault, StopOfARank) {
  struct Case {
    int ranks, victim, left;
  };
  for (const Case c : {Case{4, 1, 2}, Case{4, 0, 3}, Case{2, 0, 1}}) {
    const std::string out = "stop" + std::to_string(c.ranks) + std::to_string(c.victim);
    Command command(directory / "",
                    under_mpirun(c.ranks, endless(out, {"--checkpoint-every", "5", "--rank-timeout", "4"})));
    ASSERT_TRUE(reaches(command, out, 7)) << statuses(out);
    ::kill(rank_processes(command.process(), c.ranks).at(static_cast<size_t>(c.victim)), SIGSTOP);
    const auto begin = std::chrono::steady_clock::now();
    const CommandResult result = command.wait();
    EXPECT_EQ(result.code, 7);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), 4 + 6) << "the patience, and what mpirun takes to end the others";
    const std::string reason = "Rank " + std::to_string(c.victim) + " has not answered for 4 s: ";
    for (int rank = 0; rank < c.ranks; ++rank) expect_status(out, rank, "7 " + reason + kWaits);
    const size_t said = result.err.find("sluice: " + reason);
    EXPECT_NE(said, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("sluice: ", said + 1), std::string::npos) << result.err;
    expect_that_it_goes_on(out, c.left);
  }
}

// Here the stopped rank never continues. The rank that finds it silent writes the status for it.
TEST_F(RankFault, WhoFindsThatARankHangsSpeaksForIt) {
  for (const int victim : {1, 0}) {
    const std::string out = "dumb" + std::to_string(victim);
    Command command(directory / "", under_mpirun(3, endless(out, {"--rank-timeout", "2"})));
    ASSERT_TRUE(reaches(command, out, 3)) << statuses(out);
    const pid_t process = rank_processes(command.process(), 3).at(static_cast<size_t>(victim));
    ::kill(process, SIGSTOP);
    const std::string reason = "Rank " + std::to_string(victim) + " has not answered for 2 s: ";
    EXPECT_TRUE(command.until([&] { return status(out, 2).find(reason) != std::string::npos; }));
    ::kill(process, SIGKILL);
    const CommandResult result = command.wait();
    for (int rank = 0; rank < 3; ++rank) expect_status(out, rank, "7 " + reason + kWaits);
    EXPECT_NE(result.err.find("sluice: " + reason), std::string::npos) << result.err;
  }
}

// The other rank waits inside MPI's own start, which never gives up.
TEST_F(RankFault, StopOfARankBeforeAllHaveStarted) {
  std::filesystem::create_directory(directory / "start");
  for (const int stopped : {1, 0}) {
    std::vector<Words> ranks(2, sluice_words(endless("start", {"--rank-timeout", "3"}), "sluice"));
    Words& first = ranks[static_cast<size_t>(stopped)];
    first = Words{"sh", "-c", R"(kill -STOP $$; exec "$@")", "sh"} + first;
    Command command(directory / "", each_under_mpirun(ranks));
    const auto begin = std::chrono::steady_clock::now();
    const CommandResult result = command.wait();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(result.code, 7) << result.err;
    EXPECT_LT(seconds.count(), 3 + 6) << "the patience, and what mpirun takes to end the other";
    const std::string sentence =
        "Rank " + std::to_string(1 - stopped) + " has started, but not all 2 ranks started within 3 s.\n";
    EXPECT_EQ(status("start", 1 - stopped), "7 " + sentence);
    EXPECT_FALSE(has_status("start", stopped)) << "it has not come so far";
    EXPECT_NE(result.err.find("sluice: " + sentence), std::string::npos) << result.err;
    std::filesystem::remove(status_path("start", 1 - stopped));
  }
}

// All ranks stop for longer than --rank-timeout: no rank is to blame.
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

// Wherever the signal comes from, all ranks stop after the same step, with a checkpoint of it.
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

// A rank is silent, as if it got no core for a while. The system shows that it lives.
TEST_F(RankFault, SilenceAfterATerminationIsNoDeath) {
  Command command(directory / "", under_mpirun(3, endless("silent")));
  ASSERT_TRUE(reaches(command, "silent", 3)) << statuses("silent");
  const std::vector<pid_t> ranks = rank_processes(command.process(), 3);
  ::kill(ranks.at(1), SIGSTOP);
  ::kill(ranks.at(0), SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // longer than it takes to notice a death
  ::kill(ranks.at(1), SIGCONT);
  const CommandResult result = command.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(status("silent", rank), "75 \n");
}

// A pipe that nobody reads. When it is full, it holds the thread that writes to it, while other threads go
// on.
class Hold {
 public:
  explicit Hold(const std::string& path) : path_(path) {
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    fd_ = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  }
  ~Hold() { close(fd_); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  void fill() const {
    const std::string page(4096, '.');
    for (const size_t bytes : {page.size(), size_t{1}})
      while (write(fd_, page.data(), bytes) > 0) {
      }
  }
  void empty() const {
    char page[4096];
    while (read(fd_, page, sizeof page) > 0) {
    }
  }
  // A command whose standard output is this pipe. `words` start the rank that prints.
  Words holding(const Words& words) const {
    return Words{"sh", "-c", R"(out=$0; exec "$@" > "$out")", path_} + words;
  }

 private:
  std::string path_;
  int fd_ = -1;
};

// Whether the process handles SIGTERM. Once it does, it knows that it is one of several ranks.
bool takes_terminations(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string word; status >> word;) {
    if (word != "SigCgt:") continue;
    status >> word;
    return (std::stoull(word, nullptr, 16) >> (SIGTERM - 1) & 1) != 0;
  }
  return false;
}

class RankSignals : public Mpi {
 protected:
  // A command of two ranks. `hold` can stop the first of them.
  Words two(const Words& arguments) const {
    const Words words = sluice_words(arguments, "sluice");
    return each_under_mpirun({hold.holding(words), words});
  }
  bool both_have_begun(const Command& command) const {
    return command.until([&] {
      const std::vector<pid_t> ranks = rank_processes(command.process(), 2);
      return takes_terminations(ranks[0]) && takes_terminations(ranks[1]);
    });
  }
  int64_t saved(const std::string& out) const {
    const auto newest = newest_checkpoint(directory / out);
    return newest ? CheckpointReader::open(*newest).state().step : -1;
  }

  const Hold hold{directory / "pipe"};
};

// Whether the run begins afresh or is resumed, it stops before its first step, with a checkpoint of that
// moment.
TEST_F(RankSignals, AStopDuringTheStart) {
  const auto stop = [&](const Words& arguments) {
    hold.fill();
    Command command(directory / "", two(arguments));
    EXPECT_TRUE(both_have_begun(command));
    command.send(SIGUSR1);
    std::this_thread::sleep_for(std::chrono::seconds(1));  // mpirun passes the signal on at once
    hold.empty();
    EXPECT_EQ(command.wait().code, 75);
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(status("early", rank), "75 \n");
  };
  stop(endless("early"));
  EXPECT_EQ(saved("early"), 0);
  EXPECT_EQ(steps_of("early"), 0u);
  const Words resume{"train", "--resume", "auto", "--out", directory / "early"};
  EXPECT_EQ(mpirun(2, resume + Words{"--steps", "3"}).code, 0);
  stop(resume + Words{"--steps", "1000000"});
  EXPECT_EQ(saved("early"), 3);
  expect_that_it_goes_on("early", 2);
}

TEST_F(RankSignals, ATerminationDuringTheStart) {
  for (const bool to_all : {false, true}) {
    const std::string out = to_all ? "all" : "one";
    std::filesystem::create_directory(directory / out);  // otherwise there is no place for statuses yet
    hold.fill();
    Command command(directory / "", two(endless(out)));
    ASSERT_TRUE(both_have_begun(command));
    const std::vector<pid_t> ranks = rank_processes(command.process(), 2);
    for (int rank = to_all ? 0 : 1; rank < 2; ++rank) ::kill(ranks.at(static_cast<size_t>(rank)), SIGTERM);
    EXPECT_EQ(command.wait().code, 7);
    const std::string came = "A signal came before the first step, when there was nothing to save\\..*\n";
    expect_status(out, 0, (to_all ? "7 (Rank 1 ended: )?" : "7 Rank 1 ended: ") + came);
    expect_status(out, 1, (to_all ? "7 (Rank 0 ended: )?" : "7 ") + came);
    EXPECT_EQ(saved(out), -1);
    EXPECT_EQ(steps_of(out), 0u);
  }
}

// mpirun kills the ranks before they can say why. The statuses that they wrote in advance stand.
TEST_F(RankSignals, ATerminationOfMpirunDuringTheStart) {
  std::filesystem::create_directory(directory / "out");
  write_bytes(status_path("out", 0), std::string("75 \n"));  // of an earlier run
  hold.fill();
  Command command(directory / "", two(endless("out")));
  ASSERT_TRUE(both_have_begun(command));
  command.send(SIGTERM);
  EXPECT_NE(command.wait().code, 0);
  for (int rank = 0; rank < 2; ++rank) expect_status("out", rank, "7 .+\\.\n");
}

// For users who do not want to wait for the checkpoint of a stop.
TEST_F(RankSignals, ASecondTerminationDuringTheStop) {
  for (const bool to_all : {false, true}) {
    const std::string out = to_all ? "all" : "one";
    hold.empty();
    Command command(directory / "", two(endless(out, {"--checkpoint-every", "2"})));
    ASSERT_TRUE(command.until([&] {
      hold.empty();
      return steps_of(out) >= 5;
    })) << statuses(out);
    hold.fill();
    const std::vector<pid_t> ranks = rank_processes(command.process(), 2);
    for (const char* time : {"first", "second"}) {
      if (time == std::string("second"))
        std::this_thread::sleep_for(std::chrono::seconds(3));  // otherwise both count as one
      for (int rank = to_all ? 0 : 1; rank < 2; ++rank) ::kill(ranks.at(static_cast<size_t>(rank)), SIGTERM);
    }
    EXPECT_EQ(command.wait().code, 7);
    const std::string came = "A second signal came during the stop\\..*\n";
    expect_status(out, 0, (to_all ? "7 (Rank 1 ended: )?" : "7 Rank 1 ended: ") + came);
    expect_status(out, 1, (to_all ? "7 (Rank 0 ended: )?" : "7 ") + came);
    expect_that_it_goes_on(out, 2);
  }
}

TEST_F(RankFault, AProcessAloneStopsOnTheSameSignal) {
  Command command(directory, endless("alone"));
  ASSERT_TRUE(reaches(command, "alone", 3)) << statuses("alone");
  command.send(SIGUSR1);
  const CommandResult result = command.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_NE(result.out.find("go on with --resume auto"), std::string::npos) << result.out;
}

// The scratch file of rank 1 takes no more bytes. Rank 1's status says so, rank 0's that rank 1 failed.
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
