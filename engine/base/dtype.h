// Number types of tensors.
#pragma once

#include <cstdint>

namespace sluice {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, u8 };
constexpr uint64_t dtype_bytes(DType t) {
  switch (t) {
    case DType::f64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}
constexpr const char* dtype_name(DType t) {
  switch (t) {
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::f64:
      return "fp64";
    case DType::i32:
      return "int32";
    case DType::u8:
      return "uint8";
  }
  return "?";
}

}  // namespace sluice
