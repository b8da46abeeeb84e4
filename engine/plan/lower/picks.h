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

// In any tier, a home may begin at multiples of this many bytes.
uint64_t home_alignment(const Machine& machine);

// Bytes of a part of a bank that has this many elements, padded to a multiple of `home_alignment`.
uint64_t part_bytes(uint64_t elements, DType precision, uint64_t home_alignment);

// Finds picks only if the model only generates. Experts are not picked if they are trained, if they share a
// group, or if they are so small that the padded parts of all places take as much as all experts without
// padding.
ExpertPicks find_picks(const Model& model, uint64_t home_alignment);

}  // namespace sluice
