// Memory bandwidth is the limit. Every part is read once, and the sum is written once, past the caches, which
// saves reading its cache lines first. Up to kTogether parts are added in registers. Of more parts, subtrees
// are added first; their sums stay in the first-level cache, as does a tile of the result until its squares
// are added.
#include "gpu/ranks/reduce.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "engine/base/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/ranks/reduce.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/base/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::HWY_NAMESPACE {

// Elements of a tile, so few that a processor reads the next tile while it adds the squares of this one.
constexpr size_t kTile = 256;
constexpr uint32_t kTogether = 8;  // parts that are added in registers
constexpr size_t kSums = 32;  // sums of squares; element i of a block goes to sum i mod kSums. A single chain
                              // of additions would take as long as memory does.
static_assert(kTile % kSums == 0);

struct Pair {
  FloatVector a, b;
};

// In memory, the elements of `a` come first, then the elements of `b`.
struct InOrder {
  static constexpr size_t kLanes = hn::MaxLanes(Floats());
  template <class T>
  static HWY_INLINE Pair load(const T* p) {
    return {HWY_NAMESPACE::load(Floats(), p), HWY_NAMESPACE::load(Floats(), p + kLanes)};
  }
  template <class T>
  static HWY_INLINE void store(const Pair& pair, T* p) {
    HWY_NAMESPACE::store(pair.a, Floats(), p);
    HWY_NAMESPACE::store(pair.b, Floats(), p + kLanes);
  }
};

#if HWY_TARGET == HWY_SCALAR
template <class From, class To>
using Order = InOrder;
#else
// In memory, the even elements are in `a`, and the odd elements are in `b`.
struct EvenAndOdd {
  static HWY_INLINE Pair load(const Bf16* p) {
    Pair pair;
    load_even_and_odd(Floats(), p, pair.a, pair.b);
    return pair;
  }
  static HWY_INLINE void store(const Pair& pair, Bf16* p) { store_even_and_odd(pair.a, pair.b, p); }
};
template <class From, class To>
using Order = std::conditional_t<std::is_same_v<From, Bf16> && std::is_same_v<To, Bf16>, EvenAndOdd, InOrder>;
#endif

// Returns T(first, kRanks) of reduce.h. `from` is the first rank's part; the parts lie `stride` elements
// apart.
template <uint32_t kRanks, class Order, class From>
HWY_INLINE Pair tree_sum(const From* from, uint64_t stride) {
  if constexpr (kRanks == 1) {
    return Order::load(from);
  } else {
    constexpr uint32_t kLeft = std::bit_floor(kRanks - 1);
    const Pair left = tree_sum<kLeft, Order>(from, stride);
    const Pair right = tree_sum<kRanks - kLeft, Order>(from + kLeft * stride, stride);
    return {hn::Add(left.a, right.a), hn::Add(left.b, right.b)};
  }
}

template <uint32_t kRanks, class From, class To>
HWY_INLINE void add_whole(const From* from, uint64_t stride, size_t count, To* to) {
  for (size_t i = 0; i < count; i += 2 * InOrder::kLanes)
    Order<From, To>::store(tree_sum<kRanks, Order<From, To>>(from + i, stride), to + i);
}

// Writes T(first, ranks) to `to`, for up to kRanks ranks. `to` has room for a multiple of kSums elements;
// elements beyond `count` become zero.
template <uint32_t kRanks, class From, class To>
HWY_INLINE void add_few(const From* from, uint64_t stride, uint32_t ranks, size_t count, To* to) {
  if constexpr (kRanks > 1)
    if (ranks < kRanks) return add_few<kRanks - 1>(from, stride, ranks, count, to);
  const size_t whole = count / kSums * kSums;
  add_whole<kRanks>(from, stride, whole, to);
  if (whole == count) return;
  From rest[kRanks * kSums] = {};
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    std::memcpy(rest + rank * kSums, from + rank * stride + whole, (count - whole) * sizeof(From));
  add_whole<kRanks>(rest, kSums, kSums, to + whole);
}

template <class From, class To>
void add_many(const From* from, uint64_t stride, uint32_t ranks, size_t count, To* to);

// Writes T(first, ranks) to `to`, for up to kTile elements.
template <class From, class To>
HWY_INLINE void add_all(const From* from, uint64_t stride, uint32_t ranks, size_t count, To* to) {
  if (ranks <= kTogether)
    add_few<kTogether>(from, stride, ranks, count, to);
  else
    add_many(from, stride, ranks, count, to);
}

// Does what add_all does, for more than kTogether ranks. Takes two tiles of stack for every doubling of
// ranks.
template <class From, class To>
HWY_NOINLINE void add_many(const From* from, uint64_t stride, uint32_t ranks, size_t count, To* to) {
  HWY_ALIGN float halves[2 * kTile];
  const uint32_t left = std::bit_floor(ranks - 1);
  add_all(from, stride, left, count, halves);
  add_all(from + left * stride, stride, ranks - left, count, halves + kTile);
  add_few<2>(halves, kTile, 2, count, to);
}

// Writes past the caches where `to` is aligned to a vector. Call hwy::FlushStream() before others read.
HWY_INLINE void write_tile(const void* tile, size_t bytes, void* to) {
  const hn::ScalableTag<uint8_t> d;
  const auto* from = static_cast<const uint8_t*>(tile);
  auto* out = static_cast<uint8_t*>(to);
  size_t done = 0;
  if (HWY_TARGET != HWY_SCALAR && reinterpret_cast<uintptr_t>(to) % hn::Lanes(d) == 0)
    for (; done + hn::Lanes(d) <= bytes; done += hn::Lanes(d))
      hn::Stream(hn::Load(d, from + done), d, out + done);
  std::memcpy(out + done, from + done, bytes - done);
}

template <class From, class To>
HWY_INLINE double sum_block_as(const From* from, uint64_t stride, uint32_t ranks, size_t elements, To* to,
                               bool squared) {
  HWY_ALIGN To tile[kTile];
  SquareSums<kSums> squares;
  for (size_t at = 0; at < elements; at += kTile) {
    const size_t count = HWY_MIN(kTile, elements - at);
    add_all(from + at, stride, ranks, count, tile);
    write_tile(tile, count * sizeof(To), to + at);
    if (squared) squares.add(tile, (count + kSums - 1) / kSums * kSums);
  }
  hwy::FlushStream();
  return squares.total();
}

double sum_block(DType from, const void* parts, uint64_t stride, uint32_t ranks, size_t elements, DType to,
                 void* out, bool squared) {
  return with_precisions(from, to, [&](auto from_type, auto to_type) HWY_ATTR {
    return sum_block_as(static_cast<const decltype(from_type)*>(parts), stride, ranks, elements,
                        static_cast<decltype(to_type)*>(out), squared);
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
        std::min(kNormBlock, elements - begin), to, static_cast<std::byte*>(out) + begin * dtype_bytes(to),
        block_sums != nullptr);
    if (block_sums) block_sums[block] = squares;
  });
}

}  // namespace sluice
#endif
