#include "engine/graph/imbalance.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/graph/routing.h"

namespace sluice {

namespace {

// All rows choose the expert, and it takes what its capacity lets it take.
double most_of(const Routing& r) {
  const double all = static_cast<double>(r.experts) / static_cast<double>(r.chosen);
  if (r.capacity_factor == 0) return all;
  const auto taken = static_cast<double>(std::min(r.group_rows, rows_of_expert_most(r, r.group_rows)));
  return std::max(1.0, all * taken / static_cast<double>(r.group_rows));
}

bool is_of_an_expert(const Op& op) { return op_rule(op.kind).of_an_expert; }

// Of the ops of an expert, which all have the same.
const Routing* routing_of(const Segment& segment) {
  const auto op = std::ranges::find_if(segment.ops, is_of_an_expert);
  return op == segment.ops.end() ? nullptr : &op->attributes.routing;
}

void assume_rows(Segment& segment, double over_mean) {
  for (Op& op : segment.ops)
    if (is_of_an_expert(op)) op.attributes.routing.rows_over_mean = over_mean;
}

}  // namespace

double most_imbalance(const Model& model) {
  double most = 0;
  for (const Segment& segment : model.segments)
    if (const Routing* const routing = routing_of(segment)) most = std::max(most, most_of(*routing));
  return most;
}

double assumed_imbalance(const Model& model) {
  double most = 0;
  for (const Segment& segment : model.segments)
    if (const Routing* const routing = routing_of(segment)) most = std::max(most, routing->rows_over_mean);
  return most;
}

void assume_imbalance(Model& model, double imbalance) {
  CHECK(imbalance >= 1, "the largest is at least the mean");
  const auto templates = static_cast<uint32_t>(model.segments.size());
  for (uint32_t s = 0; s < templates; ++s) {
    const Routing* const routing = routing_of(model.segments[s]);
    if (routing == nullptr) continue;
    const double largest = std::min(imbalance, most_of(*routing));
    if (largest == 1) continue;
    const auto experts = static_cast<double>(routing->experts);
    const auto first = static_cast<uint32_t>(model.segments.size());
    model.segments.push_back(model.segments[s]);
    assume_rows(model.segments[first], largest);
    assume_rows(model.segments[s], (experts - largest) / (experts - 1));
    for (Layer& layer : model.layers)
      for (SegmentUse& use : layer.segments)
        if (use.segment == s && use.expert == 0) use.segment = first;
  }
}

}  // namespace sluice
