#include "engine/run/checkpoint/spare_descriptors.h"

#include <fcntl.h>

#include "engine/base/error.h"

namespace sluice {

SpareDescriptors::SpareDescriptors(size_t count) : count_(count) {
  held_.reserve(count);
  if (hold()) return;
  held_.clear();  // free for whatever reports the error
  throw Error(ExitCode::environment, "The limit on open files (ulimit -n) leaves none for a checkpoint.",
              "Raise it by " + std::to_string(count) + " at least for each rank.");
}

bool SpareDescriptors::hold() {
  while (held_.size() < count_) {
    FileDescriptor spare(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (spare.get() < 0) return false;
    held_.push_back(std::move(spare));
  }
  return true;
}

}  // namespace sluice
