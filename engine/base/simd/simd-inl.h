// Loads and stores of fp32 vectors, whole or partial, from and to fp32, bf16 and f16 in memory of any
// alignment, and a multiply-add that is fused on every target. Files that use Highway's foreach_target
// compile this file once for each target.
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

#include "engine/base/simd/half.h"

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

// D: Floats, or a tag of fewer lanes.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

// The upper half of each result lane is the value in bf16. The lower half has no meaning.
HWY_INLINE hn::Vec<hn::Rebind<uint32_t, Floats> > rounded_upper_half(FloatVector v) {
  const hn::Rebind<uint32_t, Floats> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto tie_to_even = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(tie_to_even, hn::Set(d32, 0x7FFFu)));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
  return hn::IfThenElse(nan, hn::Or(bits, hn::Set(d32, 0x400000u)), rounded);
}

HWY_INLINE hn::Vec<hn::Rebind<uint16_t, Floats> > rounded_bits(FloatVector v, Bf16) {
  const hn::Rebind<uint16_t, Floats> d16;
  return hn::TruncateTo(d16, hn::ShiftRight<16>(rounded_upper_half(v)));
}

// Loads twice as many bf16 as `d` has floats, the even elements into one vector and the odd ones into
// another. In memory, an even element and the odd one after it are the halves of a 32-bit vector lane, so no
// element moves to another lane.
template <class D>
HWY_INLINE void load_even_and_odd(D d, const Bf16* p, hn::Vec<D>& even, hn::Vec<D>& odd) {
  const hn::Rebind<uint32_t, D> d32;
  const hn::Repartition<uint16_t, D> d16;
  const auto both = hn::BitCast(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
  even = hn::BitCast(d, hn::ShiftLeft<16>(both));
  odd = hn::BitCast(d, hn::And(both, hn::Set(d32, 0xFFFF0000u)));
}
HWY_INLINE void store_even_and_odd(FloatVector even, FloatVector odd, Bf16* p) {
  const hn::Rebind<uint32_t, Floats> d32;
  const hn::Repartition<uint16_t, Floats> d16;
  const auto lower = hn::ShiftRight<16>(rounded_upper_half(even));
  const auto upper = hn::And(rounded_upper_half(odd), hn::Set(d32, 0xFFFF0000u));
  hn::StoreU(hn::BitCast(d16, hn::Or(lower, upper)), d16, reinterpret_cast<uint16_t*>(p));
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const F16* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

HWY_INLINE hn::Vec<hn::Rebind<uint16_t, Floats> > rounded_bits(FloatVector v, F16) {
  const hn::Rebind<uint16_t, Floats> d16;
  const hn::Rebind<hwy::float16_t, Floats> half;
  return hn::BitCast(d16, hn::DemoteTo(half, v));
}

template <class T>
HWY_INLINE void store(FloatVector v, Floats, T* p) {
  const hn::Rebind<uint16_t, Floats> d16;
  hn::StoreU(rounded_bits(v, T{}), d16, reinterpret_cast<uint16_t*>(p));
}

// Stores past the caches; p is aligned to the size of the 16-bit vector. Other threads may read the bytes
// after hwy::FlushStream().
template <class T>
HWY_INLINE void stream(FloatVector v, Floats, T* p) {
  const hn::Rebind<uint16_t, Floats> d16;
  hn::Stream(rounded_bits(v, T{}), d16, reinterpret_cast<uint16_t*>(p));
}

#endif

// Loads n values into the first n lanes and zeros into the others; n < lanes.
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

// Whole is a whole vector, Partial the first n lanes of one, so that a loop body is written once for both.
// zero_rest clears the lanes past n, before a sum.
struct Whole {
  HWY_INLINE FloatVector zero_rest(FloatVector v) const { return v; }
  template <class T>
  HWY_INLINE void stream(FloatVector v, T* p) const {
    HWY_NAMESPACE::stream(v, Floats(), p);
  }
  template <class T>
  HWY_INLINE FloatVector load(const T* p) const {
    return HWY_NAMESPACE::load(Floats(), p);
  }
  template <class T>
  HWY_INLINE void store(FloatVector v, T* p) const {
    HWY_NAMESPACE::store(v, Floats(), p);
  }
};
struct Partial {
  size_t n;
  HWY_INLINE FloatVector zero_rest(FloatVector v) const {
    return hn::IfThenElseZero(hn::FirstN(Floats(), n), v);
  }
  template <class T>
  HWY_INLINE void stream(FloatVector v, T* p) const {
    store(v, p);
  }
  template <class T>
  HWY_INLINE FloatVector load(const T* p) const {
    return load_n(Floats(), p, n);
  }
  template <class T>
  HWY_INLINE void store(FloatVector v, T* p) const {
    store_n(v, Floats(), p, n);
  }
};

// Calls body(i, Whole or Partial) for i = 0, lanes, 2 lanes, ... below n. Write `body` as a SLUICE_KERNEL
// lambda: it is inlined, so that the constants that it captures stay in registers.
template <class Body>
HWY_INLINE void for_each_vector(size_t n, const Body& body) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, Whole{});
  if (i < n) body(i, Partial{n - i});
}

// Sums of squares in double: value i belongs to sum i mod kSums. A square of an fp32 value is exact in
// double, so it does not matter whether the multiply-add is fused.
template <size_t kSums>
class SquareSums {
 public:
  template <class T>
  HWY_INLINE void add(const T* values, size_t count) {  // a multiple of kSums
    const hn::CappedTag<double, kSums> dd;
    const hn::Rebind<float, decltype(dd)> half;
    for (size_t j = 0; j < kSums; j += hn::Lanes(dd)) {
      auto sum = hn::Load(dd, sums_ + j);
      for (size_t i = j; i < count; i += kSums) {
        const auto value = hn::PromoteTo(dd, load(half, values + i));
        sum = hn::MulAdd(value, value, sum);
      }
      hn::Store(sum, dd, sums_ + j);
    }
  }
#if HWY_TARGET != HWY_SCALAR
  HWY_INLINE void add(const Bf16* values, size_t count) {
    const hn::CappedTag<double, kSums / 2> dd;
    const hn::Rebind<float, decltype(dd)> half;
    for (size_t j = 0; j < kSums; j += 2 * hn::Lanes(dd)) {
      hn::Vec<decltype(dd)> evens, odds;
      hn::LoadInterleaved2(dd, sums_ + j, evens, odds);
      for (size_t i = j; i < count; i += kSums) {
        hn::Vec<decltype(half)> even, odd;
        load_even_and_odd(half, values + i, even, odd);
        const auto e = hn::PromoteTo(dd, even), o = hn::PromoteTo(dd, odd);
        evens = hn::MulAdd(e, e, evens);
        odds = hn::MulAdd(o, o, odds);
      }
      hn::StoreInterleaved2(evens, odds, dd, sums_ + j);
    }
  }
#endif
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
