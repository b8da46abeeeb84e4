#include "gpu/cpu/rows.h"

#include "engine/base/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "engine/base/simd/simd-inl.h"
// After simd-inl.h, which chooses the target:
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
using namespace sluice::HWY_NAMESPACE;

void finish_row(DType precision, const float* sum, const void* bias, const void* addend, void* to,
                int64_t n) {
  with_precision(precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* b = static_cast<const T*>(bias);
    const T* before = static_cast<const T*>(addend);
    T* c = static_cast<T*>(to);
    for_each_vector(static_cast<size_t>(n), [&](size_t i, auto lanes) SLUICE_KERNEL {
      FloatVector v = lanes.load(sum + i);
      if (b != nullptr) v = hn::Add(v, lanes.load(b + i));
      if (before != nullptr) v = hn::Add(v, lanes.load(before + i));
      lanes.store(v, c + i);
    });
  });
}

void add_row(DType precision, const void* from, float* to, int64_t n) {
  with_precision(precision, [&](auto type) HWY_ATTR {
    const auto* x = static_cast<const decltype(type)*>(from);
    for_each_vector(static_cast<size_t>(n), [&](size_t i, auto lanes) SLUICE_KERNEL {
      lanes.store(hn::Add(lanes.load(to + i), lanes.load(x + i)), to + i);
    });
  });
}

void add_scaled_row(DType precision, const void* from, float factor, float* to, int64_t n) {
  const FloatVector f = hn::Set(Floats(), factor);
  with_precision(precision, [&](auto type) HWY_ATTR {
    const auto* x = static_cast<const decltype(type)*>(from);
    for_each_vector(static_cast<size_t>(n), [&](size_t i, auto lanes) SLUICE_KERNEL {
      lanes.store(fma(lanes.load(x + i), f, lanes.load(to + i)), to + i);
    });
  });
}

// x * 0 is NaN for infinities and NaN, otherwise zero. If one of these products is NaN, their sum makes the
// result NaN.
float finite_maximum(const float* x, int64_t n) {
  const Floats d;
  const FloatVector zero = hn::Zero(d), lowest = hn::Set(d, std::numeric_limits<float>::lowest());
  const size_t count = static_cast<size_t>(n), lanes = hn::Lanes(d);
  FloatVector largest = lowest, poison = zero;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const FloatVector v = load(d, x + i);
    largest = hn::Max(largest, v);
    poison = fma(v, zero, poison);
  }
  if (i < count) {
    const FloatVector v = load_n(d, x + i, count - i);
    largest = hn::Max(largest, hn::IfThenElse(hn::FirstN(d, count - i), v, lowest));
    poison = fma(v, zero, poison);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest)) + hn::GetLane(hn::SumOfLanes(d, poison));
}

// Sums of blocks are added in double, so that a row of a large vocabulary loses nothing.
double exponential_row(float* x, float shift, int64_t n) {
  const Floats d;
  if (!std::isfinite(shift)) {
    const FloatVector nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
    for_each_vector(static_cast<size_t>(n),
                    [&](size_t i, auto lanes) SLUICE_KERNEL { lanes.store(nan, x + i); });
    return std::numeric_limits<double>::quiet_NaN();
  }
  constexpr size_t kBlock = 1024;
  const FloatVector offset = hn::Set(d, shift);
  double total = 0;
  for (size_t begin = 0, count = static_cast<size_t>(n); begin < count; begin += kBlock) {
    FloatVector sum = hn::Zero(d);
    float* block = x + begin;
    for_each_vector(HWY_MIN(kBlock, count - begin), [&](size_t i, auto lanes) SLUICE_KERNEL {
      const FloatVector e = hn::Exp(d, hn::Sub(lanes.load(block + i), offset));
      lanes.store(e, block + i);
      sum = hn::Add(sum, lanes.zero_rest(e));
    });
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
  return total;
}

void scale_row(float* x, float factor, int64_t n) {
  const FloatVector f = hn::Set(Floats(), factor);
  for_each_vector(static_cast<size_t>(n), [&](size_t i, auto lanes) SLUICE_KERNEL {
    lanes.store(hn::Mul(lanes.load(x + i), f), x + i);
  });
}

void scale_and_round_row(DType precision, const float* from, float factor, void* to, int64_t n) {
  const FloatVector f = hn::Set(Floats(), factor);
  with_precision(precision, [&](auto type) HWY_ATTR {
    auto* out = static_cast<decltype(type)*>(to);
    for_each_vector(static_cast<size_t>(n), [&](size_t i, auto lanes) SLUICE_KERNEL {
      lanes.store(hn::Mul(lanes.load(from + i), f), out + i);
    });
  });
}

float dot_row(DType precision, const void* a, const void* b, int64_t n) {
  return with_precision(precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
    const Floats d;
    FloatVector sum = hn::Zero(d);
    for_each_vector(static_cast<size_t>(n), [&](size_t i, auto lanes) SLUICE_KERNEL {
      sum = fma(lanes.load(x + i), lanes.load(y + i), sum);
    });
    return hn::GetLane(hn::SumOfLanes(d, sum));
  });
}

