#include "tools/bench/bench_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "gpu/machine.h"

namespace sluice {

BenchMemory::BenchMemory(Device& device, uint64_t bytes)
    : accelerator_(device.accelerator()),
      bytes_(bytes),
      host_(accelerator_ ? kStaging : bytes, {.prefault_threads = 1}) {
  data_ = host_.data();
  if (!accelerator_) return;
  there_ = accelerator_->allocate(bytes);
  pinned_ = accelerator_->pin(host_.span());
  std::array<uint32_t, kLanes> instructions{};
  instructions[kH2dLane] = 1;
  streams_ = accelerator_->make_streams(instructions);
  data_ = there_.get();
}

void BenchMemory::fill(std::byte* to, uint64_t bytes, std::span<const std::byte> from) {
  const auto repeat = [&](std::byte* at, uint64_t length) {
    for (uint64_t done = 0; done < length; done += from.size())
      std::memcpy(at + done, from.data(), std::min(from.size(), length - done));
  };
  if (!accelerator_) return repeat(to, bytes);
  CHECK(from.size() <= kStaging, "more than is staged at once");
  const uint64_t staged = std::min(bytes, kStaging / from.size() * from.size());
  repeat(host_.data(), staged);
  accelerator_->finish();  // kernels under way may read what is overwritten
  const Mark mark{kH2dLane, tickets_++, 0};
  streams_->begin(mark);
  for (uint64_t done = 0; done < bytes; done += staged)
    streams_->copy(kH2dLane, to + done, host_.data(), std::min(staged, bytes - done));
  streams_->end(mark);
  streams_->synchronize(mark);
}

Rounds BenchMemory::rounds_of_call(const std::function<void()>& work, const Repeats& repeats) {
  if (!accelerator_) return time_rounds(work, repeats);
  // A call only enqueues, and a wait for the device can take as long as a kernel. So several calls, which
  // take about a millisecond together, are enqueued between two waits.
  constexpr double kSecondsOfRun = 1e-3, kCallsMost = 64;
  const auto run = [&](int calls) {
    for (int i = 0; i < calls; ++i) work();
    accelerator_->finish();
  };
  run(1);
  const double begin = steady_seconds();
  run(1);
  const int calls =
      static_cast<int>(std::clamp(std::ceil(kSecondsOfRun / (steady_seconds() - begin)), 1.0, kCallsMost));
  const Rounds all = time_rounds([&] { run(calls); }, repeats);
  return {all.count, all.fastest / calls, all.eighth / calls, all.median / calls, all.slowest / calls};
}

}  // namespace sluice
