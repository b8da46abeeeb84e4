// Tensors in a working precision and workspaces with guard bytes behind them, for tests of the cpu device.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/simd/convert.h"
#include "gpu/device.h"

namespace sluice::testing_support {

inline constexpr std::byte kGuard{0xA5};

// A number in [-1, 1), a function of seed and index.
inline float number(uint64_t seed, uint64_t index) {
  uint64_t z = (seed * 1000003 + index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z ^= z >> 27;
  return static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
}

// The largest relative error of rounding an fp32 value to the type.
inline double rounding(DType type) { return type == DType::bf16 ? 0x1p-8 : type == DType::f16 ? 0x1p-11 : 0; }

// A tensor in a working precision with guard bytes behind it.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType type, int64_t count)
      : type_(type), count_(static_cast<size_t>(count)), bytes_(bytes() + 64, kGuard) {}
  static Tensor random(DType type, int64_t count, uint64_t seed, float size = 1) {
    Tensor t(type, count);
    std::vector<float> values(t.count_);
    for (size_t i = 0; i < t.count_; ++i) values[i] = size * number(seed, i);
    round_to(type, values.data(), t.data(), t.count_);
    return t;
  }
  static Tensor filled(DType type, int64_t count, float value) {
    Tensor t(type, count);
    const std::vector<float> values(t.count_, value);
    round_to(type, values.data(), t.data(), t.count_);
    return t;
  }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  TensorView view(bool adds = false) { return {data(), adds ? data() : nullptr}; }
  std::vector<float> values() const {
    std::vector<float> out(count_);
    widen(type_, data(), out.data(), count_);
    return out;
  }
  void set(size_t i, float value) { round_to(type_, &value, bytes_.data() + i * dtype_bytes(type_), 1); }
  size_t bytes() const { return count_ * dtype_bytes(type_); }
  bool guarded() const {
    for (size_t i = bytes(); i < bytes_.size(); ++i)
      if (bytes_[i] != kGuard) return false;
    return true;
  }
  bool operator==(const Tensor& other) const { return bytes_ == other.bytes_; }

 private:
  DType type_ = DType::f32;
  size_t count_ = 0;
  std::vector<std::byte> bytes_;
};

// Workspace at an aligned address, with guard bytes behind it.
class Workspace {
 public:
  explicit Workspace(uint64_t bytes) : bytes_(bytes), storage_(bytes + 128, kGuard) {}
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    return storage_.data() + (64 - address % 64) % 64;
  }
  bool guarded() {
    const std::byte* end = data() + bytes_;
    for (const std::byte* p = end; p < storage_.data() + storage_.size(); ++p)
      if (*p != kGuard) return false;
    return true;
  }

 private:
  uint64_t bytes_;
  std::vector<std::byte> storage_;
};

}  // namespace sluice::testing_support
