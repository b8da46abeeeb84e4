// AdamW against the best kernel with the same memory traffic and no arithmetic.
//
//   adamw_bench [--parameters N] [--threads N] [--rounds N] [--json]
//
// Both run in one process on the same pages, alternating, and are compared round by round; the median of the
// ratios counts. Data lies in host memory as in training: shards of 4 Mi parameters, three fp32 planes
// where plane_offsets() has them, 16-bit gradients and weights in buffers of their own. The peer is the
// fastest of several kernels. They take streams in turn by cache lines or by blocks. Their stores are
// ordinary, like AdamW's (weights streamed, planes prefetched), or all streamed. Threads take the ranges of
// AdamW, or one contiguous part each.
#include "engine/base/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/benchmarks/adamw_bench.cc"
#include <fmt/format.h>
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu_optim/adamw.h"
#include "engine/base/simd/simd-inl.h"
#include "tools/benchmarks/bench_main.h"
#include "tools/benchmarks/contest.h"

#ifndef SLUICE_ADAMW_BENCH_STREAMS
#define SLUICE_ADAMW_BENCH_STREAMS
namespace sluice {
struct ShardStreams {  // a shard, or a part of one
  float *master, *moments[2];
  uint16_t *gradient, *weights;
};
}  // namespace sluice
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::HWY_NAMESPACE {

// Reads and writes every stream. The lowest bit of fp32 values is flipped, since a compiler may drop a store
// of the value that was just loaded. Streams take turns every kBlock elements.
template <size_t kBlock, bool kStreamPlanes, bool kStreamWeights>
HWY_INLINE void touch(const ShardStreams& s, size_t elements) {
  const hn::ScalableTag<uint32_t> d;
  const hn::CappedTag<uint16_t, kBlock> d16;
  const auto bit = hn::Set(d, 1u);
  const auto put = [](auto stream, auto v, auto tag, auto* p) HWY_ATTR {
    if constexpr (stream.value) {
      hn::Stream(v, tag, p);
    } else {
      hn::Store(v, tag, p);
    }
  };
  const std::bool_constant<kStreamPlanes> stream_planes;
  const std::bool_constant<kStreamWeights> stream_weights;
  for (size_t begin = 0; begin < elements; begin += kBlock) {
    for (float* plane : {s.master, s.moments[0], s.moments[1]}) {
      auto* bits = reinterpret_cast<uint32_t*>(plane) + begin;
      for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
        put(stream_planes, hn::Xor(hn::Load(d, bits + i), bit), d, bits + i);
        if constexpr (kStreamWeights) hwy::Prefetch(bits + i + 512);
      }
    }
    for (size_t i = begin; i < begin + kBlock; i += hn::Lanes(d16))
      put(stream_weights, hn::Load(d16, s.gradient + i), d16, s.weights + i);
  }
  hwy::FlushStream();
}

