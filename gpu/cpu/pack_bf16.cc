#include "gpu/cpu/pack_bf16.h"

#include "engine/base/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/pack_bf16.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kRows = 32, kColumns = 64, kPairs = kRows / 2;

// Packs one block of a matrix that is stored by rows.
HWY_INLINE void pack_block(const uint16_t* b, int64_t stride, uint32_t* to) {
  const hn::CappedTag<uint32_t, 16> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  for (int64_t pair = 0; pair < kPairs; ++pair, b += 2 * stride, to += kColumns)
    for (size_t c = 0; c < kColumns; c += hn::Lanes(d)) {
      const auto lower = hn::PromoteTo(d, hn::LoadU(d16, b + c));
      const auto upper = hn::PromoteTo(d, hn::LoadU(d16, b + stride + c));
      hn::StoreU(hn::Or(lower, hn::ShiftLeft<16>(upper)), d, to + c);
    }
}

// Packs kStreams columns of a block, which are stored one by one, by transposing pairs of elements.
constexpr int64_t kStreams = 16;
HWY_INLINE void transpose_columns(const uint16_t* b, int64_t stride, uint32_t* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t column = 0; column < kStreams; ++column)
    for (int64_t pair = 0; pair < kPairs; ++pair)
      std::memcpy(to + pair * kColumns + column, b + column * stride + 2 * pair, sizeof(uint32_t));
#else
  const hn::FixedTag<uint32_t, 4> d;
  const hn::FixedTag<uint64_t, 2> d64;
  for (int64_t column = 0; column < kStreams; column += 4)
    for (int64_t pair = 0; pair < kPairs; pair += 4) {
      const auto load = [&](int64_t i) HWY_ATTR {
        return hn::BitCast(d, hn::LoadU(hn::FixedTag<uint16_t, 8>(), b + (column + i) * stride + 2 * pair));
      };
      const auto put = [&](auto v, int64_t i) HWY_ATTR {
        hn::StoreU(hn::BitCast(d, v), d, to + (pair + i) * kColumns + column);
      };
      const auto v0 = load(0), v1 = load(1), v2 = load(2), v3 = load(3);
      const auto lower01 = hn::BitCast(d64, hn::InterleaveLower(d, v0, v1));
      const auto lower23 = hn::BitCast(d64, hn::InterleaveLower(d, v2, v3));
      const auto upper01 = hn::BitCast(d64, hn::InterleaveUpper(d, v0, v1));
      const auto upper23 = hn::BitCast(d64, hn::InterleaveUpper(d, v2, v3));
      put(hn::InterleaveLower(d64, lower01, lower23), 0);
      put(hn::InterleaveUpper(d64, lower01, lower23), 1);
      put(hn::InterleaveLower(d64, upper01, upper23), 2);
      put(hn::InterleaveUpper(d64, upper01, upper23), 3);
    }
#endif
}

// Stored columns are read from their beginnings to their ends, so that the processor fetches ahead.
void pack_bf16(const uint16_t* b, bool transposed, int64_t stride, int64_t k, int64_t n, uint32_t* packed) {
  for (int64_t column = 0; column < n; column += kColumns, packed += k / kRows * kPairs * kColumns) {
    for (int64_t part = 0; transposed && part < kColumns; part += kStreams)
      for (int64_t row = 0; row < k; row += kRows)
        transpose_columns(b + (column + part) * stride + row, stride,
                          packed + row / kRows * kPairs * kColumns + part);
    for (int64_t row = 0; !transposed && row < k; row += kRows)
      pack_block(b + row * stride + column, stride, packed + row / kRows * kPairs * kColumns);
  }
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
namespace {

HWY_EXPORT(pack_bf16);

}  // namespace

void pack_bf16(const void* b, bool transposed, int64_t stride, int64_t k, int64_t n, void* packed) {
  HWY_DYNAMIC_DISPATCH(pack_bf16)
  (static_cast<const uint16_t*>(b), transposed, stride, k, n, static_cast<uint32_t*>(packed));
}

}  // namespace sluice::cpu
#endif
