// Sets of processors from lists of their numbers, and back.
#pragma once

#include <vector>

#include "engine/base/affinity.h"

namespace sluice {

inline ProcessorSet set_of(const std::vector<int>& processors) {
  ProcessorSet set;
  for (const int p : processors) set.add(p);
  return set;
}

inline std::vector<int> list_of(const ProcessorSet& set) {
  std::vector<int> list;
  for (int p = 0; p < CPU_SETSIZE; ++p)
    if (set.has(p)) list.push_back(p);
  return list;
}

}  // namespace sluice
