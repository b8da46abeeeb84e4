// Memory is the limit: every part is read once, in order, and the sum is written once. Parts may lie a power
// of two apart, so they are read by chunks, in turn, into sums that stay in the first-level cache.
#include "cpu_optim/reduce.h"

#include <algorithm>
#include <cstddef>

#include "cpu_optim/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/reduce.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::HWY_NAMESPACE {

constexpr size_t kChunk = 2048;  // elements: 8 KiB of sums
constexpr size_t kSums = 8;      // of squares: element i of a block belongs to sum i mod kSums

// One chunk of a block, whose parts lie `stride` elements apart. Padding of `written` stays zero.
template <class T>
HWY_INLINE void sum_chunk(const T* from, uint64_t stride, uint32_t ranks, size_t count, T* to,
                          SquareSums<kSums>& squares) {
  HWY_ALIGN float sums[kChunk];
  for_each_vector(count,
                  [&](size_t i, auto lanes) SLUICE_KERNEL { lanes.store(lanes.load(from + i), sums + i); });
  for (uint32_t rank = 1; rank < ranks; ++rank) {
    const T* part = from + rank * stride;
    for_each_vector(count, [&](size_t i, auto lanes) SLUICE_KERNEL {
      lanes.store(hn::Add(lanes.load(sums + i), lanes.load(part + i)), sums + i);
    });
  }
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

template <class T>
HWY_INLINE double sum_block_as(const T* from, uint64_t stride, uint32_t ranks, size_t elements, T* to) {
  SquareSums<kSums> squares;
  for (size_t at = 0; at < elements; at += kChunk)
    sum_chunk(from + at, stride, ranks, HWY_MIN(kChunk, elements - at), to + at, squares);
  return squares.total();
}

double sum_block(DType precision, const void* from, uint64_t stride, uint32_t ranks, size_t elements,
                 void* to) {
  return with_precision(precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    return sum_block_as(static_cast<const T*>(from), stride, ranks, elements, static_cast<T*>(to));
  });
}

}  // namespace sluice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {
namespace {

HWY_EXPORT(sum_block);

}  // namespace

void sum_ranks(DType precision, const void* parts, uint32_t ranks, uint64_t elements, void* out,
               double* block_sums, Workers& workers) {
  const uint64_t width = dtype_bytes(precision);
  const auto blocks = static_cast<int64_t>((elements + kNormBlock - 1) / kNormBlock);
  workers.parallel_for(blocks, [&](int64_t block, int) {
    const uint64_t begin = static_cast<uint64_t>(block) * kNormBlock;
    const double squares = HWY_DYNAMIC_DISPATCH(sum_block)(
        precision, static_cast<const std::byte*>(parts) + begin * width, elements, ranks,
        std::min(kNormBlock, elements - begin), static_cast<std::byte*>(out) + begin * width);
    if (block_sums) block_sums[block] = squares;
  });
}

}  // namespace sluice
#endif
