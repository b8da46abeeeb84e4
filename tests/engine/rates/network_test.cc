// How long collectives take on a network of levels, with times worked out by hand.
#include "engine/rates/network.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/simulate/simulate.h"

namespace sluice {
namespace {

// Six ranks: an all-gather of 6 bytes from each, a task, and an all-to-all of 6 bytes from each to each.
constexpr const char* kProgram = R"(sluice program 1
tier host capacity 1000 alignment 1
lane compute
lane collective
unit forward compute host
unit gather collective host
unit exchange collective host
processes all count 6 stride 1
processes block count 2 stride 1
processes across count 3 stride 2
buffer part gradients home host pieces 6
buffer whole gradients home host pieces 36
buffer received gradients home host pieces 36
arena 1000
body step clean -> clean peak 1000 after step
tasks step
0 gather 0/0 among all flops 0 bytes 42 read part@0 write whole@0
1 forward 0/0 flops 0 bytes 10 read part@0
2 exchange 0/0 among all flops 0 bytes 72 read whole@1 write received@0
instructions step
0 collective:1 run 0 at host+0 host+100
1 compute:1 run 1 at host+0
2 collective:2 run 2 at host+100 host+200
)";

MachineRates rates_with(std::vector<NetworkLevel> network) {
  MachineRates r;
  r.name = "m";
  r.lanes = {{.lane = "compute"}, {.lane = "collective"}};
  r.network = std::move(network);
  return r;
}

const Task& gather(const Program& p) { return p.bodies[0].tasks[0]; }
const Task& exchange(const Program& p) { return p.bodies[0].tasks[2]; }

TEST(Network, OneLevelTakesEveryMessageOfARank) {
  const Program p = program_from_text(kProgram);
  const std::vector<NetworkLevel> one{{"node", 6, 3, 0.5}};
  // Five messages of 6 bytes at 3 bytes a second, and 0.5 seconds for each.
  EXPECT_DOUBLE_EQ(network_seconds(p, one, gather(p)), 5 * (6 / 3.0 + 0.5));
  EXPECT_DOUBLE_EQ(network_seconds(p, one, exchange(p)), 5 * (6 / 3.0 + 0.5));
  EXPECT_EQ(network_bytes(p, one, std::vector<BodyId>{0}), (std::vector<uint64_t>{60}));
}

// Three nodes of two ranks: each rank of a node sends 5 messages, 4 of them out of the node.
TEST(Network, AnUpperLevelIsSharedByTheRanksOfAUnit) {
  const Program p = program_from_text(kProgram);
  const std::vector<NetworkLevel> slow_above{{"node", 2, 6, 0}, {"cluster", 6, 2, 0.25}};
  for (const Task& task : {exchange(p), gather(p)})
    EXPECT_DOUBLE_EQ(network_seconds(p, slow_above, task), 2 * 4 * 6 / 2.0 + 4 * 0.25);
  EXPECT_EQ(network_bytes(p, slow_above, std::vector<BodyId>{0}),
            (std::vector<uint64_t>{5 * 6 + 5 * 6, 2 * 4 * 6 + 2 * 4 * 6}));
  const std::vector<NetworkLevel> slow_below{{"node", 2, 1, 0.5}, {"cluster", 6, 1000, 0}};
  EXPECT_DOUBLE_EQ(network_seconds(p, slow_below, exchange(p)), 5 * (6 / 1.0 + 0.5));
}

// In its node group a rank sends one part, to the other rank. In its cross-node group it sends two.
TEST(Network, GroupsSendToTheirOwn) {
  Program p = program_from_text(kProgram);
  const std::vector<NetworkLevel> levels{{"node", 2, 6, 0.5}, {"cluster", 6, 2, 0.25}};
  Task& task = p.bodies[0].tasks[2];
  task.processes = 1;  // the node group: 36 bytes for two
  EXPECT_DOUBLE_EQ(network_seconds(p, levels, task), 18 / 6.0 + 0.5);
  EXPECT_EQ(sent_bytes(p, task), 18);
  task.processes = 2;  // the cross-node group: 36 bytes for three
  EXPECT_DOUBLE_EQ(network_seconds(p, levels, task), 2 * 2 * 12 / 2.0 + 2 * 0.25);
  EXPECT_EQ(sent_bytes(p, task), 24);
  Task& all = p.bodies[0].tasks[0];
  all.processes = 2;
  EXPECT_EQ(sent_bytes(p, all), 12);
  EXPECT_EQ(network_bytes(p, levels, std::vector<BodyId>{0}),
            (std::vector<uint64_t>{12 + 24, 2 * 12 + 2 * 24}));
}

// Rows that travel: a task counts that they are read and written, and each rank gets an equal part of them.
TEST(Network, RowsThatTravelAreDividedAmongTheGroup) {
  Program p = program_from_text(kProgram);
  const std::vector<NetworkLevel> levels{{"node", 2, 6, 0.5}, {"cluster", 6, 2, 0.25}};
  Task& task = p.bodies[0].tasks[2];
  task.kind = TaskKind::travel;
  task.processes = 2;  // three ranks on three nodes: 72 bytes are 36 of rows, and 12 for each
  EXPECT_EQ(sent_bytes(p, task), 24);
  EXPECT_DOUBLE_EQ(network_seconds(p, levels, task), 2 * 2 * 12 / 2.0 + 2 * 0.25);
}

// Rows travel in a pass of a segment, whose ops take time for their memory traffic.
TEST(Network, APassTakesTheLongerOfItsOpsAndTheNetwork) {
  Program p = program_from_text(kProgram);
  Task& task = p.bodies[0].tasks[2];
  task.kind = TaskKind::travel;
  p.machine.units[2].kind = TaskKind::travel;
  task.pass = 0;
  p.passes = {{{{.kind = OpKind::all_to_allv, .flops = 0, .bytes = 72}}}};
  MachineRates rates = rates_with({{"node", 6, 3, 0.5}});
  EXPECT_DOUBLE_EQ(task_seconds(p, rates, task), network_seconds(p, rates.network, task));
  EXPECT_DOUBLE_EQ(task_seconds(p, rates, task), 5 * (6 / 3.0 + 0.5));
  rates.lanes[1].bytes_per_second = 1;
  EXPECT_DOUBLE_EQ(task_seconds(p, rates, task), 72);
}

// What leaves a rack has left its node, too.
TEST(Network, ThreeLevels) {
  Program p = program_from_text(kProgram);
  p.buffers[1].cuts = p.buffers[2].cuts = {0, 48};
  p.processes = {{"all", 8, 1}, {"across", 4, 2}};
  const std::vector<NetworkLevel> levels{{"node", 2, 1e9, 0}, {"rack", 4, 2, 0}, {"cluster", 8, 1, 0}};
  // 2 ranks send 6 messages each out of their node, and 4 ranks send 4 messages each out of their rack.
  EXPECT_DOUBLE_EQ(network_seconds(p, levels, exchange(p)), std::max(2 * 6 * 6 / 2.0, 4 * 4 * 6 / 1.0));
  // In a cross-node group, a rank sends 3 messages of 12 bytes out of its node. Only 2 of them leave its
  // rack, which has two of the group's four ranks.
  p.bodies[0].tasks[2].processes = 1;
  EXPECT_DOUBLE_EQ(network_seconds(p, levels, exchange(p)), std::max(2 * 3 * 12 / 2.0, 4 * 2 * 12 / 1.0));
}

TEST(Network, OthersThanCollectivesTakeNothing) {
  const Program p = program_from_text(kProgram);
  EXPECT_EQ(network_seconds(p, {{"node", 6, 1, 1}}, p.bodies[0].tasks[1]), 0);
  EXPECT_EQ(network_seconds(p, {}, gather(p)), 0);
  EXPECT_TRUE(network_bytes(p, {}, std::vector<BodyId>{0}).empty());
}

// What ranks write leaves their machine, since machines share the directory of checkpoints.
TEST(Network, CheckpointsLeaveEveryMachineOfSeveral) {
  const Program p = program_from_text(kProgram);
  Task save = p.bodies[0].tasks[1];
  save.kind = TaskKind::save;
  save.bytes = 24;
  // Two ranks of a node write 24 bytes each, and the node sends 4 bytes a second.
  EXPECT_DOUBLE_EQ(network_seconds(p, {{"node", 2, 3, 0}, {"cluster", 6, 4, 9}}, save), 2 * 24 / 4.0);
  // Four ranks of a rack write 24 bytes each, and the rack sends 2 bytes a second.
  EXPECT_DOUBLE_EQ(network_seconds(p, {{"node", 2, 3, 0}, {"rack", 4, 4, 0}, {"cluster", 8, 2, 0}}, save),
                   4 * 24 / 2.0);
  EXPECT_EQ(network_seconds(p, {{"node", 6, 3, 0.5}}, save), 0);
  EXPECT_EQ(network_seconds(p, {}, save), 0);
}

TEST(Network, TheSimulatorTakesTheLongerOfLaneAndNetwork) {
  const Program p = program_from_text(kProgram);
  const BodyId step[] = {0};
  MachineRates rates = rates_with({{"node", 6, 3, 0.5}});
  EXPECT_DOUBLE_EQ(simulate(p, rates, step).seconds, 2 * 5 * (6 / 3.0 + 0.5));
  rates.lanes[1].overhead_seconds = 1;  // before each
  EXPECT_DOUBLE_EQ(simulate(p, rates, step).seconds, 2 * (1 + 5 * (6 / 3.0 + 0.5)));
  EXPECT_DOUBLE_EQ(task_seconds(p, rates, gather(p)), 1 + 5 * (6 / 3.0 + 0.5));
  rates.lanes[1].bytes_per_second = 1;  // 42 and 72 bytes of memory
  EXPECT_DOUBLE_EQ(simulate(p, rates, step).seconds, 2 + 42 + 72);
}

TEST(Network, LevelsAreThoseThatTheRanksUse) {
  const MachineRates rates = rates_with({{"node", 8, 1, 0}, {"rack", 32, 1, 0}, {"cluster", 1024, 1, 0}});
  const auto ranks = [&](uint32_t count, uint32_t per_node) {
    std::vector<uint32_t> out;
    for (const NetworkLevel& l : levels_for(rates, count, per_node)) out.push_back(l.ranks);
    return out;
  };
  EXPECT_EQ(ranks(1024, 0), (std::vector<uint32_t>{8, 32, 1024}));
  EXPECT_EQ(ranks(64, 4), (std::vector<uint32_t>{4, 32, 64}));
  EXPECT_EQ(ranks(32, 0), (std::vector<uint32_t>{8, 32}));
  EXPECT_EQ(ranks(4, 0), (std::vector<uint32_t>{4}));
  EXPECT_EQ(ranks(16, 1), (std::vector<uint32_t>{1, 16}));
  EXPECT_TRUE(levels_for(rates_with({}), 64, 8).empty());
  EXPECT_THROW(ranks(1025, 0), Error);
}

TEST(Network, DescriptionsAreRead) {
  const auto read = [](const std::string& rows) {
    const std::string begin = R"({"format": "sluice-machine-1", "name": "m", "network": )";
    return parse_machine_rates(begin + rows + "}", "m.json");
  };
  const std::string node =
      R"({"name": "node", "ranks": 8, "bytes_per_second": 3e11, "latency_seconds": 2e-6})";
  const MachineRates r =
      read("[" + node + R"(, {"name": "cluster", "ranks": 80, "bytes_per_second": 12.5e9}])");
  ASSERT_EQ(r.network.size(), 2u);
  EXPECT_EQ(r.network[0].name, "node");
  EXPECT_EQ(r.network[0].ranks, 8u);
  EXPECT_EQ(r.network[0].bytes_per_second, 3e11);
  EXPECT_EQ(r.network[0].latency_seconds, 2e-6);
  EXPECT_EQ(r.network[1].ranks, 80u);
  EXPECT_EQ(r.network[1].latency_seconds, 0);
  for (const std::string& bad :
       {std::string("{}"), "[" + node + ", " + node + "]",
        "[" + node + R"(, {"name": "node", "ranks": 80, "bytes_per_second": 1}])",
        "[" + node + R"(, {"name": "cluster", "ranks": 81, "bytes_per_second": 1}])",
        "[" + node + R"(, {"name": "cluster", "ranks": 4, "bytes_per_second": 1}])",
        "[" + node + R"(, {"name": "cluster", "ranks": 80}])",
        "[" + node + R"(, {"name": "cluster", "ranks": 80.5, "bytes_per_second": 1}])",
        "[" + node + R"(, {"name": "cluster", "ranks": -80, "bytes_per_second": 1}])",
        "[" + node + R"(, {"name": "cluster", "bytes_per_second": 1}])",
        "[" + node + R"(, {"name": "cluster", "ranks": 80, "bytes_per_second": 1, "speed": 2}])",
        std::string(R"([{"name": "node", "ranks": 1, "bytes_per_second": 1}])")})
    EXPECT_THROW(read(bad), Error) << bad;
}

}  // namespace
}  // namespace sluice
