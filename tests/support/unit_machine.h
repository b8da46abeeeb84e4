// Programs as text, for a machine of one flop and one byte a second, so that their times can be worked out
// by hand.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/program/program.h"
#include "engine/rates/machine_rates.h"

namespace sluice::testing {

// One flop and one byte a second on every lane and link. Nothing is shared.
inline MachineRates unit_rates() {
  MachineRates r;
  r.name = "one";
  r.precision = DType::f32;
  for (const char* lane : {"a", "b", "c", "slow"}) r.lanes.push_back({lane, "", 1, 1, 1, 1});
  r.links = {{"host", "device", 1}, {"device", "host", 1}, {"nvme", "host", 1}, {"host", "nvme", 1}};
  return r;
}

// Lanes a, b, c and slow run tasks. Copies of xN, a buffer of N bytes, go over the links. Waits are what the
// test writes: the simulator does not check that they suffice.
inline constexpr const char* kUnitTables = R"(sluice program 1
tier device capacity 1000 alignment 1
tier host capacity 1000 alignment 1
tier nvme capacity 1000 alignment 1 file
lane a
lane b
lane c
lane slow
lane down
lane up
lane read overlapping
lane write overlapping
link host device down alignment 1
link device host up alignment 1
link nvme host read alignment 1
link host nvme write alignment 1
unit forward a device
buffer x1 state home host pieces 1
buffer x2 state home host pieces 2
buffer x4 state home host pieces 4
buffer x8 state home host pieces 8
arena 1000 1000 1000
)";

struct BodyText {
  std::string name, tasks, instructions, predecessors;
};
inline Program program(const std::vector<BodyText>& steps) {
  std::string text = kUnitTables;
  for (const BodyText& s : steps) {
    text += "body " + s.name + " clean -> clean";
    text += s.predecessors.empty() ? "\n" : " after " + s.predecessors + "\n";
  }
  for (const BodyText& s : steps)
    text += "tasks " + s.name + "\n" + s.tasks + "instructions " + s.name + "\n" + s.instructions;
  return program_from_text(text);
}
inline Program program(const std::string& tasks, const std::string& instructions) {
  return program({{"step", tasks, instructions, "step"}});
}
// Rows "0 forward ... flops F bytes B" from pairs (flops, bytes).
inline std::string tasks(const std::vector<std::pair<double, int>>& work) {
  std::string text;
  for (size_t t = 0; t < work.size(); ++t)
    text += std::to_string(t) + " forward 0/0 flops " + std::to_string(work[t].first) + " bytes " +
            std::to_string(work[t].second) + "\n";
  return text;
}

inline LaneId lane(const Program& p, const std::string& name) {
  for (LaneId l = 0; l < p.machine.lanes.size(); ++l)
    if (p.machine.lanes[l].name == name) return l;
  return 0;
}

}  // namespace sluice::testing
