// Two nodes as two network namespaces, with their own addresses and host names, and mpirun across them.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "engine/rates/machine_rates.h"
#include "tests/support/mpi_support.h"

namespace sluice {
namespace {

class MpiNamespaces : public Mpi {
 protected:
  void SetUp() override {
    Mpi::SetUp();
    if (IsSkipped()) return;
    const std::string here = machine('a'), there = machine('b');
    for (const std::string& m : {here, there}) {
      const CommandResult made = ip({"netns", "add", m});
      if (made.code != 0) GTEST_SKIP() << "network namespaces are not permitted here: " << made.err;
      made_.push_back(m);
    }
    ASSERT_EQ(
        ip({"link", "add", "link-a", "netns", here, "type", "veth", "peer", "name", "link-b", "netns", there})
            .code,
        0);
    for (const char end : {'a', 'b'}) {
      const std::string link = std::string("link-") + end;
      ASSERT_EQ(ip({"-n", machine(end), "addr", "add", address(end) + "/24", "dev", link}).code, 0);
      for (const std::string& up : {link, std::string("lo")})
        ASSERT_EQ(ip({"-n", machine(end), "link", "set", up, "up"}).code, 0);
    }
    write_bytes(directory / "hosts", address('a') + " slots=2\n" + address('b') + " slots=2\n");
    // Stands for ssh: its arguments are a host and a command.
    write_bytes(directory / "agent.sh",
                "shift\nexec ip netns exec " + there + " unshare --uts sh -c \"hostname machine-b; $*\"\n");
  }
  void TearDown() override {
    end_processes();
    for (const std::string& m : made_) EXPECT_EQ(ip({"netns", "del", m}).code, 0);
  }

  // Ends the processes on both nodes.
  void end_processes() const {
    for (const std::string& m : made_)
      for (;;) {
        const Words processes = lines_of(ip({"netns", "pids", m}).out);
        if (processes.empty()) break;
        for (const std::string& process : processes) ::kill(std::stoi(process), SIGKILL);
      }
  }
  CommandResult ip(const Words& words) const { return Command(commands_ / "", Words{"ip"} + words).wait(); }
  std::string machine(char which) const { return "sluice-" + std::to_string(getpid()) + "-" + which; }
  static std::string address(char which) { return which == 'a' ? "10.77.0.1" : "10.77.0.2"; }

  // Ranks 0 and 1 on the first node, where mpirun runs; 2 and 3 on the other.
  Words across(const Words& arguments) const {
    const Words network{"--hostfile",
                        directory / "hosts",
                        "--mca",
                        "plm_rsh_agent",
                        "sh " + (directory / "agent.sh"),
                        "--mca",
                        "btl",
                        "tcp,vader,self",
                        "--mca",
                        "btl_tcp_if_include",
                        "10.77.0.0/24",
                        "--mca",
                        "oob_tcp_if_include",
                        "10.77.0.0/24"};
    return Words{"ip",         "netns",   "exec",
                 machine('a'), "unshare", "--uts",
                 "sh",         "-c",      "hostname machine-a; exec \"$@\"",
                 "sh",         "mpirun"} +
           kAnywhere + network + Words{"-np", "4"} + sluice_words(arguments, "sluice");
  }

 private:
  const DriveDirectory commands_;  // of ip, so that its output is apart from mpirun's
  std::vector<std::string> made_;
};

TEST_F(MpiNamespaces, LossesAreThoseOfOneMachine) {
  const Words more{"--precision", "fp32", "--micro-batch", "1"};
  const CommandResult two = Command(directory / "", across(train_rows("two", 6, 8, more))).wait();
  ASSERT_EQ(two.code, 0) << two.out << two.err;
  const CommandResult one = run(train_rows("one", 6, 8, more + Words{"--gpus", "4"}));
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(numbers_of("two").size(), 6u);
  EXPECT_EQ(numbers_of("two"), numbers_of("one"));
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(status("two", rank), "0 \n");
}

// The network between nodes is a level of its own. Within nodes, the first node stands for both.
TEST_F(MpiNamespaces, BenchTellsMachinesApart) {
  const Words bench{"bench",     "--device", "cpu",   "--host-mem",        "140MiB",
                    "--threads", "1",        "--out", directory / "m.json"};
  const CommandResult result = Command(directory / "", across(bench)).wait();
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  const MachineRates rates = parse_machine_rates(read_text_file(directory / "m.json", 1 << 20), "m.json");
  ASSERT_EQ(rates.network.size(), 2u);
  EXPECT_EQ(rates.network[0].ranks, 2u);
  EXPECT_EQ(rates.network[1].ranks, 4u);
  EXPECT_GT(rates.network[1].bytes_per_second, 0);
  EXPECT_EQ(rates.pools[0].capacity, 1) << "two threads of two ranks";
}

// The rank beside the dead one sees that it has ended. The others notice in one of three ways: their
// connections to it break at once, they hear nothing more from it, or they are told.
TEST_F(MpiNamespaces, DeathOfARank) {
  Command command(directory / "", across(endless("death", {"--checkpoint-every", "5"})));
  ASSERT_TRUE(reaches(command, "death", 7)) << statuses("death");
  ::kill(rank_processes(command.process(), 4).at(1), SIGKILL);
  EXPECT_EQ(command.wait().code, 128 + SIGKILL);
  const std::string seen = "Rank 1 has died";
  const std::string missed =
      "MPI does not return after SIGTERM, as when a rank has died|Rank [0-3] gives no sign "
      "of life after SIGTERM";
  for (const int rank : {0, 2, 3})
    expect_status("death", rank, "7 (" + seen + (rank == 0 ? "" : "|" + missed) + "): " + kWaits);
  expect_that_it_goes_on("death", 3);
}

// Each half sees that the other is silent. mpirun cannot reach the other half either, and is left behind.
TEST_F(MpiNamespaces, ACutNetworkEndsAll) {
  const auto missed_by = [](int rank) {
    return "7 Rank " + std::to_string(rank < 2 ? 3 : 1) + " has not answered for 4 s: ";
  };
  const Words often{"--checkpoint-every", "5", "--rank-timeout", "4"};
  {
    const Command command(directory / "", across(endless("cut", often)));
    ASSERT_TRUE(reaches(command, "cut", 7)) << statuses("cut");
    ASSERT_EQ(ip({"-n", machine('a'), "link", "set", "link-a", "down"}).code, 0);
    EXPECT_TRUE(command.until([&] {  // at first, a status may be from the other half
      for (int rank = 0; rank < 4; ++rank)
        if (!status("cut", rank).starts_with(missed_by(rank))) return false;
      return true;
    }));
  }
  for (int rank = 0; rank < 4; ++rank) expect_status("cut", rank, missed_by(rank) + kWaits);
  end_processes();
  expect_that_it_goes_on("cut", 2);
}

}  // namespace
}  // namespace sluice
