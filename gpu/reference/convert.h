// Scalar conversions of the reference device between the working precisions and double, and views that read
// and write tensors as double. They are written for clarity. The vectorised conversions share no code with
// these, and tests compare the two.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "engine/base/error.h"
#include "gpu/device.h"

namespace sluice::reference {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline double widen(float value) { return value; }
inline double widen(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }
inline double widen(F16 value) {
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7FFF) << 13;
  const bool finite = (value.bits & 0x7C00) != 0x7C00;
  // Moving the exponent's bias from 15 to 127 is a factor 2^112, exact for subnormals too.
  const float wide =
      finite ? std::bit_cast<float>(magnitude) * 0x1p112f : std::bit_cast<float>(magnitude | 0x7F800000);
  return (value.bits & 0x8000) != 0 ? -wide : wide;
}

// The number with `digits` significant binary digits that is nearest to x, ties to even. Below
// 2^least_exponent the spacing stays constant, as for subnormals.
inline double nearest(double x, int digits, int least_exponent) {
  if (!std::isfinite(x) || x == 0) return x;
  const double spacing = std::ldexp(1.0, std::max(std::ilogb(x), least_exponent) - digits + 1);
  return std::nearbyint(x / spacing) * spacing;
}

// Rounds to nearest even; overflow gives infinity.
template <typename T>
T narrow(double value);
template <>
inline float narrow<float>(double value) {
  return static_cast<float>(value);
}
template <>
inline Bf16 narrow<Bf16>(double value) {
  const auto exact = static_cast<float>(nearest(value, 8, -126));
  return {static_cast<uint16_t>(std::bit_cast<uint32_t>(exact) >> 16)};
}
template <>
inline F16 narrow<F16>(double value) {
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(nearest(value, 11, -14));
  uint32_t bits = 0;
  if (std::isnan(value)) {
    bits = 0x7E00;
  } else if (magnitude >= 0x1p16) {
    bits = 0x7C00;
  } else if (magnitude < 0x1p-14) {
    bits = static_cast<uint32_t>(magnitude * 0x1p24);
  } else {
    bits = (std::bit_cast<uint32_t>(static_cast<float>(magnitude)) >> 13) - (112 << 10);
  }
  return {static_cast<uint16_t>(sign | bits)};
}

// A tensor of T, read and written as double. Without data, put() does nothing.
template <typename T>
struct Values {
  explicit Values(const TensorView& view)
      : data(static_cast<T*>(view.data)), addend(static_cast<const T*>(view.addend)) {}
  explicit operator bool() const { return data != nullptr; }
  double operator[](int64_t i) const { return widen(data[i]); }
  void put(int64_t i, double value) const {
    if (data != nullptr) data[i] = narrow<T>(addend != nullptr ? widen(addend[i]) + value : value);
  }

  T* data;
  const T* addend;
};

// A parameter's gradient, in fp32. put() adds to it unless the op's rule and the call say that it is
// overwritten.
inline Values<float> parameter_gradient(const OpCall& call, size_t i) {
  const TensorView& view = call.parameter_gradients[i];
  const bool can_overwrite = op_rule(call.shapes->kind).overwrites_parameters >> i & 1;
  return Values<float>({view.data, can_overwrite ? view.addend : view.data});
}

// Calls f with a value of the working precision's type.
template <typename F>
void with_precision(DType precision, F f) {
  switch (precision) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(Bf16{});
    case DType::f16:
      return f(F16{});
    default:
      CHECK(false, "not a working precision");
  }
}

inline double* workspace_of(const OpCall& call) { return reinterpret_cast<double*>(call.workspace); }

}  // namespace sluice::reference
