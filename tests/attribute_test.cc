// Idle time and who is charged with it, worked out by hand on machines of a flop and a byte a second.
#include "engine/attribute.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

MachineRates unit_rates() {
  MachineRates r;
  r.name = "one";
  r.precision = DType::f32;
  for (const char* lane : {"a", "b"}) r.lanes.push_back({lane, "", 1, 1, 1, 1});
  r.links = {{"host", "device", 1}, {"device", "host", 1}, {"nvme", "host", 1}};
  return r;
}

// Lane a is where segments run, b another for tasks; copies of x(n), n bytes, go over the links.
constexpr const char* kTables = R"(sluice program 1
tier device capacity 1000 alignment 1
tier host capacity 1000 alignment 1
tier nvme capacity 1000 alignment 1 file
lane a
lane b
lane down
lane up
lane read overlapping
link host device down alignment 1
link device host up alignment 1
link nvme host read alignment 1
unit optimize b host
unit forward a device
buffer x1 weights home host pieces 1
buffer x2 weights home host pieces 2
buffer x4 state home host pieces 4
arena 1000 1000 1000
)";
enum Lanes : LaneId { kA, kB, kDown, kUp, kRead };

// One body, which may follow itself. Task t takes `work`[t] seconds.
Program program(const std::vector<int>& work, const std::string& instructions) {
  std::string text = std::string(kTables) + "body step clean -> clean after step\ntasks step\n";
  for (size_t t = 0; t < work.size(); ++t)
    text += std::to_string(t) + " forward " + std::to_string(t) + "/0 flops " + std::to_string(work[t]) +
            " bytes 0\n";
  return program_from_text(text + "instructions step\n" + instructions);
}

struct Simulated {
  Simulated(Program p, size_t bodies, const MachineRates& rates = unit_rates())
      : program(std::move(p)), sequence(bodies, 0), result(simulate(program, rates, sequence, true)),
        history{program, sequence, result.times} {}
  Simulated(const Simulated&) = delete;
  Program program;
  std::vector<BodyId> sequence;
  SimulationResult result;
  History history;
};

// "1.0 [2, 4] on 3": instruction 0 of position 1 was executed from 2 to 4 on lane 3.
std::string words(const std::vector<Charge>& charges) {
  std::string out;
  for (const Charge& c : charges) {
    char row[80];
    std::snprintf(row, sizeof row, "%s%zu.%u [%g, %g] on %d%s", out.empty() ? "" : "; ", c.position,
                  c.instruction, c.begin, c.end, c.lane, c.executed ? "" : " not executed");
    out += row;
  }
  return out;
}

TEST(Attribute, FollowsWaitsAcrossLanes) {
  // read 0-4, down waits for it 4-6, a waits for that 6-9; b 0-5 beside, up waits for a and b 9-10.
  const Simulated s(program({3, 5}, "0 read:1 copy x4@0 nvme+0 -> host+0\n"
                                    "1 down:1 copy x2@0 host+0 -> device+0 after read:1\n"
                                    "2 b:1 run 1\n3 a:1 run 0 after down:1\n"
                                    "4 up:1 copy x1@0 device+0 -> host+0 after a:1 after b:1\n"),
                    1);
  const std::vector<Idle> idles = idle_intervals(s.history, compute_lane(s.program.machine));
  ASSERT_EQ(idles.size(), 2u);
  EXPECT_EQ(idles[0].instruction, 3u);
  EXPECT_EQ(words(idles[0].charges), "0.0 [0, 4] on 4; 0.1 [4, 6] on 2");
  EXPECT_EQ(idles[1].instruction, kNoInstruction);
  EXPECT_EQ(words(idles[1].charges), "0.4 [9, 10] on 3");
  EXPECT_EQ(words(critical_path(s.history)),
            "0.0 [0, 4] on 4; 0.1 [4, 6] on 2; 0.3 [6, 9] on 0; 0.4 [9, 10] on 3");
}

}  // namespace
}  // namespace sluice
