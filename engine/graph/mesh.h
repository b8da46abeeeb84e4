// The mesh of ranks: which ranks of a run have rows or parameters of their own, and which have the same ones.
//
// Ranks are a grid with axes. Along each axis a rank has a place, and ranks differ in what the axis divides:
// rows of a batch, parameters, or both. Places along the last axis vary fastest, so neighbouring ranks differ
// along it. A mesh is made once, from the options of a run. To learn which rank has a row, a sum or a part
// of a parameter, code asks the mesh. It does not compute this from the rank's number.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace sluice {

enum class Axis : uint8_t { data, expert };

struct AxisRule {
  Axis axis;
  const char* ranks;  // the name of a process group whose ranks differ along this axis alone
  bool divides_rows;  // ranks that differ along this axis have different rows
};
inline constexpr std::array kAxes{
    AxisRule{Axis::data, "data", true},
    // Experts are divided. Each rank has rows of its own, and sends them to the experts of other ranks too.
    AxisRule{Axis::expert, "experts", true},
};

// Some of the axes.
class Axes {
 public:
  constexpr Axes() = default;
  constexpr Axes(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= bit(axis);
  }
  constexpr bool has(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool none() const { return bits_ == 0; }
  constexpr Axes operator|(Axes other) const {
    other.bits_ |= bits_;
    return other;
  }
  // The other axes.
  constexpr Axes operator~() const {
    Axes others;
    for (const AxisRule& rule : kAxes)
      if (!has(rule.axis)) others.bits_ |= bit(rule.axis);
    return others;
  }
  bool operator==(const Axes&) const = default;

 private:
  static constexpr uint8_t bit(Axis axis) { return static_cast<uint8_t>(1u << static_cast<unsigned>(axis)); }
  uint8_t bits_ = 0;
};

// Ranks that communicate: `count` of them, `stride` apart. The ranks of a run are divided into groups of this
// form; the first begins with rank 0.
struct ProcessGroup {
  std::string name;
  uint32_t count = 1, stride = 1;

  // A rank's place in its group.
  uint32_t place_of(uint32_t rank) const { return rank / stride % count; }
  // The rank at a place of the group that has `rank`.
  uint32_t rank_at(uint32_t place, uint32_t rank) const { return rank + (place - place_of(rank)) * stride; }
  // Whether both groups have the same ranks; names do not count.
  bool is_same_as(const ProcessGroup& other) const { return count == other.count && stride == other.stride; }
};

class Mesh {
 public:
  // By axis, each at least 1. The last sizes may be left out; they are then 1.
  struct Sizes : std::array<uint32_t, kAxes.size()> {
    Sizes() { fill(1); }
    Sizes(std::initializer_list<uint32_t> first);
  };

  Mesh() = default;  // a rank alone
  // Ranks are on nodes of `node_ranks` ranks each; the last node may have fewer.
  Mesh(const Sizes& sizes, uint32_t node_ranks);

  uint32_t ranks() const { return product_of(~Axes{}); }
  // Ranks of a node; all, where there is one node.
  uint32_t node_ranks() const { return node_ranks_; }
  uint32_t size(Axis axis) const { return sizes_[static_cast<size_t>(axis)]; }

  // The ranks that differ along these axes alone. Between two of these axes there may be no other axis with
  // several places. The group's name is that of the axes: "data", "data_experts", or "all".
  ProcessGroup group_of(Axes axes) const;

  // data_rank(): a rank's place among the ranks that have other rows of a batch. data_ranks(): the number of
  // these places. counts_rows(): whether the rank is the first of those that have the same rows. These ranks
  // compute the same, so only the first one's results count.
  uint32_t data_ranks() const;
  uint32_t data_rank(uint32_t rank) const;
  bool counts_rows(uint32_t rank) const;

  // If a group is on several nodes, with the same number of its ranks (two or more) on each: in_node is its
  // ranks on one node, and across the ranks that have the same place on all these nodes. Else in_node is the
  // whole group, and across a rank alone.
  struct Levels {
    ProcessGroup in_node, across;
  };
  Levels levels_of(const ProcessGroup& group) const;
  // As levels_of(), with node groups in place of nodes. A node group is a run of ranks of one node, and a
  // node may have several. Its size is a power of two, so that it is a subtree of a sum over all ranks
  // (gpu/ranks/reduce.h).
  Levels summing_levels_of(const ProcessGroup& group) const;
  // Ranks of a node group; all, where there is one node.
  uint32_t node_group_ranks() const;

 private:
  uint32_t product_of(Axes axes) const;
  static Levels divided(const ProcessGroup& group, uint32_t ranks);  // into runs of `ranks` ranks of the mesh

  Sizes sizes_;
  uint32_t node_ranks_ = 1;
};

}  // namespace sluice
