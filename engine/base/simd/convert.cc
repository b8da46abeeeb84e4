#include "engine/base/simd/convert.h"

#include <cstring>

#include "engine/base/error.h"
#include "engine/base/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/base/simd/convert.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/base/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::HWY_NAMESPACE {

template <class To, class From>
HWY_INLINE void convert(const From* from, To* to, size_t elements) {
  for_each_vector(elements,
                  [&](size_t i, auto lanes) SLUICE_KERNEL { lanes.store(lanes.load(from + i), to + i); });
}

void round_elements(DType to, const float* from, void* out, uint64_t elements) {
  if (to == DType::bf16) return convert(from, static_cast<Bf16*>(out), elements);
  convert(from, static_cast<F16*>(out), elements);
}

void widen_elements(DType from, const void* in, float* out, uint64_t elements) {
  if (from == DType::bf16) return convert(static_cast<const Bf16*>(in), out, elements);
  convert(static_cast<const F16*>(in), out, elements);
}

}  // namespace sluice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {
namespace {

HWY_EXPORT(round_elements);
HWY_EXPORT(widen_elements);

// True for fp32, where conversion is a copy; CHECKs the rest.
bool is_copy(DType precision) {
  CHECK(precision == DType::bf16 || precision == DType::f16 || precision == DType::f32,
        "not a working precision");
  return precision == DType::f32;
}

}  // namespace

void round_to(DType to, const float* from, void* out, uint64_t elements) {
  if (elements == 0) return;
  if (is_copy(to)) {
    std::memcpy(out, from, elements * sizeof(float));
  } else {
    HWY_DYNAMIC_DISPATCH(round_elements)(to, from, out, elements);
  }
}

void widen(DType from, const void* in, float* out, uint64_t elements) {
  if (elements == 0) return;
  if (is_copy(from)) {
    std::memcpy(out, in, elements * sizeof(float));
  } else {
    HWY_DYNAMIC_DISPATCH(widen_elements)(from, in, out, elements);
  }
}

}  // namespace sluice
#endif
