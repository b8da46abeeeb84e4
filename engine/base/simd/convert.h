// Conversions between fp32 and the 16-bit types, vectorised; any length and alignment.
#pragma once

#include <cstdint>

#include "engine/base/dtype.h"

namespace sluice {

// Rounding is to nearest even. For f32, both functions only copy.
void round_to(DType to, const float* from, void* out, uint64_t elements);
void widen(DType from, const void* in, float* out, uint64_t elements);

}  // namespace sluice
