// Gates, and what elementwise ops compute from one element of each operand. Their backward computes the
// gradients of inputs 0 and 1. Included by .cu files only.
#pragma once

#include "gpu/cuda/base.h"

namespace sluice::cuda {

// 1 / (1 + e^-x): 1 for large x, 0 for large -x.
__device__ inline float sigmoid(float x) { return fast_reciprocal(1.0f + fast_exp2(x * -1.442695041f)); }

// The tanh form (Hendrycks, Gimpel 2016): 0.5 x (1 + tanh u) = x sigmoid(2 u) with 2 u = 2 sqrt(2 / pi) (x +
// 0.044715 x^3).
struct Gelu {
  static constexpr float kScale = 1.595769122f, kCubic = 0.044715f;
  __device__ static float part(float x) { return sigmoid(kScale * x * (1.0f + kCubic * x * x)); }
  __device__ static float value(float x) { return x * part(x); }
  __device__ static float derivative(float x) {
    const float s = part(x);
    return s + x * s * (1.0f - s) * kScale * (1.0f + 3.0f * kCubic * x * x);
  }
};

struct SwigluOp {
  static constexpr int kInputs = 2, kReads = 2;  // reads: inputs that backward reads
  __device__ static float forward(float gate, float up) { return gate * sigmoid(gate) * up; }
  __device__ static void backward(float gate, float up, float dy, float& d_gate, float& d_up) {
    const float s = sigmoid(gate);
    d_gate = dy * up * s * (1.0f + gate * (1.0f - s));
    d_up = dy * gate * s;
  }
};
struct GegluOp {
  static constexpr int kInputs = 2, kReads = 2;
  __device__ static float forward(float gate, float up) { return Gelu::value(gate) * up; }
  __device__ static void backward(float gate, float up, float dy, float& d_gate, float& d_up) {
    d_gate = dy * up * Gelu::derivative(gate);
    d_up = dy * Gelu::value(gate);
  }
};

// SwiGLU with a limit (OpAttributes::swiglu_limit). A comparison with NaN is false, so a NaN stays.
struct ClampedSwigluOp {
  float limit, alpha;

  __device__ float lower(float x) const { return x > limit ? limit : x; }
  __device__ float plus_one(float up) const {
    const float u = lower(up);
    return (u < -limit ? -limit : u) + 1.0f;
  }
  __device__ float forward(float gate, float up) const {
    const float g = lower(gate);
    return g * sigmoid(alpha * g) * plus_one(up);
  }
  __device__ void backward(float gate, float up, float dy, float& d_gate, float& d_up) const {
    const float g = lower(gate), s = sigmoid(alpha * g);
    d_gate = gate > limit ? 0.0f : dy * plus_one(up) * s * (1.0f + alpha * g * (1.0f - s));
    d_up = fabsf(up) > limit ? 0.0f : dy * g * s;
  }
};

}  // namespace sluice::cuda
