#include "engine/graph/imbalance.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/graph/routing.h"

namespace sluice {

namespace {

// The imbalance if all rows choose one expert, which takes as many as its capacity allows.
double most_of(const Routing& r) {
  const double all = static_cast<double>(r.experts) / static_cast<double>(r.chosen);
  if (r.capacity_factor == 0) return all;
  const auto taken = static_cast<double>(expert_capacity(r));
  return std::max(1.0, all * taken / static_cast<double>(r.group_rows));
}

// Whether an op works on the rows of an expert, or moves the rows of one expert of each rank.
bool is_of_an_expert(const Op& op) { return op_rule(op.kind).of_an_expert || op.kind == OpKind::all_to_allv; }

// All ops of an expert have the same routing.
const Routing* routing_of(const Segment& segment) {
  const auto op = std::ranges::find_if(segment.ops, is_of_an_expert);
  return op == segment.ops.end() ? nullptr : &op->attributes.routing;
}

void assume_rows(Segment& segment, double over_mean) {
  for (Op& op : segment.ops)
    if (is_of_an_expert(op)) op.attributes.routing.rows_over_mean = over_mean;
}

// The largest value of a figure over the model's mixtures of experts. The readings of a model that is also
// trained do not count.
template <typename Figure>
double largest(const Model& model, Figure figure) {
  double largest = 0;
  const size_t layers = model.generates() ? model.layers.size() : model.trained_layers();
  for (size_t l = 0; l < layers; ++l)
    for (const SegmentUse& use : model.layers[l].segments)
      if (const Routing* const routing = routing_of(model.segments[use.segment]))
        largest = std::max(largest, figure(*routing));
  return largest;
}

}  // namespace

double most_imbalance(const Model& model) { return largest(model, most_of); }

double assumed_imbalance(const Model& model) {
  return largest(model, [](const Routing& r) { return r.rows_over_mean; });
}

void assume_imbalance(Model& model, double imbalance) {
  CHECK(imbalance >= 1, "the largest is at least the mean");
  const auto templates = static_cast<uint32_t>(model.segments.size());
  for (uint32_t s = 0; s < templates; ++s) {
    const Routing* const routing = routing_of(model.segments[s]);
    if (routing == nullptr) continue;
    const double most = std::min(imbalance, most_of(*routing));
    if (most == 1) continue;
    const auto experts = static_cast<double>(routing->experts);
    const auto first = static_cast<uint32_t>(model.segments.size());
    model.segments.push_back(model.segments[s]);
    assume_rows(model.segments[first], most);
    assume_rows(model.segments[s], (experts - most) / (experts - 1));
    for (Layer& layer : model.layers)
      for (SegmentUse& use : layer.segments)
        if (use.segment == s && use.expert == 0) use.segment = first;
  }
}

}  // namespace sluice
