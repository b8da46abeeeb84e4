// How rows come to experts and back: the layout of what OpKind::route writes, and of the rows of an expert.
// Pure functions, any thread.
//
// Routing is a vector of i32 in three parts:
//   begins   [E+1]  the entries of expert e are [begins[e], begins[e+1])
//   entries  [R*K]  by expert, then by row: row * K + the choice's number within the row. Entries behind
//                   begins[E] are -1, one for each choice that no expert takes (Routing::drops)
//   experts  [R*K]  by row and choice: the expert, whether it takes the row or not. A row's choices are in
//                   descending order of their scores; of equal scores, the lower expert comes first, and NaN
//                   is the largest
//
// An op of one expert (OpRule::of_an_expert) has tensors of M rows: as many as the expert can take at most
// (R, or fewer by its capacity), rounded up to a multiple of kExpertTile. Row i is the expert's entry
// begins[e] + i. Rows behind the last one are zeros up to a multiple of kExpertTile, in what the op writes
// and in what it reads; rows behind these zeros are neither written nor read. A row of a product does not
// depend on how many rows there are. Where a gradient covers all rows or choices, an op adds to the rows or
// choices of its expert. Without an addend, it also writes zeros to all others.
#pragma once

#include <cmath>

#include "engine/graph/op.h"

namespace sluice {

constexpr int64_t kExpertTile = 64;

constexpr int64_t expert_rows_most(int64_t rows) {
  return (rows + kExpertTile - 1) / kExpertTile * kExpertTile;
}

// How many of a group's choices an expert takes at most: ceil(factor * K * rows of a group / E), but at least
// least_capacity, and at most the rows of a group.
int64_t expert_capacity(const Routing& routing);

// How many of `rows` rows one expert takes at most.
int64_t rows_of_expert_most(const Routing& routing, int64_t rows);

struct RoutingLayout {
  int64_t rows, experts, chosen;

  int64_t entries() const { return experts + 1; }               // offset
  int64_t experts_of() const { return entries() + choices(); }  // offset
  int64_t choices() const { return rows * chosen; }
  int64_t size() const { return experts_of() + choices(); }
};

// The layout of a routing of `elements` elements.
inline RoutingLayout routing_layout(const Routing& routing, int64_t elements) {
  return {(elements - routing.experts - 1) / (2 * routing.chosen), routing.experts, routing.chosen};
}

// The layout of the routing of an op of an expert, from its shapes.
inline RoutingLayout routing_layout(const OpShapes& s) {
  return routing_layout(s.attributes.routing, s.inputs[0][0]);
}

// Returns, by choice, whether its expert takes it. `experts`: by row and choice. `tried`: by choice, whether
// it is tried at all; empty: all choices are tried.
std::vector<bool> taken_choices(const Routing& routing, std::span<const int32_t> experts,
                                const std::vector<bool>& tried = {});

// Returns a routing. `experts`: by row and choice. `taken`: as taken_choices() returns it; empty: every
// choice has an entry.
std::vector<int32_t> make_routing(const RoutingLayout& layout, std::span<const int32_t> experts,
                                  const std::vector<bool>& taken = {});

// The numbers that router_statistics writes: OpKind says which.
constexpr int64_t router_statistics_count(int64_t experts) { return 2 * experts + 2; }

// How an all_to_allv moves rows between N ranks on nodes of L each. `whole`: part i of the rows goes to rank
// i. `in_nodes`: each rank collects, from the ranks of its own node, the rows for the ranks that have its own
// place on their nodes. Block n, at part n * L, has the rows for node n, one after the other. `across`: ranks
// that have the same place on their nodes exchange these blocks.
enum class TravelStep : uint8_t { whole, in_nodes, across };
// The step that an op takes: `whole` if all ranks that have experts carry it out together, else `in_nodes` or
// `across`, by the level (Mesh::Levels) of the ranks that carry it out.
TravelStep travel_step(const OpAttributes& attributes);
// L; 1 in `whole`.
int64_t travel_node_ranks(const OpAttributes& attributes);

// Bytes of workspace of an op between ranks: blocks of rows.
uint64_t workspace_between_ranks(const OpShapes& s);

// The rows of an expert if all experts have equally many.
double expected_rows(const OpShapes& s);
// The rows that predictions assume an expert to have, never more than it can take. A number below one says
// how often it has a row.
double assumed_rows(const OpShapes& s);
// The rows that a product multiplies: it computes whole tiles.
inline double multiplied_rows(const OpShapes& s) {
  constexpr auto kRows = static_cast<double>(kExpertTile);
  const double rows = assumed_rows(s);
  return kRows * (rows < 1 ? rows : std::ceil(rows / kRows));
}

}  // namespace sluice
