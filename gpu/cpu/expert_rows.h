// The rows of one expert, as its ops read them from the routing (engine/graph/routing.h). Caller: the cpu
// device's kernels.
#pragma once

#include "engine/graph/routing.h"
#include "gpu/device.h"

namespace sluice::cpu {

struct ExpertRows {
  explicit ExpertRows(const OpCall& call) : layout(routing_layout(*call.shapes)) {
    const auto* const routing = static_cast<const int32_t*>(call.inputs[0].data);
    entries = routing + layout.entries() + routing[call.expert];
    count = routing[call.expert + 1] - routing[call.expert];
    if (call.shapes->attributes.routing.weighted)
      weights = static_cast<const float*>(call.inputs.back().data);
  }

  int64_t choice(int64_t i) const { return entries[i]; }
  int64_t row(int64_t i) const { return entries[i] / layout.chosen; }
  float weight(int64_t i) const { return weights == nullptr ? 1 : weights[entries[i]]; }
  int64_t with_zeros() const { return expert_rows_most(count); }
  int64_t tiles() const { return with_zeros() / kExpertTile; }

  RoutingLayout layout;
  const int32_t* entries;
  int64_t count;
  const float* weights = nullptr;  // nullptr: all are 1
};

}  // namespace sluice::cpu
