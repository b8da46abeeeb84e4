// The sum of the parts that ranks exchange, against the best kernel with the same memory traffic.
//
//   reduce_bench [--ranks N ...] [--parameters N] [--threads N] [--rounds N] [--small]
//
// As in training, the parts of a shard, one a rank, lie end to end in one buffer of bf16, and the sum in
// another. All kernels run in one process on the same pages, in turn, and are compared round by round; the
// median of the ratios counts. The peer reads and writes the same bytes, with one integer operation a vector.
// It is the fastest of several kernels. They take all parts at once in registers, or in turn by chunks, and
// have ordinary or streaming stores.
#include "engine/base/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/benchmarks/reduce_bench.cc"
#include <fmt/format.h>
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <thread>
#include <utility>
#include <vector>

#include "gpu/ranks/reduce.h"
#include "tools/benchmarks/bench_main.h"
#include "tools/benchmarks/contest.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Writes, for every i, the XOR of element i of all parts. It reads kChunk elements of each part in turn.
template <size_t kChunk, bool kStream>
HWY_INLINE void touch(const uint16_t* parts, uint64_t stride, uint32_t ranks, size_t elements,
                      uint16_t* out) {
  const hn::CappedTag<uint16_t, kChunk> d;
  HWY_ALIGN uint16_t common[kChunk];
  for (size_t begin = 0; begin < elements; begin += kChunk) {
    for (size_t i = 0; i < kChunk; i += hn::Lanes(d))
      hn::Store(hn::Load(d, parts + begin + i), d, common + i);
    for (uint32_t rank = 1; rank < ranks; ++rank)
      for (size_t i = 0; i < kChunk; i += hn::Lanes(d))
        hn::Store(hn::Xor(hn::Load(d, common + i), hn::Load(d, parts + rank * stride + begin + i)), d,
                  common + i);
    for (size_t i = 0; i < kChunk; i += hn::Lanes(d)) {
      if constexpr (kStream) {
        hn::Stream(hn::Load(d, common + i), d, out + begin + i);
      } else {
        hn::Store(hn::Load(d, common + i), d, out + begin + i);
      }
    }
  }
  hwy::FlushStream();
}

constexpr uint32_t kInRegisters = 8;  // ranks

template <uint32_t kRanks, class D>
HWY_INLINE hn::Vec<D> common_to(D d, const uint16_t* parts, uint64_t stride) {
  const auto last = hn::Load(d, parts + (kRanks - 1) * stride);
  if constexpr (kRanks == 1) {
    return last;
  } else {
    return hn::Xor(common_to<kRanks - 1>(d, parts, stride), last);
  }
}

// Takes the parts of up to kRanks ranks at once. The parts of more than kInRegisters ranks take turns by
// cache lines.
template <bool kStream, uint32_t kRanks = kInRegisters>
HWY_INLINE void touch_at_once(const uint16_t* parts, uint64_t stride, uint32_t ranks, size_t elements,
                              uint16_t* out) {
  if (ranks > kInRegisters) return touch<32, kStream>(parts, stride, ranks, elements, out);
  if constexpr (kRanks > 1)
    if (ranks < kRanks) return touch_at_once<kStream, kRanks - 1>(parts, stride, ranks, elements, out);
  const hn::ScalableTag<uint16_t> d;
  for (size_t i = 0; i < elements; i += hn::Lanes(d)) {
    if constexpr (kStream) {
      hn::Stream(common_to<kRanks>(d, parts + i, stride), d, out + i);
    } else {
      hn::Store(common_to<kRanks>(d, parts + i, stride), d, out + i);
    }
  }
  hwy::FlushStream();
}

