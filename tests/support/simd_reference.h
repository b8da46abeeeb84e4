// What vector code is compared with: conversions to and from 16 bits by exact arithmetic, and streams of any
// alignment that show writes beyond their ends.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace sluice {

// A binary floating-point format with subnormals and infinities.
struct Format {
  int fraction_bits, exponent_min, exponent_max;  // of normal numbers, significand in [1, 2)
  uint16_t infinity;
};
constexpr Format kBf16{7, -126, 127, 0x7F80}, kF16{10, -14, 15, 0x7C00};

inline uint16_t reference_round(const Format& f, float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return 0xFFFF;  // stands for any NaN
  if (std::isinf(x)) return sign | f.infinity;
  if (x == 0) return sign;
  const double magnitude = std::fabs(static_cast<double>(x));
  const int exponent = std::max(std::ilogb(magnitude), f.exponent_min);
  const double unit = std::ldexp(1.0, exponent - f.fraction_bits);
  const double steps = std::nearbyint(magnitude / unit);  // exact quotient, ties to even
  if (steps * unit >= std::ldexp(2.0, f.exponent_max)) return sign | f.infinity;
  // Counted from the smallest subnormal, codes are consecutive across exponents.
  const double per_exponent = std::ldexp(1.0, f.fraction_bits);
  return sign | static_cast<uint16_t>(steps + per_exponent * (exponent - f.exponent_min));
}

inline float reference_widen(const Format& f, uint16_t bits) {
  const int magnitude = bits & 0x7FFF;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (magnitude > f.infinity) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude == f.infinity) return static_cast<float>(sign * std::numeric_limits<double>::infinity());
  const int per_exponent = 1 << f.fraction_bits, exponent = magnitude / per_exponent;
  const double steps = magnitude % per_exponent + (exponent > 0 ? per_exponent : 0);
  return static_cast<float>(sign *
                            std::ldexp(steps, std::max(exponent, 1) - 1 + f.exponent_min - f.fraction_bits));
}

inline bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

inline bool same16(const Format& f, uint16_t a, uint16_t b) {
  return ((a & 0x7FFF) > f.infinity && (b & 0x7FFF) > f.infinity) || a == b;
}

// A copy of `values`, `offset` bytes off a 64-byte boundary, between guard bytes that must not change.
template <class T>
class Stream {
 public:
  Stream(const std::vector<T>& values, size_t offset) : count_(values.size()), offset_(offset) {
    storage_.assign(count_ * sizeof(T) + offset + 3 * kGuard, std::byte{0xA5});
    if (count_ > 0) std::memcpy(data(), values.data(), count_ * sizeof(T));
  }
  T* data() {
    const auto base = (reinterpret_cast<uintptr_t>(storage_.data()) + kGuard - 1) / kGuard * kGuard + kGuard;
    return reinterpret_cast<T*>(base + offset_);
  }
  T operator[](size_t i) {
    T value;
    std::memcpy(&value, reinterpret_cast<std::byte*>(data()) + i * sizeof(T), sizeof(T));
    return value;
  }
  bool guards_hold() {
    const auto* begin = reinterpret_cast<std::byte*>(data());
    const std::byte* end = begin + count_ * sizeof(T);
    for (const std::byte* p = storage_.data(); p != storage_.data() + storage_.size(); ++p)
      if ((p < begin || p >= end) && *p != std::byte{0xA5}) return false;
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;  // bytes before and after every stream
  size_t count_, offset_;
  std::vector<std::byte> storage_;
};

}  // namespace sluice
