// `sluice bench` on ranks of mpirun: one rank measures the machine, all measure the network, and plans read
// the result.
#include <gtest/gtest.h>

#include "engine/rates/machine_rates.h"
#include "tests/support/mpi_support.h"

namespace sluice {
namespace {

class MpiBench : public Mpi {
 protected:
  Words bench(const Words& more = {}) const {
    return Words{"bench", "--device", "cpu", "--host-mem", "140MiB", "--out", directory / "m.json"} + more;
  }
  MachineRates written() const {
    return parse_machine_rates(read_text_file(directory / "m.json", 1 << 20), "m.json");
  }
};

TEST_F(MpiBench, TwoRanksOfAMachine) {
  const CommandResult result = mpirun(2, bench({"--threads", "1"}));
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  const std::string said = "optimizer: AdamW on 2 threads";
  EXPECT_NE(result.out.find(said), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find(said), result.out.rfind(said)) << "one rank measures, and speaks";
  const MachineRates rates = written();
  ASSERT_EQ(rates.network.size(), 1u);
  EXPECT_EQ(rates.network[0].ranks, 2u);
  EXPECT_GT(rates.network[0].bytes_per_second, 0);
  // One rank measured, with the threads of both. The pool in the file is one rank's share.
  EXPECT_EQ(rates.pools[0].name, kCoresPool);
  EXPECT_EQ(rates.pools[0].capacity, 1);
  EXPECT_EQ(find_lane(rates, "compute", "host")->sharing.occupies[0].amount, 2);
  EXPECT_NE(find_lane(rates, "collective", "host"), nullptr);
  const Words plan{
      "plan",   "--model", kTiny, "--batch", "8", "--device", "cpu", "--machine", directory / "m.json",
      "--ranks"};
  EXPECT_EQ(run(plan + Words{"2"}).code, 0);
  const CommandResult four = run(plan + Words{"4"});
  EXPECT_EQ(four.code, 2);
  EXPECT_NE(four.err.find("joins at most 2 ranks"), std::string::npos) << four.err;
}

TEST_F(MpiBench, WhatOneRankRefusesAllRefuse) {
  const CommandResult none = mpirun(2, bench({"--nvme-dir", directory / "none"}));
  EXPECT_EQ(none.code, 4);
  EXPECT_NE(none.err.find("none does not exist."), std::string::npos) << none.err;
  EXPECT_EQ(none.err.find("none does not exist."), none.err.rfind("none does not exist.")) << none.err;
  const CommandResult unknown = mpirun(2, bench({"--nvme", "x"}));
  EXPECT_EQ(unknown.code, 2) << unknown.err;
  EXPECT_FALSE(std::filesystem::exists(directory / "m.json"));
}

}  // namespace
}  // namespace sluice
