// The rows of one expert (engine/graph/routing.h), as kernels find them. Their number is read on the device,
// so a grid is made for the largest possible number, and threads beyond the rows return at once. Included by
// .cu files only.
#pragma once

#include "engine/graph/routing.h"
#include "gpu/cuda/base.h"

namespace sluice::cuda {

struct ExpertRows {
  const int32_t* begins;   // of the expert: its first entry, and the one after its last
  const int32_t* entries;  // of all experts
  const float* weights;    // by choice; nullptr: all are 1
  int chosen, most;        // experts that a row chooses; the most rows that an expert can have

  __device__ int count() const {
    const int rows = begins[1] - begins[0];
    require(rows >= 0 && rows <= most);
    return rows;
  }
  __device__ static int with_zeros(int count) {
    return (count + static_cast<int>(kExpertTile) - 1) / static_cast<int>(kExpertTile) *
           static_cast<int>(kExpertTile);
  }
  __device__ int choice(int i) const { return entries[begins[0] + i]; }
  __device__ int row(int i) const { return choice(i) / chosen; }
  __device__ float weight(int i) const { return weights == nullptr ? 1.0f : weights[choice(i)]; }
};

inline ExpertRows expert_rows(const OpCall& call) {
  const RoutingLayout layout = routing_layout(*call.shapes);
  const auto* const routing = data_of<const int32_t>(call.inputs, 0);
  const bool weighted = call.shapes->attributes.routing.weighted;
  return {routing + call.expert, routing + layout.entries(),
          weighted ? data_of<const float>(call.inputs, call.inputs.size() - 1) : nullptr,
          static_cast<int>(layout.chosen),
          static_cast<int>(rows_of_expert_most(call.shapes->attributes.routing, layout.rows))};
}

}  // namespace sluice::cuda
