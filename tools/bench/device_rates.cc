#include "tools/bench/device_rates.h"

#include <array>
#include <vector>

#include "cpu_optim/adamw.h"
#include "engine/base/error.h"
#include "engine/base/pack.h"
#include "gpu/machine.h"
#include "tools/bench/bench_memory.h"
#include "tools/bench/median.h"

namespace sluice {

namespace {

constexpr Repeats kRepeats{.seconds_at_least = 0.3, .seconds_at_most = 1.5};
constexpr uint64_t kAlignment = 256;

// Ranges one behind the other, each filled with one fp32 number.
class Ranges {
 public:
  explicit Ranges(BenchMemory& memory) : memory_(memory) {}
  std::byte* take(uint64_t bytes, float value) {
    std::byte* const data = memory_.span().data() + taken_;
    taken_ += round_up(bytes, kAlignment);
    CHECK(taken_ <= memory_.span().size(), "more than was allotted");
    const std::array<float, 1024> values = [value] {
      std::array<float, 1024> all;
      all.fill(value);
      return all;
    }();
    memory_.fill(data, bytes, std::as_bytes(std::span(values)));
    return data;
  }

 private:
  BenchMemory& memory_;
  uint64_t taken_ = 0;
};

}  // namespace

TimedRate measure_round(Device& device, DType precision, uint64_t elements) {
  BenchMemory memory(device, round_bytes(elements));
  Ranges ranges(memory);
  const auto* const from = reinterpret_cast<const float*>(ranges.take(elements * sizeof(float), 0.5f));
  std::byte* const to = ranges.take(elements * dtype_bytes(precision), 0);
  auto* const sums = reinterpret_cast<double*>(ranges.take((elements / kNormBlock + 1) * sizeof(double), 0));
  const Rounds rounds =
      memory.rounds_of_call([&] { device.round(from, to, precision, elements, sums); }, kRepeats);
  return {static_cast<double>(elements * (sizeof(float) + dtype_bytes(precision))) / rounds.median, rounds};
}

DeviceMemoryRates measure_device_memory(Device& device, DType precision, uint64_t elements) {
  BenchMemory memory(device, update_bytes(elements));
  Ranges ranges(memory);
  const uint64_t fp32 = elements * sizeof(float), narrow = elements * dtype_bytes(precision);
  const auto plane = [&] { return reinterpret_cast<float*>(ranges.take(fp32, 0.5f)); };
  float *const master = plane(), *const first = plane(), *const second = plane();
  std::byte* const gradient = ranges.take(narrow, 0.5f);
  std::byte* const weights = ranges.take(narrow, 0);
  StepScalars::Update scalars{};
  scalars.constants = prepare_adamw({}, {1000, 1e-6, 1, 1});
  std::byte* const update = ranges.take(sizeof scalars, 0);
  memory.write(update, std::as_bytes(std::span(&scalars, 1)));
  const UpdateRange range{.master = master,
                          .planes = {first, second},
                          .gradient = gradient,
                          .weights = weights,
                          .precision = precision,
                          .elements = elements,
                          .weight_decay = 0.1};
  const Rounds updates = memory.rounds_of_call(
      [&] {
        device.update(OptimizerKind::adamw, UpdateForm::optimize, range,
                      {reinterpret_cast<const StepScalars::Update*>(update)});
      },
      kRepeats);
  const Rounds zeros = memory.rounds_of_call([&] { device.zero(master, fp32); }, kRepeats);
  // Optimizer state is read and written, the gradient read, the weights written.
  return {{static_cast<double>(6 * fp32 + 2 * narrow) / updates.median, updates},
          {static_cast<double>(fp32) / zeros.median, zeros}};
}

DeviceOverheads measure_overheads(Device& device) {
  constexpr uint32_t kInstructions = 256;
  constexpr uint64_t kBytes = 64;
  Accelerator& accelerator = *device.accelerator();
  BenchMemory memory(device, 1 << 20);
  const Arena host(1 << 20, {.prefault_threads = 1});
  const std::shared_ptr<void> pinned = accelerator.pin(host.span());
  std::array<uint32_t, kLanes> instructions{};
  instructions[kComputeLane] = instructions[kH2dLane] = kInstructions;
  const std::unique_ptr<Streams> streams = accelerator.make_streams(instructions);
  std::byte* const there = memory.span().data();
  uint64_t ticket = 0;
  const auto seconds_of = [&](LaneId lane, const auto& work) {
    return median_seconds(
               [&] {
                 for (uint32_t i = 0; i < kInstructions; ++i) {
                   streams->begin({lane, ticket, i});
                   work();
                   streams->end({lane, ticket, i});
                 }
                 streams->synchronize({lane, ticket++, kInstructions - 1});
               },
               {.seconds_at_least = 0.05}) /
           kInstructions;
  };
  return {seconds_of(kComputeLane, [&] { device.zero(there, kBytes); }),
          seconds_of(kH2dLane, [&] { streams->copy(kH2dLane, there, host.data(), kBytes); })};
}

}  // namespace sluice
