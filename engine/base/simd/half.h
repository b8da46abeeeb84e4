// The two 16-bit floating-point formats as types, with scalar conversions that define the bits: to nearest
// even, subnormals kept, overflow to infinity, NaN stays NaN (quieted, its upper payload bits kept).
//
// Pure functions, any thread. The vector paths in simd-inl.h agree with these to the bit.
#pragma once

#include <bit>
#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/base/error.h"

namespace sluice {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

inline float to_float(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 31u, mantissa = x.bits & 0x3FFu;
  if (exponent == 0) {  // mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t quiet = exponent == 31 && mantissa != 0 ? 0x400000u : 0u;
  const uint32_t biased = exponent == 31 ? 255u : exponent + 112u;  // 127 - 15
  return std::bit_cast<float>(sign | biased << 23 | mantissa << 13 | quiet);
}

inline Bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

inline F16 to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t out;
  if (magnitude > 0x7F800000u) {
    out = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  } else if (magnitude >= 0x477FF000u) {  // 65520, half-way from 65504 to 2^16, goes to even: infinity
    out = 0x7C00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 1/2, whose last place is 2^-24, rounds
    out = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  } else {
    out = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return {static_cast<uint16_t>(sign | out)};
}

template <class T>
inline T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline Bf16 from_float<Bf16>(float x) {
  return to_bf16(x);
}
template <>
inline F16 from_float<F16>(float x) {
  return to_f16(x);
}

// Calls f with a value of the type that `precision` (bf16, f16 or f32) names.
template <class F>
decltype(auto) with_precision(DType precision, F&& f) {
  CHECK(precision == DType::bf16 || precision == DType::f16 || precision == DType::f32,
        "not a working precision");
  if (precision == DType::bf16) return f(Bf16{});
  if (precision == DType::f16) return f(F16{});
  return f(float{});
}

// Calls f with a value of the type `from` and one of the type `to`: the same type, or one of them is fp32.
template <class F>
decltype(auto) with_precisions(DType from, DType to, F&& f) {
  CHECK(from == to || from == DType::f32 || to == DType::f32, "a 16-bit format is not turned into the other");
  if (from == to) return with_precision(from, [&](auto type) { return f(type, type); });
  if (to == DType::f32) return with_precision(from, [&](auto type) { return f(type, float{}); });
  return with_precision(to, [&](auto type) { return f(float{}, type); });
}

}  // namespace sluice
