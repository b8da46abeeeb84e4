#include "models/data/range_check.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

namespace sluice {

RangeCheck::RangeCheck(std::span<const TokenData* const> data)
    : thread_([this, all = std::vector<const TokenData*>(data.begin(), data.end())] { run(all); }) {}

RangeCheck::~RangeCheck() {
  ends_ = true;
  thread_.join();
}

void RangeCheck::run(const std::vector<const TokenData*>& data) {
  constexpr sched_param kNoPriority{};
  sched_setscheduler(0, SCHED_IDLE, &kNoPriority);  // without the right to this, it runs as any other thread
  constexpr int kThisThread = 0, kIdleClass = 3 << 13;
  syscall(SYS_ioprio_set, 1 /* IOPRIO_WHO_PROCESS */, kThisThread, kIdleClass);
  std::array<int32_t, 8192> ids;
  try {
    for (const TokenData* d : data)
      for (uint64_t first = 0; first < d->tokens() && !ends_; first += ids.size()) {
        const uint64_t count = std::min<uint64_t>(ids.size(), d->tokens() - first);
        d->read(first, count, ids.data());
        tokens_ += count;
      }
  } catch (...) {
    fault_ = std::current_exception();
    found_.store(true, std::memory_order_release);
  }
}

}  // namespace sluice
