#include "engine/base/affinity.h"

namespace sluice {

ProcessorSet allowed_processors() {
  ProcessorSet set;
  if (sched_getaffinity(0, sizeof set.bits, &set.bits) != 0) return {};
  return set;
}

bool allow_processors(const ProcessorSet& processors) {
  return sched_setaffinity(0, sizeof processors.bits, &processors.bits) == 0;
}

}  // namespace sluice
