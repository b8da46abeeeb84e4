#include "engine/graph/routing.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"

namespace sluice {

int64_t expert_capacity(const Routing& r) {
  if (r.capacity_factor == 0) return r.group_rows;
  const double fair = r.capacity_factor * static_cast<double>(r.chosen) * static_cast<double>(r.group_rows) /
                      static_cast<double>(r.experts);
  const auto rows = static_cast<double>(r.group_rows);
  const auto capacity = static_cast<int64_t>(std::min(std::ceil(fair), rows));
  return std::min(std::max(capacity, r.least_capacity), r.group_rows);
}

int64_t rows_of_expert_most(const Routing& r, int64_t rows) {
  return r.capacity_factor == 0 ? rows : rows / r.group_rows * expert_capacity(r);
}

namespace {

// `over_mean`: the rows of the expert, divided by the mean over all experts.
double rows_of(const OpShapes& s, double over_mean) {
  const RoutingLayout layout = routing_layout(s);
  const double mean = static_cast<double>(layout.choices()) / static_cast<double>(layout.experts);
  return std::min(over_mean * mean,
                  static_cast<double>(rows_of_expert_most(s.attributes.routing, layout.rows)));
}

}  // namespace

double expected_rows(const OpShapes& s) { return rows_of(s, 1); }

double assumed_rows(const OpShapes& s) { return rows_of(s, s.attributes.routing.rows_over_mean); }

std::vector<bool> taken_choices(const Routing& r, std::span<const int32_t> experts,
                                const std::vector<bool>& tried) {
  std::vector<bool> taken(experts.size(), false);
  const auto rows = static_cast<int64_t>(experts.size()) / r.chosen;
  for (int64_t group = 0; group < rows; group += r.group_rows) {
    std::vector<int64_t> counts(static_cast<size_t>(r.experts), 0);
    for (int64_t j = 0; j < r.chosen; ++j)
      for (int64_t row = group; row < group + r.group_rows; ++row) {
        const auto choice = static_cast<size_t>(row * r.chosen + j);
        if (!tried.empty() && !tried[choice]) continue;
        int64_t& count = counts[static_cast<size_t>(experts[choice])];
        taken[choice] = count < expert_capacity(r);
        count += taken[choice];
      }
  }
  return taken;
}

std::vector<int32_t> make_routing(const RoutingLayout& layout, std::span<const int32_t> experts,
                                  const std::vector<bool>& taken) {
  CHECK(static_cast<int64_t>(experts.size()) == layout.choices(), "an expert for every choice");
  std::vector<int32_t> routing(static_cast<size_t>(layout.size()), 0);
  const auto is_taken = [&](size_t choice) { return taken.empty() || taken[choice]; };
  for (size_t choice = 0; choice < experts.size(); ++choice)
    if (is_taken(choice)) ++routing[static_cast<size_t>(experts[choice]) + 1];
  for (int64_t e = 0; e < layout.experts; ++e)
    routing[static_cast<size_t>(e) + 1] += routing[static_cast<size_t>(e)];
  std::vector<int32_t> next(routing.begin(), routing.begin() + layout.experts);
  std::fill_n(routing.begin() + layout.entries(), layout.choices(), -1);
  for (size_t choice = 0; choice < experts.size(); ++choice) {
    if (!is_taken(choice)) continue;
    const auto entry = static_cast<size_t>(layout.entries() + next[static_cast<size_t>(experts[choice])]++);
    routing[entry] = static_cast<int32_t>(choice);
  }
  std::ranges::copy(experts, routing.begin() + layout.experts_of());
  return routing;
}

TravelStep travel_step(const OpAttributes& attributes) {
  const ProcessGroup &among = attributes.among, &over = attributes.routing.over;
  if (among.is_same_as(over)) return TravelStep::whole;
  return among.stride == over.stride ? TravelStep::in_nodes : TravelStep::across;
}

int64_t travel_node_ranks(const OpAttributes& attributes) {
  const ProcessGroup &among = attributes.among, &over = attributes.routing.over;
  switch (travel_step(attributes)) {
    case TravelStep::in_nodes:
      return among.count;
    case TravelStep::across:
      return over.count / among.count;
    case TravelStep::whole:
      break;
  }
  return 1;
}

uint64_t workspace_between_ranks(const OpShapes& s) {
  const bool in_blocks = travel_step(s.attributes) == TravelStep::across;
  return in_blocks ? static_cast<uint64_t>(element_count(s.outputs[0])) * dtype_bytes(s.precision) : 0;
}

}  // namespace sluice
