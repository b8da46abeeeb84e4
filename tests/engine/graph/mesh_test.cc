// The mesh of ranks: process groups along axes, what counts once, and nodes.
#include "engine/graph/mesh.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <vector>

namespace sluice {
namespace {

using Pair = std::pair<uint32_t, uint32_t>;  // count, stride

Pair of(const ProcessGroup& group) { return {group.count, group.stride}; }

TEST(Mesh, ARankAloneIsAMesh) {
  const Mesh alone;
  EXPECT_EQ(alone.ranks(), 1u);
  EXPECT_EQ(alone.data_ranks(), 1u);
  EXPECT_EQ(alone.data_rank(0), 0u);
  EXPECT_TRUE(alone.counts_rows(0));
  EXPECT_EQ(of(alone.group_of({})), (Pair{1, 1}));
  EXPECT_EQ(of(alone.group_of({Axis::data, Axis::expert})), (Pair{1, 1}));
}

// Three times four ranks: experts are divided over neighbours.
TEST(Mesh, GroupsDifferAlongTheirAxes) {
  const Mesh mesh({3, 4}, 12);
  EXPECT_EQ(mesh.ranks(), 12u);
  EXPECT_EQ(of(mesh.group_of({Axis::expert})), (Pair{4, 1}));
  EXPECT_EQ(of(mesh.group_of({Axis::data})), (Pair{3, 4}));
  EXPECT_EQ(of(mesh.group_of({Axis::data, Axis::expert})), (Pair{12, 1}));
  EXPECT_EQ(mesh.group_of({}).count, 1u);
  EXPECT_EQ(mesh.group_of({Axis::expert}).name, "experts");
  EXPECT_EQ(mesh.group_of(~Axes{}).name, "all");
  EXPECT_TRUE(~Axes{Axis::expert} == Axes{Axis::data});
}

TEST(Mesh, AxesWithoutASizeHaveOnePlace) {
  const Mesh mesh({3}, 3);
  EXPECT_EQ(mesh.ranks(), 3u);
  EXPECT_EQ(mesh.size(Axis::expert), 1u);
  EXPECT_EQ(Mesh().ranks(), 1u);
  EXPECT_THROW(Mesh({1, 1, 1, 1, 1, 1}, 1), std::invalid_argument);
}

// Every rank is in one group of each kind, and finds the other ranks of the group by place.
TEST(Mesh, AGroupDividesAllRanks) {
  const Mesh mesh({3, 4}, 12);
  for (const Axes axes : {Axes{}, Axes{Axis::data}, Axes{Axis::expert}, Axes{Axis::data, Axis::expert}}) {
    const ProcessGroup group = mesh.group_of(axes);
    for (uint32_t rank = 0; rank < mesh.ranks(); ++rank) {
      EXPECT_EQ(group.rank_at(group.place_of(rank), rank), rank);
      std::set<uint32_t> others;
      for (uint32_t place = 0; place < group.count; ++place) {
        const uint32_t other = group.rank_at(place, rank);
        EXPECT_EQ(group.place_of(other), place);
        EXPECT_LT(other, mesh.ranks());
        others.insert(other);
      }
      EXPECT_EQ(others.size(), group.count);
    }
  }
}

// Along both axes ranks have other rows, so each is a data rank of its own.
TEST(Mesh, EveryRankHasItsRows) {
  const Mesh mesh({3, 4}, 12);
  EXPECT_EQ(mesh.data_ranks(), 12u);
  for (uint32_t rank = 0; rank < 12; ++rank) {
    EXPECT_EQ(mesh.data_rank(rank), rank);
    EXPECT_TRUE(mesh.counts_rows(rank));
  }
}

TEST(Mesh, AGroupHasALevelForNodesThatAllHaveEquallyManyOfIt) {
  struct Row {
    uint32_t node, in_node, across;
  };
  for (const auto& [node, in_node, across] :
       std::vector<Row>{{1, 8, 1}, {2, 2, 4}, {3, 8, 1}, {4, 4, 2}, {6, 8, 1}, {8, 8, 1}, {16, 8, 1}}) {
    const Mesh mesh({2, 8}, node);
    const Mesh::Levels levels = mesh.levels_of(mesh.group_of({Axis::expert}));
    EXPECT_EQ(of(levels.in_node), (Pair{in_node, 1})) << node;
    EXPECT_EQ(levels.across.count, across) << node;
    EXPECT_EQ(levels.across.stride, across > 1 ? node : 8) << node;
  }
}

// The ranks of the group are four apart, so a node of eight ranks has two of them.
TEST(Mesh, LevelsOfRanksThatAreApart) {
  const Mesh mesh({8, 4}, 8);
  const Mesh::Levels levels = mesh.levels_of(mesh.group_of({Axis::data}));
  EXPECT_EQ(of(levels.in_node), (Pair{2, 4}));
  EXPECT_EQ(of(levels.across), (Pair{4, 8}));
  EXPECT_EQ(mesh.levels_of(Mesh({8, 4}, 4).group_of({Axis::data})).across.count, 4u);
  EXPECT_EQ(Mesh({8, 4}, 4).levels_of(mesh.group_of({Axis::data})).across.count, 1u);
}

// A node of six ranks is three node groups of two, since two is the largest power of two that divides six.
TEST(Mesh, NodeGroupsAreRunsOfAPowerOfTwo) {
  EXPECT_EQ(Mesh({12, 1}, 6).node_group_ranks(), 2u);
  EXPECT_EQ(Mesh({12, 1}, 4).node_group_ranks(), 4u);
  EXPECT_EQ(Mesh({12, 1}, 12).node_group_ranks(), 12u);  // one node
  EXPECT_EQ(Mesh({12, 1}, 99).node_ranks(), 12u);
  EXPECT_EQ(Mesh({6, 1}, 5).node_group_ranks(), 1u);  // the last node has one rank
  const Mesh mesh({12, 1}, 6);
  const Mesh::Levels levels = mesh.summing_levels_of(mesh.group_of(~Axes{}));
  EXPECT_EQ(of(levels.in_node), (Pair{2, 1}));
  EXPECT_EQ(of(levels.across), (Pair{6, 2}));
}

TEST(Mesh, RefusesAxesAndNodesWithoutRanks) {
  EXPECT_THROW(Mesh({0, 1}, 1), std::invalid_argument);
  EXPECT_THROW(Mesh({2, 1}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace sluice
