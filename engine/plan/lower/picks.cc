#include "engine/plan/lower/picks.h"

#include <algorithm>
#include <optional>
#include <set>

#include "engine/base/pack.h"
#include "engine/graph/routing.h"

namespace sluice {

namespace {

class Finder {
 public:
  Finder(const Model& model, uint64_t home_alignment) : model_(model), home_alignment_(home_alignment) {
    for (const Layer& layer : model.layers)
      for (const SegmentUse& use : layer.segments) uses_.push_back(&use);
  }

  ExpertPicks run() {
    for (uint32_t u = 0; u < uses_.size();) {
      const uint32_t count = experts_from(u);
      if (const auto picked = picked_from(u, count)) picks_.uses.push_back(*picked);
      u += std::max(count, 1u);
    }
    return std::move(picks_);
  }

 private:
  // Counts the uses from `u` on that have the segment and the inputs of `u`, and experts 0, 1, 2 and so on.
  uint32_t experts_from(uint32_t u) const {
    uint32_t count = 0;
    while (u + count < uses_.size() && uses_[u + count]->segment == uses_[u]->segment &&
           uses_[u + count]->inputs == uses_[u]->inputs && uses_[u + count]->expert == count)
      ++count;
    return count;
  }

  std::optional<ExpertUses> picked_from(uint32_t u, uint32_t count) {
    if (count < 2) return std::nullopt;
    const SegmentUse& use = *uses_[u];
    const Segment& segment = model_.segments[use.segment];
    const auto op =
        std::ranges::find_if(segment.ops, [](const Op& o) { return op_rule(o.kind).of_an_expert; });
    if (op == segment.ops.end()) return std::nullopt;
    const RoutingLayout layout = routing_layout(shapes_of(segment, *op, model_.precision));
    const auto input = std::ranges::find(segment.inputs, op->inputs.front());
    if (layout.experts != count || layout.choices() >= count || input == segment.inputs.end())
      return std::nullopt;
    ExpertUses uses{.first = u, .count = count, .places = static_cast<uint32_t>(layout.choices())};
    uses.routing = use.inputs[static_cast<size_t>(input - segment.inputs.begin())];
    const Activation& routing = model_.activations[uses.routing];
    if (routing.input || routing.output || routing.kept) return std::nullopt;
    for (size_t slot = 0; slot < use.groups.size(); ++slot)
      if (!can_be_bank(groups_of(u, count, slot), uses.places)) return std::nullopt;
    for (size_t slot = 0; slot < use.groups.size(); ++slot)
      uses.banks.push_back(bank_of(groups_of(u, count, slot)));
    return uses;
  }

  std::vector<uint32_t> groups_of(uint32_t u, uint32_t count, size_t slot) const {
    std::vector<uint32_t> groups;
    for (uint32_t e = 0; e < count; ++e) groups.push_back(uses_[u + e]->groups[slot]);
    return groups;
  }

  // Whether the groups are a bank or can become one. A group can be in one bank only.
  bool can_be_bank(const std::vector<uint32_t>& groups, uint32_t places) const {
    if (std::ranges::find(picks_.banks, groups) != picks_.banks.end()) return true;
    const uint64_t elements = model_.groups[groups.front()].elements;
    if (places * part_bytes(elements, model_.precision, home_alignment_) >=
        groups.size() * elements * dtype_bytes(model_.precision))
      return false;
    const std::set<uint32_t> different(groups.begin(), groups.end());
    return different.size() == groups.size() && std::ranges::all_of(groups, [&](uint32_t g) {
             const Group& group = model_.groups[g];
             return !group.trainable && group.elements == elements && !in_banks_.contains(g);
           });
  }
  uint32_t bank_of(std::vector<uint32_t> groups) {
    const auto at = std::ranges::find(picks_.banks, groups);
    const auto bank = static_cast<uint32_t>(at - picks_.banks.begin());
    if (at != picks_.banks.end()) return bank;
    in_banks_.insert(groups.begin(), groups.end());
    picks_.banks.push_back(std::move(groups));
    return bank;
  }

  const Model& model_;
  const uint64_t home_alignment_;
  std::vector<const SegmentUse*> uses_;  // in forward order
  ExpertPicks picks_;
  std::set<uint32_t> in_banks_;  // groups
};

}  // namespace

uint64_t home_alignment(const Machine& machine) {
  uint64_t alignment = 1;
  for (const Tier& tier : machine.tiers) alignment = std::max(alignment, tier.alignment);
  for (const Link& link : machine.links) alignment = std::max(alignment, link.alignment);
  return alignment;
}

uint64_t part_bytes(uint64_t elements, DType precision, uint64_t home_alignment) {
  return round_up(elements * dtype_bytes(precision), home_alignment);
}

ExpertPicks find_picks(const Model& model, uint64_t home_alignment) {
  return model.generates() ? Finder(model, home_alignment).run() : ExpertPicks{};
}

}  // namespace sluice
