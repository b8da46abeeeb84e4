// Vector kernels over one row, used by the cpu device's products, attention and loss.
//
// Pure functions, any thread, any alignment and length; rows must not overlap unless said. A result depends
// on values, length and, where it is a sum, the width of the processor's vectors, never on alignment or
// thread.
#pragma once

#include <cstdint>

#include "engine/graph/op.h"

namespace sluice::cpu {

// to = round(sum + bias + addend); bias, addend and to are in `precision`. bias and addend may be nullptr;
// addend may be `to`.
void finish_row(DType precision, const float* sum, const void* bias, const void* addend, void* to, int64_t n);

// to += from, which is in `precision`.
void add_row(DType precision, const void* from, float* to, int64_t n);

// to += factor * from, which is in `precision`.
void add_scaled_row(DType precision, const void* from, float factor, float* to, int64_t n);

// The largest of n > 0 values, or NaN if one of them is not finite.
float finite_maximum(const float* x, int64_t n);

// x = e^(x - shift); returns the sum of what was written. If shift is not finite, all is NaN; otherwise x
// must be finite.
double exponential_row(float* x, float shift, int64_t n);

// x *= factor
void scale_row(float* x, float factor, int64_t n);

// to = round(from * factor). `to` may begin where `from` does.
void scale_and_round_row(DType precision, const float* from, float factor, void* to, int64_t n);

// Sum of a * b, both in `precision`.
float dot_row(DType precision, const void* a, const void* b, int64_t n);
inline float dot_row(const float* a, const float* b, int64_t n) { return dot_row(DType::f32, a, b, n); }

// Softmax's backward: dp = scale * p * (dp - delta).
void softmax_gradient_row(const float* p, float* dp, float delta, float scale, int64_t n);

// x = cap * tanh(x / cap), NaN where x is not finite. `slopes`, unless nullptr, gets the derivative: 1 -
// tanh(x / cap)^2.
void soft_cap_row(float* x, float cap, float* slopes, int64_t n);

// slopes = 1 - (capped / cap)^2, the derivative of soft_cap_row where its result is `capped`.
void soft_cap_slopes(const float* capped, float cap, float* slopes, int64_t n);

// x *= factors
void multiply_row(float* x, const float* factors, int64_t n);

}  // namespace sluice::cpu
