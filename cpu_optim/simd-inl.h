// Vectors of fp32 from and to fp32, bf16 and f16 in memory, whole and partial, and a multiply-add that is
// fused on every target. Compiled once a target by files that use Highway's foreach_target; any alignment.
#if defined(SLUICE_CPU_OPTIM_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_OPTIM_SIMD_INL_H_
#undef SLUICE_CPU_OPTIM_SIMD_INL_H_
#else
#define SLUICE_CPU_OPTIM_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstring>

#include "cpu_optim/half.h"

#undef SLUICE_KERNEL
#define SLUICE_KERNEL HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace sluice::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVector = hn::Vec<Floats>;

// a * b + c, rounded once.
HWY_INLINE FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
#if HWY_TARGET == HWY_SCALAR
  return FloatVector(std::fma(a.raw, b.raw, c.raw));
#else
  return hn::MulAdd(a, b, c);
#endif
}

HWY_INLINE FloatVector load(Floats d, const float* p) { return hn::LoadU(d, p); }
HWY_INLINE void store(FloatVector v, Floats d, float* p) { hn::StoreU(v, d, p); }

#if HWY_TARGET == HWY_SCALAR

template <class T>
HWY_INLINE FloatVector load(Floats d, const T* p) {
  return hn::Set(d, to_float(*p));
}
template <class T>
HWY_INLINE void store(FloatVector v, Floats, T* p) {
  *p = from_float<T>(hn::GetLane(v));
}
template <class T>
HWY_INLINE void stream(FloatVector v, Floats d, T* p) {
  store(v, d, p);
}

#else

HWY_INLINE FloatVector load(Floats d, const Bf16* p) {
  const hn::Rebind<uint16_t, Floats> d16;
  const hn::Rebind<uint32_t, Floats> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

HWY_INLINE hn::Vec<hn::Rebind<uint16_t, Floats>> rounded_bits(FloatVector v, Bf16) {
  const hn::Rebind<uint16_t, Floats> d16;
  const hn::Rebind<uint32_t, Floats> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto tie_to_even = hn::And(upper, hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(tie_to_even, hn::Set(d32, 0x7FFFu))));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
  const auto out = hn::IfThenElse(nan, hn::Or(upper, hn::Set(d32, 0x40u)), rounded);
  return hn::TruncateTo(d16, out);
}

HWY_INLINE FloatVector load(Floats d, const F16* p) {
  const hn::Rebind<hwy::float16_t, Floats> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

HWY_INLINE hn::Vec<hn::Rebind<uint16_t, Floats>> rounded_bits(FloatVector v, F16) {
  const hn::Rebind<uint16_t, Floats> d16;
  const hn::Rebind<hwy::float16_t, Floats> half;
  return hn::BitCast(d16, hn::DemoteTo(half, v));
}

template <class T>
HWY_INLINE void store(FloatVector v, Floats, T* p) {
  const hn::Rebind<uint16_t, Floats> d16;
  hn::StoreU(rounded_bits(v, T{}), d16, reinterpret_cast<uint16_t*>(p));
}

// Past the caches; p is aligned to the vector's 16-bit size. hwy::FlushStream() before others may read.
template <class T>
HWY_INLINE void stream(FloatVector v, Floats, T* p) {
  const hn::Rebind<uint16_t, Floats> d16;
  hn::Stream(rounded_bits(v, T{}), d16, reinterpret_cast<uint16_t*>(p));
}

#endif

// The first n lanes, the others zero; n < lanes.
template <class T>
HWY_INLINE FloatVector load_n(Floats d, const T* p, size_t n) {
  HWY_ALIGN T lanes[hn::MaxLanes(Floats())] = {};
  std::memcpy(lanes, p, n * sizeof(T));
  return load(d, lanes);
}
template <class T>
HWY_INLINE void store_n(FloatVector v, Floats d, T* p, size_t n) {
  HWY_ALIGN T lanes[hn::MaxLanes(Floats())];
  store(v, d, lanes);
  std::memcpy(p, lanes, n * sizeof(T));
}

// A whole vector or the first n lanes of one: a loop body written once serves for its tail. zero_rest clears
// the lanes that are not there, before a sum.
struct Whole {
  HWY_INLINE FloatVector zero_rest(FloatVector v) const { return v; }
  template <class T>
  HWY_INLINE void stream(FloatVector v, T* p) const { HWY_NAMESPACE::stream(v, Floats(), p); }
  template <class T>
  HWY_INLINE FloatVector load(const T* p) const { return HWY_NAMESPACE::load(Floats(), p); }
  template <class T>
  HWY_INLINE void store(FloatVector v, T* p) const { HWY_NAMESPACE::store(v, Floats(), p); }
};
struct Partial {
  size_t n;
  HWY_INLINE FloatVector zero_rest(FloatVector v) const {
    return hn::IfThenElseZero(hn::FirstN(Floats(), n), v);
  }
  template <class T>
  HWY_INLINE void stream(FloatVector v, T* p) const { store(v, p); }
  template <class T>
  HWY_INLINE FloatVector load(const T* p) const { return load_n(Floats(), p, n); }
  template <class T>
  HWY_INLINE void store(FloatVector v, T* p) const { store_n(v, Floats(), p, n); }
};

// body(i, Whole or Partial) for i = 0, lanes, 2 lanes, ... below n. Write `body` as a SLUICE_KERNEL lambda:
// inlined, so that the constants that it captures stay in registers.
template <class Body>
HWY_INLINE void for_each_vector(size_t n, const Body& body) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, Whole{});
  if (i < n) body(i, Partial{n - i});
}

// Sums of squares in double, of values that come kSums at a time: value j of each belongs to sum j. A square
// of an fp32 value is exact in double, so it does not matter whether the multiply-add is fused.
template <size_t kSums>
class SquareSums {
 public:
  HWY_INLINE void add(const float* values) {  // kSums of them, aligned to a vector
    const hn::CappedTag<double, kSums> dd;
    const hn::Rebind<float, decltype(dd)> half;
    for (size_t j = 0; j < kSums; j += hn::Lanes(dd)) {
      const auto value = hn::PromoteTo(dd, hn::Load(half, values + j));
      hn::Store(hn::MulAdd(value, value, hn::Load(dd, sums_ + j)), dd, sums_ + j);
    }
  }
  HWY_INLINE double total() const {  // added in order
    double total = 0;
    for (const double sum : sums_) total += sum;
    return total;
  }

 private:
  HWY_ALIGN double sums_[kSums] = {};
};

}  // namespace sluice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
