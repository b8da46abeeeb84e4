#include "engine/graph/mesh.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace sluice {

namespace {

constexpr bool in_order() {
  for (size_t i = 0; i < kAxes.size(); ++i)
    if (static_cast<size_t>(kAxes[i].axis) != i) return false;
  return true;
}
static_assert(in_order(), "the rows of kAxes stand in the order of Axis");

constexpr Axes kRowAxes = [] {
  Axes axes;
  for (const AxisRule& rule : kAxes)
    if (rule.divides_rows) axes = axes | Axes{rule.axis};
  return axes;
}();

}  // namespace

Mesh::Sizes::Sizes(std::initializer_list<uint32_t> first) : Sizes() {
  if (first.size() > size()) throw std::invalid_argument("a mesh has more sizes than axes");
  std::ranges::copy(first, begin());
}

Mesh::Mesh(const Sizes& sizes, uint32_t node_ranks)
    : sizes_(sizes), node_ranks_(std::min(node_ranks, ranks())) {
  for (const uint32_t size : sizes_)
    if (size == 0) throw std::invalid_argument("an axis of a mesh has no ranks");
  if (node_ranks_ == 0) throw std::invalid_argument("a node has no ranks");
}

uint32_t Mesh::product_of(Axes axes) const {
  uint32_t product = 1;
  for (const AxisRule& rule : kAxes)
    if (axes.has(rule.axis)) product *= size(rule.axis);
  return product;
}

ProcessGroup Mesh::group_of(Axes axes) const {
  ProcessGroup group{"", product_of(axes), 1};
  for (const AxisRule& rule : kAxes)
    if (axes.has(rule.axis)) group.name += (group.name.empty() ? "" : "_") + std::string(rule.ranks);
  if (axes.none() || (~axes).none()) group.name = "all";
  bool ended = false;  // the loop has gone past the group's axes
  uint32_t count = 1;
  for (size_t i = kAxes.size(); i-- > 0;) {
    const bool in = axes.has(kAxes[i].axis);
    if (in && (~axes).none()) break;
    if (sizes_[i] == 1) continue;
    if (in && ended) throw std::invalid_argument("an axis lies between those of a process group");
    if (in) count *= sizes_[i];
    if (!in && count == 1) group.stride *= sizes_[i];
    ended = !in && count > 1;
  }
  return group;
}

uint32_t Mesh::data_ranks() const { return product_of(kRowAxes); }

uint32_t Mesh::data_rank(uint32_t rank) const {
  uint32_t data_rank = 0, count = 1;
  for (size_t i = kAxes.size(); i-- > 0; rank /= sizes_[i])
    if (kRowAxes.has(kAxes[i].axis)) data_rank += rank % sizes_[i] * count, count *= sizes_[i];
  return data_rank;
}

bool Mesh::counts_rows(uint32_t rank) const {
  for (size_t i = kAxes.size(); i-- > 0; rank /= sizes_[i])
    if (!kRowAxes.has(kAxes[i].axis) && rank % sizes_[i] != 0) return false;
  return true;
}

Mesh::Levels Mesh::divided(const ProcessGroup& group, uint32_t ranks) {
  const uint32_t together = ranks % group.stride == 0 ? ranks / group.stride : 1;
  if (together <= 1 || together >= group.count || group.count % together != 0)
    return {group, {group.name, 1, group.count * group.stride}};
  return {{group.name, together, group.stride},
          {group.name, group.count / together, together * group.stride}};
}

Mesh::Levels Mesh::levels_of(const ProcessGroup& group) const { return divided(group, node_ranks_); }

Mesh::Levels Mesh::summing_levels_of(const ProcessGroup& group) const {
  return divided(group, node_group_ranks());
}

uint32_t Mesh::node_group_ranks() const {
  return node_ranks_ == ranks() ? ranks() : 1u << std::countr_zero(node_ranks_ | ranks());
}

}  // namespace sluice
