#include "offload/system/processors.h"

#include <hwloc.h>

#include <algorithm>

namespace sluice {

namespace {

// The cores as hwloc knows them; empty where it fails.
std::vector<ProcessorSet> cores_by_hwloc(const ProcessorSet& allowed) {
  std::vector<ProcessorSet> cores;
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return cores;
  if (hwloc_topology_load(topology) == 0) {
    for (hwloc_obj_t core = nullptr;
         (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
      ProcessorSet processors;
      for (int processor = 0; processor < CPU_SETSIZE; ++processor)
        if (allowed.has(processor) && hwloc_bitmap_isset(core->cpuset, static_cast<unsigned>(processor)))
          processors.add(processor);
      if (processors.count() > 0) cores.push_back(processors);
    }
  }
  hwloc_topology_destroy(topology);
  return cores;
}

}  // namespace

std::vector<ProcessorSet> cores_of(const ProcessorSet& allowed) {
  std::vector<ProcessorSet> cores = cores_by_hwloc(allowed);
  int known = 0;
  for (const ProcessorSet& core : cores) known += core.count();
  if (known == allowed.count()) return cores;
  cores.clear();
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!allowed.has(processor)) continue;
    cores.emplace_back();
    cores.back().add(processor);
  }
  return cores;
}

ProcessorShare share_of(const std::vector<ProcessorSet>& cores, int rank, int ranks) {
  const auto first_of = [&](int u) {
    return cores.size() * static_cast<size_t>(u) / static_cast<size_t>(ranks);
  };
  const auto processors_of = [&](size_t first, size_t last) {
    ProcessorSet set;
    for (size_t core = first; core < last; ++core) CPU_OR(&set.bits, &set.bits, &cores[core].bits);
    return set;
  };
  const ProcessorSet all = processors_of(0, cores.size());
  if (cores.size() < static_cast<size_t>(ranks)) return {all, std::max(1, all.count() / ranks), false};
  ProcessorShare share{processors_of(first_of(rank), first_of(rank + 1)), all.count(), true};
  for (int u = 0; u < ranks; ++u)
    share.threads = std::min(share.threads, processors_of(first_of(u), first_of(u + 1)).count());
  return share;
}

}  // namespace sluice