void touch_interleaved(const ShardStreams& s, size_t elements) { touch<32, false, false>(s, elements); }
void touch_like_adamw(const ShardStreams& s, size_t elements) { touch<32, false, true>(s, elements); }
void touch_blocked(const ShardStreams& s, size_t elements) { touch<16384, false, false>(s, elements); }
void touch_streaming(const ShardStreams& s, size_t elements) { touch<32, true, true>(s, elements); }

}  // namespace sluice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {
namespace {

HWY_EXPORT(touch_interleaved);
HWY_EXPORT(touch_like_adamw);
HWY_EXPORT(touch_blocked);
HWY_EXPORT(touch_streaming);

constexpr uint64_t kShard = 4ull << 20;  // parameters
constexpr uint64_t kRange = 65536;       // parameters of one task
constexpr double kBytes = 28;            // of traffic a parameter: 3 x 4 and 2, read and written

std::vector<ShardStreams> make_shards(uint64_t parameters) {
  const StatePlaneOffsets offsets =
      plane_offsets(layout_of(optimizer_of(OptimizerKind::adamw), DType::bf16).planes, kShard);
  const uint64_t count = parameters / kShard;
  std::byte* state = allocate_pages(count * offsets.back());
  auto* gradient = reinterpret_cast<uint16_t*>(allocate_pages(parameters * 2));
  auto* weights = reinterpret_cast<uint16_t*>(allocate_pages(parameters * 2));
  std::vector<ShardStreams> shards;
  for (uint64_t k = 0; k < count; ++k) {
    const auto plane = [&](uint64_t p) {
      return reinterpret_cast<float*>(state + k * offsets.back() + offsets[p]);
    };
    shards.push_back({plane(0), plane(1), plane(2), gradient + k * kShard, weights + k * kShard});
    for (uint64_t i = 0; i < kShard; ++i) {
      plane(0)[i] = plane(1)[i] = plane(2)[i] = 0.5f + static_cast<float>(i % 1024) / 2048;
      shards.back().gradient[i] = 0x3F00;  // 0.5
      shards.back().weights[i] = 0;
    }
  }
  return shards;
}

void run_adamw(const std::vector<ShardStreams>& shards, Workers& workers) {
  const UpdateConstants constants = prepare_adamw({}, {1000, 1e-6, 1.0, 1.0});
  for (const ShardStreams& s : shards)
    apply_adamw({.master = s.master,
                 .planes = {s.moments[0], s.moments[1]},
                 .gradient = s.gradient,
                 .weights = s.weights,
                 .precision = DType::bf16,
                 .elements = kShard,
                 .weight_decay = 0.1},
                constants, workers);
}

using Kernel = void (*)(const ShardStreams&, size_t);

void touch_part(const ShardStreams& s, uint64_t begin, uint64_t end, Kernel kernel) {
  kernel(
      {s.master + begin, s.moments[0] + begin, s.moments[1] + begin, s.gradient + begin, s.weights + begin},
      end - begin);
}

void touch_by_range(const std::vector<ShardStreams>& shards, Workers& workers, Kernel kernel) {
  for (const ShardStreams& s : shards)
    workers.parallel_for(kShard / kRange, [&](int64_t i, int) {
      const uint64_t begin = static_cast<uint64_t>(i) * kRange;
      touch_part(s, begin, begin + kRange, kernel);
    });
}

// Thread t takes part t of every shard, from its beginning to its end.
void touch_by_thread(const std::vector<ShardStreams>& shards, Workers& workers, Kernel kernel) {
  const auto threads = static_cast<uint64_t>(workers.threads()), ranges = kShard / kRange;
  workers.parallel_for(workers.threads(), [&](int64_t t, int) {
    const uint64_t begin = ranges * static_cast<uint64_t>(t) / threads * kRange;
    const uint64_t end = ranges * static_cast<uint64_t>(t + 1) / threads * kRange;
    for (const ShardStreams& s : shards) touch_part(s, begin, end, kernel);
  });
}

std::vector<Contestant> contestants(const std::vector<ShardStreams>& shards, Workers& workers) {
  std::vector<Contestant> all = {{"AdamW", [&shards, &workers] { run_adamw(shards, workers); }}};
  const std::pair<const char*, Kernel> kernels[] = {
      {"interleaved", HWY_DYNAMIC_DISPATCH(touch_interleaved)},
      {"weights streamed", HWY_DYNAMIC_DISPATCH(touch_like_adamw)},
      {"blocked", HWY_DYNAMIC_DISPATCH(touch_blocked)},
      {"all streamed", HWY_DYNAMIC_DISPATCH(touch_streaming)}};
  for (const auto& [name, kernel] : kernels) {
    all.push_back({fmt::format("traffic, {}, by range", name),
                   [&shards, &workers, k = kernel] { touch_by_range(shards, workers, k); }});
    all.push_back({fmt::format("traffic, {}, by thread", name),
                   [&shards, &workers, k = kernel] { touch_by_thread(shards, workers, k); }});
  }
  return all;
}

// Prints every rate and AdamW's ratio to the best peer.
void compare(uint64_t parameters, int threads, int rounds, bool json) {
  const std::vector<ShardStreams> shards = make_shards(parameters);
  Workers workers(threads);
  std::vector<Contestant> all = contestants(shards, workers);
  time_alternating(all, rounds);
  const auto rate = [&](const Contestant& c) { return static_cast<double>(parameters) / median(c.seconds); };
  const double ratio = ratio_to_best(all);
  if (json) {
    fmt::print("{{\"parameters\": {}, \"threads\": {}, \"adamw\": {}, \"ratio\": {}}}\n", parameters, threads,
               rate(all[0]), ratio);
    return;
  }
  fmt::print("{} Mi parameters, {} threads, {} rounds, medians\n", parameters >> 20, threads, rounds);
  for (const Contestant& c : all) {
    fmt::print("  {:<38} {:6.2f} G parameters/s {:7.1f} GB/s", c.name, rate(c) / 1e9, rate(c) * kBytes / 1e9);
    if (&c == &all.front())
      fmt::print("\n");
    else
      fmt::print("   AdamW / this {:.3f}\n", time_ratio(c, all.front()));
  }
  fmt::print("AdamW / best kernel with the same traffic: {:.3f} (bar 0.9)\n", ratio);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  uint64_t parameters = 64ull << 20;
  int threads = static_cast<int>(std::thread::hardware_concurrency()), rounds = 15;
  bool json = false;
  sluice::BenchMain bench("AdamW against the best kernel with the same memory traffic and no arithmetic.");
  bench.add("--parameters", parameters, "parameters, rounded up to shards of 4 Mi");
  bench.add("--threads", threads, "threads");
  bench.add("--rounds", rounds, "timed rounds");
  bench.add_flag("--json", json, "only AdamW's parameters a second and its ratio, as one JSON object");
  return bench.run(argc, argv, [&] {
    const uint64_t whole = (parameters + sluice::kShard - 1) / sluice::kShard * sluice::kShard;
    sluice::compare(whole, threads, rounds, json);
  });
}
#endif
