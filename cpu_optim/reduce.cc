// Memory is the limit: every part is read once, and the sum is written once. Up to kTogether parts are added
// in registers; of more, subtrees of so many go to sums that stay in the first-level cache.
#include "cpu_optim/reduce.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "cpu_optim/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/reduce.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::HWY_NAMESPACE {

constexpr size_t kTile = 2048;     // elements: 8 KiB of sums
constexpr uint32_t kTogether = 8;  // parts that are added in registers
constexpr size_t kSums = 8;        // of squares: element i of a block belongs to sum i mod kSums

// T(first, kRanks) of reduce.h: `from` is the first one's, the others' lie `stride` elements apart.
template <uint32_t kRanks, class From, class Lanes>
HWY_INLINE FloatVector tree_sum(const From* from, uint64_t stride, Lanes lanes) {
  if constexpr (kRanks == 1) {
    return lanes.load(from);
  } else {
    constexpr uint32_t kLeft = std::bit_floor(kRanks - 1);
    return hn::Add(tree_sum<kLeft>(from, stride, lanes),
                   tree_sum<kRanks - kLeft>(from + kLeft * stride, stride, lanes));
  }
}

template <uint32_t kRanks, class From>
HWY_INLINE void add_few(const From* from, uint64_t stride, uint32_t ranks, size_t count, float* sums) {
  if constexpr (kRanks > 1)
    if (ranks < kRanks) return add_few<kRanks - 1>(from, stride, ranks, count, sums);
  for_each_vector(count, [&](size_t i, auto lanes) SLUICE_KERNEL {
    lanes.store(tree_sum<kRanks>(from + i, stride, lanes), sums + i);
  });
}

// T(first, ranks) of up to kTile elements. A tile of the stack for every doubling beyond kTogether.
template <class From>
void add_all(const From* from, uint64_t stride, uint32_t ranks, size_t count, float* sums) {
  if (ranks <= kTogether) return add_few<kTogether>(from, stride, ranks, count, sums);
  HWY_ALIGN float right[kTile];
  const uint32_t left = std::bit_floor(ranks - 1);
  add_all(from, stride, left, count, sums);
  add_all(from + left * stride, stride, ranks - left, count, right);
  for_each_vector(count, [&](size_t i, auto lanes) SLUICE_KERNEL {
    lanes.store(hn::Add(lanes.load(sums + i), lanes.load(right + i)), sums + i);
  });
}

// One tile of a block. Padding of `sums` stays zero.
template <class From, class To>
HWY_INLINE void sum_tile(const From* from, uint64_t stride, uint32_t ranks, size_t count, To* to,
                         SquareSums<kSums>& squares) {
  HWY_ALIGN float sums[kTile];
  add_all(from, stride, ranks, count, sums);
  for_each_vector(count, [&](size_t i, auto lanes) SLUICE_KERNEL {
    lanes.store(lanes.load(sums + i), to + i);
    lanes.store(lanes.load(to + i), sums + i);
  });
  const size_t whole = count / kSums * kSums;
  for (size_t i = 0; i < whole; i += kSums) squares.add(sums + i);
  if (whole == count) return;
  std::fill(sums + count, sums + whole + kSums, 0.0f);
  squares.add(sums + whole);
}

template <class From, class To>
HWY_INLINE double sum_block_as(const From* from, uint64_t stride, uint32_t ranks, size_t elements, To* to) {
  SquareSums<kSums> squares;
  for (size_t at = 0; at < elements; at += kTile)
    sum_tile(from + at, stride, ranks, HWY_MIN(kTile, elements - at), to + at, squares);
  return squares.total();
}

double sum_block(DType from, const void* parts, uint64_t stride, uint32_t ranks, size_t elements, DType to,
                 void* out) {
  return with_precisions(from, to, [&](auto from_type, auto to_type) HWY_ATTR {
    return sum_block_as(static_cast<const decltype(from_type)*>(parts), stride, ranks, elements,
                        static_cast<decltype(to_type)*>(out));
  });
}

}  // namespace sluice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {
namespace {

HWY_EXPORT(sum_block);

}  // namespace

void sum_ranks(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
               double* block_sums, Workers& workers) {
  const auto blocks = static_cast<int64_t>((elements + kNormBlock - 1) / kNormBlock);
  workers.parallel_for(blocks, [&](int64_t block, int) {
    const uint64_t begin = static_cast<uint64_t>(block) * kNormBlock;
    const double squares = HWY_DYNAMIC_DISPATCH(sum_block)(
        from, static_cast<const std::byte*>(parts) + begin * dtype_bytes(from), elements, ranks,
        std::min(kNormBlock, elements - begin), to, static_cast<std::byte*>(out) + begin * dtype_bytes(to));
    if (block_sums) block_sums[block] = squares;
  });
}

}  // namespace sluice
#endif