void softmax_gradient_row(const float* p, float* dp, float delta, float scale, int64_t n) {
  const FloatVector shift = hn::Set(Floats(), delta), factor = hn::Set(Floats(), scale);
  for_each_vector(static_cast<size_t>(n), [&](size_t i, auto lanes) SLUICE_KERNEL {
    const FloatVector difference = hn::Sub(lanes.load(dp + i), shift);
    lanes.store(hn::Mul(hn::Mul(lanes.load(p + i), factor), difference), dp + i);
  });
}

// hn::Tanh gives numbers for NaN and infinities; x * 0 is NaN for these.
void soft_cap_row(float* x, float cap, float* slopes, int64_t n) {
  const Floats d;
  const FloatVector limit = hn::Set(d, cap), inverse = hn::Set(d, 1 / cap);
  const FloatVector zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  for_each_vector(static_cast<size_t>(n), [&](size_t i, auto lanes) SLUICE_KERNEL {
    const FloatVector v = hn::Mul(lanes.load(x + i), inverse);
    const FloatVector tanh = fma(v, zero, hn::Tanh(d, v));
    lanes.store(hn::Mul(tanh, limit), x + i);
    if (slopes != nullptr) lanes.store(hn::Sub(one, hn::Mul(tanh, tanh)), slopes + i);
  });
}

void soft_cap_slopes(const float* capped, float cap, float* slopes, int64_t n) {
  const FloatVector inverse = hn::Set(Floats(), 1 / cap), one = hn::Set(Floats(), 1.0f);
  for_each_vector(static_cast<size_t>(n), [&](size_t i, auto lanes) SLUICE_KERNEL {
    const FloatVector tanh = hn::Mul(lanes.load(capped + i), inverse);
    lanes.store(hn::Sub(one, hn::Mul(tanh, tanh)), slopes + i);
  });
}

void multiply_row(float* x, const float* factors, int64_t n) {
  for_each_vector(static_cast<size_t>(n), [&](size_t i, auto lanes) SLUICE_KERNEL {
    lanes.store(hn::Mul(lanes.load(x + i), lanes.load(factors + i)), x + i);
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
namespace {

HWY_EXPORT(finish_row);
HWY_EXPORT(add_row);
HWY_EXPORT(add_scaled_row);
HWY_EXPORT(finite_maximum);
HWY_EXPORT(exponential_row);
HWY_EXPORT(scale_row);
HWY_EXPORT(scale_and_round_row);
HWY_EXPORT(dot_row);
HWY_EXPORT(softmax_gradient_row);
HWY_EXPORT(soft_cap_row);
HWY_EXPORT(soft_cap_slopes);
HWY_EXPORT(multiply_row);

}  // namespace

void finish_row(DType precision, const float* sum, const void* bias, const void* addend, void* to,
                int64_t n) {
  HWY_DYNAMIC_DISPATCH(finish_row)(precision, sum, bias, addend, to, n);
}
void add_row(DType precision, const void* from, float* to, int64_t n) {
  HWY_DYNAMIC_DISPATCH(add_row)(precision, from, to, n);
}
void add_scaled_row(DType precision, const void* from, float factor, float* to, int64_t n) {
  HWY_DYNAMIC_DISPATCH(add_scaled_row)(precision, from, factor, to, n);
}
float finite_maximum(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(finite_maximum)(x, n); }
double exponential_row(float* x, float shift, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(exponential_row)(x, shift, n);
}
void scale_row(float* x, float factor, int64_t n) { HWY_DYNAMIC_DISPATCH(scale_row)(x, factor, n); }
void scale_and_round_row(DType precision, const float* from, float factor, void* to, int64_t n) {
  HWY_DYNAMIC_DISPATCH(scale_and_round_row)(precision, from, factor, to, n);
}
float dot_row(DType precision, const void* a, const void* b, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(dot_row)(precision, a, b, n);
}
void softmax_gradient_row(const float* p, float* dp, float delta, float scale, int64_t n) {
  HWY_DYNAMIC_DISPATCH(softmax_gradient_row)(p, dp, delta, scale, n);
}
void soft_cap_row(float* x, float cap, float* slopes, int64_t n) {
  HWY_DYNAMIC_DISPATCH(soft_cap_row)(x, cap, slopes, n);
}
void soft_cap_slopes(const float* capped, float cap, float* slopes, int64_t n) {
  HWY_DYNAMIC_DISPATCH(soft_cap_slopes)(capped, cap, slopes, n);
}
void multiply_row(float* x, const float* factors, int64_t n) {
  HWY_DYNAMIC_DISPATCH(multiply_row)(x, factors, n);
}

}  // namespace sluice::cpu
#endif
