// Rotary position embedding (Su et al., arXiv:2104.09864) in the rotate-half form, with llama3 scaling of
// the frequencies.
//
// Positions are cut into blocks of kPositions. A block's first angles go through cos and sin in double; each
// next position is one rotation further, also in double: 31 rotations lose a few 1e-15, far below fp32. All
// sequences of the micro-batch and all heads share the block's angles.
#include "engine/base/simd/targets.h"
#include "gpu/cpu/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/rope.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
using namespace sluice::HWY_NAMESPACE;

template <class T>
HWY_INLINE void rotate_head(const T* from, T* to, const T* addend, const float* cosine, const float* sine,
                            size_t half) {
  for_each_vector(half, [&](size_t i, auto lanes) SLUICE_KERNEL {
    const FloatVector c = lanes.load(cosine + i), s = lanes.load(sine + i);
    const FloatVector a = lanes.load(from + i), b = lanes.load(from + half + i);
    FloatVector first = hn::NegMulAdd(b, s, hn::Mul(a, c)), second = hn::MulAdd(a, s, hn::Mul(b, c));
    if (addend != nullptr) {
      first = hn::Add(first, lanes.load(addend + i));
      second = hn::Add(second, lanes.load(addend + half + i));
    }
    lanes.store(first, to + i);
    lanes.store(second, to + half + i);
  });
}

// All heads of one row of `columns`, by one position's angles [head_size/2].
void rotate_row(const TensorView& from, const TensorView& to, DType precision, int64_t row, int64_t columns,
                int64_t head_size, const float* cosine, const float* sine) {
  with_precision(precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* in = static_cast<const T*>(from.data) + row * columns;
    T* out = static_cast<T*>(to.data) + row * columns;
    const T* addend = static_cast<const T*>(to.addend);
    for (int64_t head = 0; head < columns; head += head_size)
      rotate_head(in + head, out + head, addend == nullptr ? nullptr : addend + row * columns + head, cosine,
                  sine, static_cast<size_t>(head_size / 2));
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
namespace {

HWY_EXPORT(rotate_row);

constexpr int64_t kPositions = 32;

// Radians per position of the pair `i` of a head.
double frequency(const OpAttributes& a, int64_t i) {
  const double plain =
      std::pow(a.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(a.head_size));
  const RopeScaling& s = a.rope_scaling;
  if (s.factor == 1) return plain;
  const double wavelength = 2 * std::numbers::pi / plain;
  if (wavelength > s.original_context / s.low) return plain / s.factor;
  if (wavelength < s.original_context / s.high) return plain;
  const double smooth = (s.original_context / wavelength - s.low) / (s.high - s.low);
  return (1 - smooth) * plain / s.factor + smooth * plain;
}

// One thread's workspace, each array [head_size/2]: cosines and sines of a position's angles, in fp32 and in
// double, and of the step to the next position.
struct Angles {
  double *cosine, *sine, *step_cosine, *step_sine;
  float *cosine32, *sine32;
};

uint64_t angles_bytes(const OpShapes& shapes) {
  const auto half = static_cast<uint64_t>(shapes.attributes.head_size / 2);
  return (half * (4 * sizeof(double) + 2 * sizeof(float)) + 63) / 64 * 64;
}

Angles angles_in(std::byte* scratch, int64_t half) {
  auto* d = reinterpret_cast<double*>(scratch);
  auto* f = reinterpret_cast<float*>(d + 4 * half);
  return {d, d + half, d + 2 * half, d + 3 * half, f, f + half};
}

void start_angles(const OpAttributes& attributes, int64_t position, double direction, const Angles& a) {
  for (int64_t i = 0; i < attributes.head_size / 2; ++i) {
    const double step = direction * frequency(attributes, i), angle = static_cast<double>(position) * step;
    a.cosine[i] = std::cos(angle);
    a.sine[i] = std::sin(angle);
    a.step_cosine[i] = std::cos(step);
    a.step_sine[i] = std::sin(step);
  }
}

// Writes the current position's angles in fp32 and moves on to the next.
void take_angles(int64_t half, const Angles& a) {
  for (int64_t i = 0; i < half; ++i) {
    const double c = a.cosine[i], s = a.sine[i];
    a.cosine32[i] = static_cast<float>(c);
    a.sine32[i] = static_cast<float>(s);
    a.cosine[i] = c * a.step_cosine[i] - s * a.step_sine[i];
    a.sine[i] = s * a.step_cosine[i] + c * a.step_sine[i];
  }
}

// direction 1: forward; -1: the inverse rotation, which is the transpose.
void rotate(const OpCall& call, const TensorView& from, const TensorView& to, double direction,
            Workers& workers) {
  const OpShapes& shapes = *call.shapes;
  const OpAttributes& attributes = shapes.attributes;
  const int64_t columns = shapes.inputs[0].back(), rows = element_count(shapes.inputs[0]) / columns;
  const int64_t sequence = attributes.sequence, half = attributes.head_size / 2;
  const uint64_t stride = angles_bytes(shapes);
  workers.parallel_for((sequence + kPositions - 1) / kPositions, [&](int64_t block, int thread) {
    const Angles angles = angles_in(call.workspace + static_cast<uint64_t>(thread) * stride, half);
    const int64_t begin = block * kPositions, end = std::min(sequence, begin + kPositions);
    start_angles(attributes, begin, direction, angles);
    for (int64_t position = begin; position < end; ++position) {
      take_angles(half, angles);
      for (int64_t row = position; row < rows; row += sequence) {
        HWY_DYNAMIC_DISPATCH(rotate_row)
        (from, to, shapes.precision, row, columns, attributes.head_size, angles.cosine32, angles.sine32);
      }
    }
  });
}

}  // namespace

void rope_forward(const OpCall& call, const Resources& resources) {
  rotate(call, call.inputs[0], {call.outputs[0].data}, 1, resources.workers);
}

void rope_backward(const OpCall& call, const Resources& resources) {
  if (call.input_gradients[0].data == nullptr) return;
  rotate(call, call.output_gradients[0], call.input_gradients[0], -1, resources.workers);
}

uint64_t rope_workspace_bytes(const OpShapes& shapes, Pass, const Resources& resources) {
  return static_cast<uint64_t>(resources.workers.threads()) * angles_bytes(shapes);
}

}  // namespace sluice::cpu
#endif
