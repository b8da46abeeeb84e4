// Pieces of elementwise kernels, for the code of every vector target: activation functions with their
// derivatives, and operands. Files that use Highway's foreach_target compile this file once for each target.
#if defined(SLUICE_GPU_CPU_GATES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_GPU_CPU_GATES_INL_H_
#undef SLUICE_GPU_CPU_GATES_INL_H_
#else
#define SLUICE_GPU_CPU_GATES_INL_H_
#endif

#include "engine/base/simd/simd-inl.h"
#include "gpu/device.h"
// After simd-inl.h, which chooses the target:
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
using namespace sluice::HWY_NAMESPACE;

// e^-z, held below infinity so that no quotient of infinities arises; 1 / (1 + e^-z) errs by 1e-38 at most.
HWY_INLINE FloatVector exp_minus(FloatVector z) {
  const Floats d;
  return hn::Exp(d, hn::Min(hn::Neg(z), hn::Set(d, 88.0f)));  // e^88 = 1.7e38
}

// Element `begin` of an operand; nullptr stays nullptr.
template <class T>
HWY_INLINE T* at(const TensorView& view, uint64_t begin) {
  return view.data == nullptr ? nullptr : static_cast<T*>(view.data) + begin;
}

// An input's gradient from element `begin` on.
template <class T>
struct Gradient {
  T* data;
  const T* addend;
  Gradient(const TensorView& view, uint64_t begin)
      : data(at<T>(view, begin)),
        addend(view.addend == nullptr ? nullptr : static_cast<const T*>(view.addend) + begin) {}

  template <class Lanes>
  HWY_INLINE void put(FloatVector v, size_t i, Lanes lanes) const {
    if (addend != nullptr) v = hn::Add(v, lanes.load(addend + i));
    lanes.store(v, data + i);
  }
};

// gelu(x) = x/2 (1 + tanh u) = x / (1 + e^-2u), u = k (x + c x^3), k = sqrt(2/pi) (Hendrycks, Gimpel,
// arXiv:1606.08415).
constexpr float kGelu2K = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kGeluC = 0.044715f;

HWY_INLINE FloatVector gelu_2u(FloatVector x) {
  const Floats d;
  const FloatVector scale = hn::MulAdd(hn::Mul(x, x), hn::Set(d, kGelu2K * kGeluC), hn::Set(d, kGelu2K));
  return hn::Mul(x, scale);
}

// A gate's value and, in backward, its derivative.
struct Gate {
  FloatVector value, derivative;
};

// silu(g) = g / (1 + e^-g) (Shazeer, arXiv:2002.05202). With s = 1 / (1 + e^-g): d silu = s (1 + g (1-s)).
struct SiluGate {
  static HWY_INLINE FloatVector value(FloatVector g) {
    return hn::Div(g, hn::Add(hn::Set(Floats(), 1.0f), exp_minus(g)));
  }
  static HWY_INLINE Gate both(FloatVector g) {
    const FloatVector one = hn::Set(Floats(), 1.0f), inverse = exp_minus(g);
    const FloatVector s = hn::Div(one, hn::Add(one, inverse));
    return {hn::Mul(g, s), hn::Mul(s, hn::MulAdd(g, hn::Mul(inverse, s), one))};
  }
};

struct GeluGate {
  static HWY_INLINE FloatVector value(FloatVector g) {
    return hn::Div(g, hn::Add(hn::Set(Floats(), 1.0f), exp_minus(gelu_2u(g))));
  }
  static HWY_INLINE Gate both(FloatVector g) {
    const Floats d;
    const FloatVector one = hn::Set(d, 1.0f), inverse = exp_minus(gelu_2u(g));
    const FloatVector s = hn::Div(one, hn::Add(one, inverse));
    const FloatVector slope =
        hn::MulAdd(hn::Mul(g, g), hn::Set(d, 3 * kGelu2K * kGeluC), hn::Set(d, kGelu2K));
    return {hn::Mul(g, s), hn::MulAdd(hn::Mul(hn::Mul(g, s), hn::Mul(inverse, s)), slope, s)};
  }
};

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
