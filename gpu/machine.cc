#include "gpu/machine.h"

namespace sluice {

namespace {

constexpr uint64_t kMemoryAlignment = 64;        // a cache line
constexpr uint64_t kDirectAlignment = 4096;      // of memory and length under O_DIRECT
constexpr uint64_t kFileAlignment = 1ull << 20;  // a request of 1 MiB, which has one checksum slot

}  // namespace

Machine machine_of(const TierCapacities& capacities, bool ranks_meet_in_device) {
  Machine m;
  m.lanes = {{"compute"},          {"h2d"},       {"d2h"},       {"nvme_read", true},
             {"nvme_write", true}, {"optimizer"}, {"collective"}};
  if (capacities.device) m.tiers.push_back({"device", *capacities.device, kMemoryAlignment, false});
  const auto host = static_cast<TierId>(m.tiers.size());
  m.tiers.push_back({"host", capacities.host, kMemoryAlignment, false});
  if (capacities.device) {
    m.links.push_back({host, 0, kH2dLane, kMemoryAlignment});
    m.links.push_back({0, host, kD2hLane, kMemoryAlignment});
  }
  if (capacities.nvme) {
    const auto nvme = static_cast<TierId>(m.tiers.size());
    m.tiers.push_back({kNvmeTier, *capacities.nvme, kFileAlignment, true});
    m.links.push_back({nvme, host, kNvmeReadLane, kDirectAlignment});
    m.links.push_back({host, nvme, kNvmeWriteLane, kDirectAlignment});
  }
  for (const TaskKind kind : {TaskKind::forward, TaskKind::backward, TaskKind::round})
    m.units.push_back({kind, kComputeLane, 0});
  for (const TaskKind kind :
       {TaskKind::norm, TaskKind::set_scalars, TaskKind::set_guess, TaskKind::optimize, TaskKind::visit,
        TaskKind::repair, TaskKind::load, TaskKind::sum, TaskKind::compress, TaskKind::project,
        TaskKind::expand, TaskKind::clone, TaskKind::clear}) {
    const bool met = kind == TaskKind::sum && ranks_meet_in_device;
    m.units.push_back(met ? Unit{kind, kComputeLane, 0} : Unit{kind, kOptimizerLane, host});
  }
  for (const TaskKind kind : {TaskKind::gather, TaskKind::exchange, TaskKind::travel, TaskKind::travel_back})
    m.units.push_back({kind, kCollectiveLane, ranks_meet_in_device ? TierId{0} : host});
  m.units.push_back({TaskKind::save, kNvmeWriteLane, host});
  if (capacities.device)
    for (const TaskKind kind : {TaskKind::optimize, TaskKind::visit, TaskKind::repair})
      m.units.push_back({kind, kComputeLane, 0});
  return m;
}

}  // namespace sluice
