// Inside of lower: where a reading has fewer places than a layer has experts (Pick), and the banks that hold
// these experts' weights. For the files of lower only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/program/program.h"

namespace sluice {

// Consecutive segment uses, one for each of a layer's experts in ascending order.
struct ExpertUses {
  uint32_t first = 0, count = 0;  // segment uses, in forward order
  uint32_t places = 0;            // experts that the rows can need at most; fewer than `count`
  uint32_t routing = 0;           // activation
  std::vector<uint32_t> banks;    // by slot
};

struct ExpertPicks {
  std::vector<ExpertUses> uses;
  std::vector<std::vector<uint32_t>> banks;  // groups of equal size, by expert
};

// Where a home in any tier may begin: a multiple of so many bytes.
uint64_t home_alignment(const Machine& machine);

// A part of a bank takes so many bytes: its elements, up to where a home in any tier may begin.
uint64_t part_bytes(uint64_t elements, DType precision, uint64_t home_alignment);

// Those of a model that only generates. Experts that are trained, or that share a group, are not picked, nor
// are those so small that the parts of all places are more than all experts without what aligns them.
ExpertPicks find_picks(const Model& model, uint64_t home_alignment);

}  // namespace sluice
