// Which ranks share a parameter group's training state, and which parts of this state they share.
//
// Every shard is divided into parts. Each part has one rank as its owner. Whole gradients are rounded and
// exchanged; each owner sums its part. The stage of ZeRO (Rajbhandari et al. 2020, "ZeRO: memory
// optimizations toward training trillion parameter models") says what else is shared:
//   0     nothing: the sums are gathered, and every rank updates everything
//   1, 2  optimizer state: the owner updates its part, then updated weights are gathered. Every rank keeps
//         whole weights. The stages differ only in when a rank may drop its whole gradient; here, both drop
//         it after the exchange
//   3     weights too: they are gathered for all forwards of a group in a body, and again for all its
//         backwards
//
// With several node groups, the ranks of a node group first exchange their gradients and sum them in fp32.
// Then the ranks of each cross-node group exchange these sums, add them and round once. Gathers go the other
// way. So every byte enters and leaves a node group once, however many ranks it has. Sums over ranks are
// binary trees, in which a node group of 2^n ranks is a subtree (gpu/ranks/reduce.h), so node groups do not
// change bits.
#pragma once

#include <cstdint>

#include "engine/base/pack.h"
#include "engine/graph/mesh.h"

namespace sluice {

struct StateSharing {
  ProcessGroup all{"all"};
  // With several node groups: the ranks of this rank's node group, and the ranks at the same place in each
  // node group. With one node group: `all`, and this rank alone.
  ProcessGroup in_node_group{"block"}, across_node_groups{"across"};
  int zero_stage = 3;
  // Stage 3: weights are shared, and gathered for forwards and backwards, within node groups only
  // (Zhang et al. 2022, "MiCS: near-linear scaling for training gigantic model on public cloud").
  bool weights_in_node_group = false;

  uint32_t ranks() const { return all.count; }
  bool has_node_groups() const { return across_node_groups.count > 1; }
  bool shares_state() const { return ranks() > 1 && zero_stage >= 1; }
  bool shares_weights() const { return ranks() > 1 && zero_stage == 3; }
  // Whether the rank saves state. If all ranks have the same state, only the first does.
  bool is_owner(uint32_t rank) const { return shares_state() || all.place_of(rank) == 0; }
  // Which part of a shard is the rank's. The parts of a cross-node group follow each other.
  uint32_t part_of(uint32_t rank) const {
    return in_node_group.place_of(rank) * across_node_groups.count + across_node_groups.place_of(rank);
  }
  // A factor's length with padding, so that every rank has equally many whole pages.
  uint64_t factor_elements(uint64_t used) const { return round_up(used, uint64_t{1024} * ranks()); }
};

}  // namespace sluice
