// One way to use the memory, as the search varies it: how much of each tier is left to staging, which classes
// of buffers claim homes in the rest and how much of it each of them may have, by how much work a fetch
// leads its use, and which layers keep their saved tensors; at last single buffers that live elsewhere. Homes
// follow from it. For the planner, any thread.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/plan/choices.h"
#include "engine/plan/plan.h"
#include "engine/plan/search/least.h"
#include "engine/program/program.h"

namespace sluice {

// By class: weights, gradients, state. The lower claims homes first; equals do in order of layers.
using ClassRanks = std::array<uint8_t, 3>;
constexpr std::array<BufferClass, 3> kHomeClasses{BufferClass::weights, BufferClass::gradients,
                                                  BufferClass::state};
constexpr std::array<ClassRanks, 5> kClassOrders{{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}, {0, 0, 0}}};
constexpr uint32_t kWeightsFirst = 0, kStateFirst = 1, kByLayer = 4;

// In the lowest memory tier, in tenths of what the largest task needs.
constexpr uint32_t kAllOfIt = UINT32_MAX;
// Above it that may be a small part of the capacity, so there are levels: from the least, a little more of
// which makes room to move, to all of it in equal ratios.
constexpr uint32_t kUpperLevels = 6;
constexpr uint32_t kAllEighths = 8;

struct KeptLayers {
  uint32_t count = 0;
  bool first = false;  // the first ones, else the last
  auto operator<=>(const KeptLayers&) const = default;
};

struct Candidate {
  KeptLayers kept;                 // whose saved tensors are kept
  uint32_t working = 20;           // tenths left in the lowest memory tier
  uint32_t upper = kUpperLevels;   // level of what is left above it
  uint32_t order = kWeightsFirst;  // of kClassOrders
  // Of each class that may live in the lowest memory tier.
  std::array<uint32_t, 3> eighths{kAllEighths, kAllEighths, kAllEighths};
  uint32_t lead = 32;                                   // in costs of tasks
  std::vector<std::pair<BufferId, TierId>> moved = {};  // sorted; homes of buffers, whatever the rest says
  auto operator<=>(const Candidate&) const = default;
};

// Whether it is of a class that a candidate gives a home.
bool has_choice_of_home(const Buffer& buffer);

// Instead of an earlier move of the same buffer. Whether it fits is not asked.
Candidate with_moved(Candidate candidate, BufferId buffer, TierId tier);

// That claims homes before the others; none where classes claim alike.
std::optional<BufferClass> first_class(const Candidate& candidate);

// By buffer, the home of each permanent one. From the top memory tier down, classes claim homes in the
// candidate's order, as long as what is left to staging stays free; then single buffers move, whatever is
// free.
std::vector<TierId> homes_of(const Candidate& candidate, const Program& program,
                             const std::vector<uint64_t>& capacities, const Least& least);

// The same as words may tell it.
HomeRule home_rule(const Candidate& candidate, const Program& program,
                   const std::vector<uint64_t>& capacities, const Least& least);

// The values that the search may give to a candidate.
struct CandidateChoices {
  std::vector<uint32_t> workings, uppers, orders;
  bool free = false;  // all may vary; else the first that fits is it
};
CandidateChoices choices_for(Placement placement);

}  // namespace sluice
