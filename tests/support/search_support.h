// Requests on which the search is tested: small models on machines whose lanes take about equally long.
#pragma once

#include <string>

#include "cpu_optim/optimizer.h"
#include "engine/plan/plan.h"
#include "tests/support/plan_support.h"

namespace sluice::testing {

constexpr double kWithin = 1.03;

// Rates with which drives and compute take about equally long. Nothing has latency, which would make up the
// whole time of small transfers.
inline MachineRates even_rates() {
  MachineRates r;
  r.name = "even";
  r.precision = DType::bf16;
  r.pools = {{"cores", 2}};
  LaneRates compute{.lane = "compute", .bytes_per_second = 40e9}, optimizer{.lane = "optimizer"};
  compute.flops.bf16 = 20e9;
  optimizer.bytes_per_second = 10e9;
  compute.sharing.occupies = optimizer.sharing.occupies = {{0, 2}};
  r.lanes = {compute, optimizer};
  r.links = {{"nvme", "host"}, {"host", "nvme"}};
  r.drives = {{.tier = "nvme", .read = 0.1e9, .write = 0.1e9, .mixed = 0.1e9}};
  return r;
}

inline PlanRequest request_for(uint32_t layers, uint64_t host_bytes, bool clip) {
  PlanRequest r;
  r.machine = testing::machine_of(Tiers::host_nvme);
  r.machine.tiers[0].capacity = host_bytes;
  r.machine.tiers[1].alignment = kDirectAlignment;
  r.rates = even_rates();
  const Model model = build_model(
      config_from_name("gpt2:layers=" + std::to_string(layers) + ",width=128,heads=2,vocab=256,context=64"),
      DType::bf16, 2, 64);
  r.model = [model](int64_t, int64_t) { return model; };
  r.micro_batches = {2};
  r.lower.batch = 4;
  r.lower.update_waits_for_norm = clip;
  r.lower.optimizer = layout_of(optimizer_of(OptimizerKind::adamw), DType::bf16);
  r.lower.workspace_bytes = no_workspace;
  return r;
}

// A request with a device above host memory and drives. The device's links are four times as fast as the
// drives. Updates run at the speed of compute's memory, or slower.
inline PlanRequest in_three_tiers(bool clip, double update_bytes_per_second, uint32_t layers = 2) {
  PlanRequest r = request_for(layers, kPlenty, clip);
  r.machine = testing::machine_of(Tiers::device_host_nvme);
  r.machine.tiers[2].alignment = kDirectAlignment;
  r.rates.links.push_back({"host", "device", 0.4e9});
  r.rates.links.push_back({"device", "host", 0.4e9});
  r.rates.lanes[1].bytes_per_second = update_bytes_per_second;
  return r;
}

// Bytes of the top tier that suffice for everything, without recomputation.
inline uint64_t plenty_of(PlanRequest request) {
  request.recompute = Recompute::none;
  request.placement = Placement::highest;
  return std::get<Plan>(make_plan(request)).program.arena_bytes[0];
}

}  // namespace sluice::testing
