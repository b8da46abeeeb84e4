// Which ranks share a parameter group's training state, and what of it.
//
// ZeRO's stage (Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter
// models") says what is shared:
//   0     nothing: summed gradients are gathered, and every rank updates everything
//   1, 2  optimizer state: the owner updates its part, then weights are gathered; every rank has them whole.
//         Stages 1 and 2 differ in when a rank drops the whole gradient; here it does so after the exchange
//   3     weights too: they are gathered for the forwards that first use a group, and for its backwards
// lower.h says what node groups are for.
#pragma once

#include <cstdint>

#include "engine/base/pack.h"
#include "engine/program/program.h"

namespace sluice {

struct StateSharing {
  uint32_t ranks = 1, stride = 1;  // the process group: so many ranks, so far apart
  uint32_t node_group_ranks = 1;   // ranks of a node group: a power of two, or `ranks`: only one group
  int zero_stage = 3;
  bool weights_in_node_group = false;  // stage 3: weights are shared within a node group only

  bool has_node_groups() const { return node_group_ranks < ranks; }
  bool shares_state() const { return ranks > 1 && zero_stage >= 1; }
  bool shares_weights() const { return ranks > 1 && zero_stage == 3; }
  // Whether a rank of the run is in the process group of rank 0.
  bool is_with_first(uint32_t rank) const { return rank % stride == 0 && rank / stride < ranks; }
  // Which part of a shard is the rank's. The parts of a cross-node group follow each other.
  uint32_t part_of(uint32_t rank) const {
    const uint32_t place = rank / stride % ranks;
    return place % node_group_ranks * (ranks / node_group_ranks) + place / node_group_ranks;
  }
  // A factor's length with padding: equally many whole pages for every rank.
  uint64_t factor_elements(uint64_t used) const { return round_up(used, uint64_t{1024} * ranks); }

  bool operator==(const StateSharing&) const = default;
};

// Indices into Program::processes of the process groups that a sharing communicates in.
struct SharingProcesses {
  uint8_t all = 0, in_node_group = 0, across_node_groups = 0;
};

}  // namespace sluice