void touch_in_registers(const uint16_t* parts, uint64_t stride, uint32_t ranks, size_t elements,
                        uint16_t* out) {
  touch_at_once<false>(parts, stride, ranks, elements, out);
}
void touch_in_registers_streaming(const uint16_t* parts, uint64_t stride, uint32_t ranks, size_t elements,
                                  uint16_t* out) {
  touch_at_once<true>(parts, stride, ranks, elements, out);
}
void touch_by_chunks(const uint16_t* parts, uint64_t stride, uint32_t ranks, size_t elements, uint16_t* out) {
  touch<2048, false>(parts, stride, ranks, elements, out);
}
void touch_by_chunks_streaming(const uint16_t* parts, uint64_t stride, uint32_t ranks, size_t elements,
                               uint16_t* out) {
  touch<2048, true>(parts, stride, ranks, elements, out);
}

}  // namespace sluice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {
namespace {

HWY_EXPORT(touch_in_registers);
HWY_EXPORT(touch_in_registers_streaming);
HWY_EXPORT(touch_by_chunks);
HWY_EXPORT(touch_by_chunks_streaming);

constexpr uint64_t kShard = 4ull << 20;  // parameters
using Kernel = void (*)(const uint16_t*, uint64_t, uint32_t, size_t, uint16_t*);

struct Shard {
  uint16_t *parts, *sum;
};

// Prints every rate. Returns the rate of sum() over that of the best other kernel.
double compare(uint32_t ranks, uint64_t parameters, int threads, int rounds) {
  // A part is a whole number of norm blocks; with 2, 4 and 8 ranks that number is a power of two, as in
  // training.
  const uint64_t part = kShard / ranks / kNormBlock * kNormBlock, count = (parameters + kShard - 1) / kShard;
  std::vector<Shard> shards;
  for (uint64_t k = 0; k < count; ++k) {
    shards.push_back({reinterpret_cast<uint16_t*>(allocate_pages(part * ranks * 2)),
                      reinterpret_cast<uint16_t*>(allocate_pages(part * 2))});
    for (uint64_t i = 0; i < part * ranks; ++i)
      shards.back().parts[i] = static_cast<uint16_t>(0x3F00 + i % 101);  // 0.5 to 0.9
  }
  Workers workers(threads);
  std::vector<double> squares(part / kNormBlock);
  std::vector<Contestant> all{{"sum", [&] {
                                 for (const Shard& s : shards)
                                   sum_ranks(DType::bf16, s.parts, ranks, part, DType::bf16, s.sum,
                                             squares.data(), workers);
                               }}};
  const std::pair<const char*, Kernel> kernels[] = {
      {"traffic, in registers", HWY_DYNAMIC_DISPATCH(touch_in_registers)},
      {"traffic, in registers, streamed", HWY_DYNAMIC_DISPATCH(touch_in_registers_streaming)},
      {"traffic, by chunks", HWY_DYNAMIC_DISPATCH(touch_by_chunks)},
      {"traffic, by chunks, streamed", HWY_DYNAMIC_DISPATCH(touch_by_chunks_streaming)}};
  for (const auto& [name, kernel] : kernels)
    all.push_back({name, [&, k = kernel] {
                     for (const Shard& s : shards)
                       workers.parallel_for(static_cast<int64_t>(squares.size()), [&](int64_t block, int) {
                         const uint64_t begin = static_cast<uint64_t>(block) * kNormBlock;
                         k(s.parts + begin, part, ranks, kNormBlock, s.sum + begin);
                       });
                   }});
  time_alternating(all, rounds);
  const double bytes = static_cast<double>(count * part * (ranks + 1) * 2);
  fmt::print("{} ranks, {} MiB, {} threads, {} rounds, medians\n", ranks, count * part * ranks * 2 >> 20,
             threads, rounds);
  for (const Contestant& c : all)
    fmt::print("  {:<32} {:7.1f} GB/s\n", c.name, bytes / median(c.seconds) / 1e9);
  for (const Shard& s : shards) {
    free_pages(reinterpret_cast<std::byte*>(s.parts), part * ranks * 2);
    free_pages(reinterpret_cast<std::byte*>(s.sum), part * 2);
  }
  return ratio_to_best(all);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  uint64_t parameters = 64ull << 20;
  int threads = static_cast<int>(std::thread::hardware_concurrency()), rounds = 15;
  std::vector<uint32_t> ranks{2, 3, 4, 8};
  bool small = false;
  sluice::BenchMain bench(
      "The sum of what ranks exchange, against the best kernel with the same memory traffic.");
  bench.add("--ranks", ranks, "numbers of ranks");
  bench.add("--parameters", parameters, "parameters, rounded up to shards of 4 Mi");
  bench.add("--threads", threads, "threads");
  bench.add("--rounds", rounds, "timed rounds");
  bench.add_small(small);
  return bench.run(argc, argv, [&] {
    if (small) parameters = 1, rounds = 1;
    // Without this, the first pointers to the kernels would lead to a function that asks for the processor in
    // every call.
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    double ratio = 1e300;
    for (const uint32_t n : ranks) ratio = std::min(ratio, sluice::compare(n, parameters, threads, rounds));
    fmt::print("sum / best kernel with the same traffic, worst: {:.3f} (bar 0.9)  {}\n", ratio,
               ratio >= 0.9 ? "ok" : "short");
  });
}
#endif
