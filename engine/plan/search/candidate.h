// A candidate: one way to use the memory, as the search varies it. It says how much of each tier is left to
// staging, in which order classes of buffers claim homes in the rest, how much of a class may live in the
// lowest memory tier, by how much work a fetch leads its use, what each layer keeps for its backward, and
// which single buffers live elsewhere. Homes follow from it.
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

// By class (weights, gradients, state): its turn to claim homes, 0 first. Equal turns go in order of layers.
using ClassTurns = std::array<uint8_t, 3>;
// A model that only generates has no state: its caches claim in the turn of state. If a model that trains
// writes samples, the caches of the samples claim before all classes, and only in the lowest memory tier:
// they are small, and would be written to a drive for every token.
constexpr std::array<BufferClass, 3> kHomeClasses{BufferClass::weights, BufferClass::gradients,
                                                  BufferClass::state};
constexpr std::array<ClassTurns, 5> kClassOrders{{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}, {0, 0, 0}}};
constexpr uint32_t kWeightsFirst = 0, kStateFirst = 1, kByLayer = 4;

// What is left to staging in the lowest memory tier is counted in tenths of what the largest task needs.
// kAllOfIt: the whole tier.
constexpr uint32_t kAllOfIt = UINT32_MAX;
// In higher tiers, what the largest task needs may be a small part of the capacity. There, what is left to
// staging grows by the same factor from level to level. Level 0 is a little more than the largest task needs,
// level kUpperLevels the whole capacity.
constexpr uint32_t kUpperLevels = 12;
constexpr uint32_t kAllEighths = 8;

// The levels of Recompute that layers may have are in order, the one that keeps least first. All layers are
// raised from level to level, one layer after the other. So layers have at most two levels at a time, and
// layers of one level are neighbours.
struct KeptLayers {
  uint32_t raised = 0;  // raises of one layer by one level, over all layers
  bool first = false;   // the first layers are raised before the last, else after them
  auto operator<=>(const KeptLayers&) const = default;
};
// `levels` as above. Returns the level of layer `layer` of `layers`.
Recompute level_of(const KeptLayers& kept, const std::vector<Recompute>& levels, uint32_t layer,
                   uint32_t layers);

// All layers at one level: what they keep for backward, and the seconds of their forwards and backwards.
struct LevelCost {
  Recompute level = Recompute::all;
  uint64_t bytes = 0;
  double seconds = 0;
};
// The levels on the lower convex hull, from least bytes to most: no mixture of two others has as few bytes
// and seconds as one of these.
std::vector<Recompute> worthwhile(std::vector<LevelCost> levels);

// Groups are taken in runs of kBackwardParts. A candidate updates equally many groups of each run in
// backward.
constexpr uint32_t kBackwardParts = 8;

struct Candidate {
  KeptLayers kept;                 // what layers keep for backward
  uint32_t working = 20;           // tenths left in the lowest memory tier
  uint32_t upper = kUpperLevels;   // level of what is left in higher tiers
  uint32_t order = kWeightsFirst;  // of kClassOrders
  // By class: how many eighths of the class may live in the lowest memory tier.
  std::array<uint32_t, 3> eighths{kAllEighths, kAllEighths, kAllEighths};
  uint32_t lead = 32;     // in costs of tasks
  uint32_t backward = 0;  // groups that are updated in backward, of kBackwardParts
  uint32_t waves = 1;     // of a step
  std::vector<std::pair<BufferId, TierId>> moved = {};  // sorted; homes of buffers, whatever the rest says
  auto operator<=>(const Candidate&) const = default;
};

// Whether the buffer is of a class that a candidate gives a home.
bool has_choice_of_home(const Buffer& buffer);

// Whether the buffer claims homes with class `kind` of kHomeClasses. `samples`: caches are those of samples.
bool claims_with(const Buffer& buffer, BufferClass kind, bool samples);

// Replaces an earlier move of the same buffer. Does not check whether the buffer fits.
Candidate with_moved(Candidate candidate, BufferId buffer, TierId tier);

// By group, whether it is updated in backward. The chosen groups are spread evenly over layers. If updates
// wait for the norm of all gradients, the first layer's groups are left out: soon after their gradients are
// complete, the norm is known.
std::vector<bool> updated_in_backward(const Candidate& candidate, const Model& model, bool waits_for_norm);

// The class that claims homes before the others; none: several classes claim first.
std::optional<BufferClass> first_class(const Candidate& candidate);

// By buffer, the home of each permanent one. From the top memory tier down, classes claim homes in the
// candidate's order, as long as what is left to staging stays free. Then single buffers move, also where
// nothing is free.
std::vector<TierId> homes_of(const Candidate& candidate, const Program& program,
                             const std::vector<uint64_t>& capacities, const Least& least);

// The rule behind homes_of(), to be told in words.
HomeRule home_rule(const Candidate& candidate, const Program& program,
                   const std::vector<uint64_t>& capacities, const Least& least);

// The values that the search may give to a candidate.
struct CandidateChoices {
  std::vector<uint32_t> workings, uppers, orders;
  bool free = false;  // all three may vary; else only levels, leads, waves and updates in backward do
};
CandidateChoices choices_for(Placement placement);

// The values of Candidate::waves, ascending: for each power of two, the largest number up to it that divides
// the number of a step's micro-batches. Waves of more than kWaveTasksMax are left out. So are long waves,
// unless the request has long_waves or no others remain.
std::vector<uint32_t> wave_choices(const PlanRequest& request, const Model& model);

// The values of Candidate::backward. The first candidate has the first of these values.
std::vector<uint32_t> backward_choices(const PlanRequest& request, DType precision);

}  // namespace sluice
