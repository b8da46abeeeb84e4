#include "tools/bench/memory_rates.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "cpu_optim/adamw.h"
#include "offload/arena.h"
#include "tools/bench/median.h"

namespace sluice {

namespace {

constexpr uint64_t kShard = uint64_t{4} << 20;  // parameters, as the planner cuts most models
constexpr Repeats kRepeats{.seconds_at_least = 0.3, .seconds_at_most = 1.5};

Arena filled(uint64_t bytes, float value) {
  Arena arena(bytes, {.prefault_threads = 1});
  auto* const floats = reinterpret_cast<float*>(arena.data());
  std::fill(floats, floats + bytes / sizeof(float), value);
  return arena;
}

}  // namespace

OptimizerRate measure_optimizer(DType precision, uint64_t parameters, Workers& workers) {
  // The layout of bf16 has the master weights, which in fp32 are the weights themselves.
  const OptimizerLayout layout = layout_of(optimizer_of(OptimizerKind::adamw), DType::bf16);
  const StatePlaneOffsets offsets = plane_offsets(layout.planes, kShard);
  const uint64_t shards = std::max<uint64_t>(1, parameters / kShard);
  const uint64_t width = dtype_bytes(precision);
  const bool in_place = precision == DType::f32;
  const Arena state = filled(shards * offsets.back(), 0.5f), rest = filled(2 * shards * kShard * width, 0.5f);
  const UpdateConstants constants = prepare_adamw({}, {1000, 1e-6, 1, 1});
  const Rounds rounds = time_rounds(
      [&] {
        for (uint64_t s = 0; s < shards; ++s) {
          const auto plane = [&](uint64_t p) {
            return reinterpret_cast<float*>(state.data() + s * offsets.back() + offsets[p]);
          };
          std::byte* const gradient = rest.data() + s * kShard * width;
          std::byte* const weights = gradient + shards * kShard * width;
          apply_adamw({.master = plane(0),
                       .planes = {plane(1), plane(2)},
                       .gradient = gradient,
                       .weights = in_place ? nullptr : weights,
                       .precision = precision,
                       .elements = kShard,
                       .weight_decay = 0.1},
                      constants, workers);
        }
      },
      kRepeats);
  // Optimizer state is read and written, the gradient read, the weights written; in fp32 the weights are the
  // master weights.
  const double bytes = static_cast<double>(2 * layout.bytes(1) + (in_place ? width : 2 * width));
  return {static_cast<double>(shards * kShard) / rounds.median, bytes, rounds};
}

TimedRate measure_copies(int threads, uint64_t bytes) {
  const uint64_t part = bytes / static_cast<uint64_t>(threads);
  const Arena from = filled(bytes, 1), to = filled(bytes, 2);
  const Rounds rounds = time_rounds(
      [&] {
        std::vector<std::thread> all;
        for (int t = 0; t < threads; ++t)
          all.emplace_back([&, at = static_cast<uint64_t>(t) * part] {
            std::memcpy(to.data() + at, from.data() + at, part);
          });
        for (std::thread& t : all) t.join();
      },
      kRepeats);
  return {static_cast<double>(part) * threads / rounds.median, rounds};
}

double measure_handover() {
  constexpr uint64_t kTurns = 2000;
  std::atomic<uint64_t> turn{0};
  const auto play = [&turn](uint64_t mine) {
    for (uint64_t next = mine; next < kTurns; next += 2) {
      for (uint64_t now = turn; now != next; now = turn) turn.wait(now);
      turn = next + 1;
      turn.notify_all();
    }
  };
  const double begin = steady_seconds();
  std::thread other([&] { play(1); });
  play(0);
  other.join();
  return (steady_seconds() - begin) / kTurns;
}

}  // namespace sluice
