// Rotary position embedding (Su et al., arXiv:2104.09864) in the rotate-half form.
//
// Positions are cut into blocks of kPositions. A block's first angles go through cos and sin in double; each
// next position is one rotation further, also in double: 31 rotations lose a few 1e-15, far below fp32. So a
// position's angles have the same bits in whichever row it occurs. All heads share a position's angles. All
// sequences of the micro-batch share them too, if each sequence is one document.
#include "engine/base/simd/targets.h"
#include "gpu/cpu/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/rope.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

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

template <class T>
HWY_INLINE void copy_columns(const T* from, T* to, const T* addend, size_t count) {
  for_each_vector(count, [&](size_t i, auto lanes) SLUICE_KERNEL {
    FloatVector v = lanes.load(from + i);
    if (addend != nullptr) v = hn::Add(v, lanes.load(addend + i));
    lanes.store(v, to + i);
  });
}

// Rotates one row by one position's angles [pairs].
void rotate_row(const TensorView& from, const TensorView& to, const OpShapes& shapes, int64_t row,
                const float* cosine, const float* sine) {
  with_precision(shapes.precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const OpAttributes& a = shapes.attributes;
    const int64_t columns = shapes.inputs[0][1], rotated = a.heads * a.head_size;
    const auto pairs = static_cast<int64_t>(a.frequencies.size());
    const T* in = static_cast<const T*>(from.data) + row * columns;
    T* out = static_cast<T*>(to.data) + row * columns;
    const T* addend = to.addend == nullptr ? nullptr : static_cast<const T*>(to.addend) + row * columns;
    const auto before = [&](int64_t c) HWY_ATTR { return addend == nullptr ? nullptr : addend + c; };
    for (int64_t head = 0; head < rotated; head += a.head_size) {
      rotate_head(in + head, out + head, before(head), cosine, sine, static_cast<size_t>(pairs));
      const int64_t rest = head + 2 * pairs;
      copy_columns(in + rest, out + rest, before(rest), static_cast<size_t>(head + a.head_size - rest));
    }
    copy_columns(in + rotated, out + rotated, before(rotated), static_cast<size_t>(columns - rotated));
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
namespace {

HWY_EXPORT(rotate_row);

constexpr int64_t kPositions = 32;

// One thread's workspace, each array [pairs]: cosines and sines of a position's angles, in fp32 and in
// double, and of the step to the next position.
struct Angles {
  double *cosine, *sine, *step_cosine, *step_sine;
  float *cosine32, *sine32;
};

int64_t pairs_of(const OpShapes& shapes) {
  return static_cast<int64_t>(shapes.attributes.frequencies.size());
}

uint64_t angles_bytes(const OpShapes& shapes) {
  const auto pairs = static_cast<uint64_t>(pairs_of(shapes));
  return (pairs * (4 * sizeof(double) + 2 * sizeof(float)) + 63) / 64 * 64;
}

Angles angles_in(std::byte* scratch, int64_t pairs) {
  auto* d = reinterpret_cast<double*>(scratch);
  auto* f = reinterpret_cast<float*>(d + 4 * pairs);
  return {d, d + pairs, d + 2 * pairs, d + 3 * pairs, f, f + pairs};
}

// Computes the angles of `position`, the first of a block.
void start_angles(const OpShapes& shapes, int64_t position, double direction, const Angles& a) {
  for (int64_t i = 0; i < pairs_of(shapes); ++i) {
    const double step = direction * shapes.attributes.frequencies[static_cast<size_t>(i)],
                 angle = static_cast<double>(position) * step;
    a.cosine[i] = std::cos(angle);
    a.sine[i] = std::sin(angle);
    a.step_cosine[i] = std::cos(step);
    a.step_sine[i] = std::sin(step);
  }
}

// Writes the current position's angles in fp32, times the factor, and moves on to the next.
void take_angles(const OpShapes& shapes, const Angles& a) {
  const double factor = shapes.attributes.factor();
  for (int64_t i = 0; i < pairs_of(shapes); ++i) {
    const double c = a.cosine[i], s = a.sine[i];
    a.cosine32[i] = static_cast<float>(factor * c);
    a.sine32[i] = static_cast<float>(factor * s);
    a.cosine[i] = c * a.step_cosine[i] - s * a.step_sine[i];
    a.sine[i] = s * a.step_cosine[i] + c * a.step_sine[i];
  }
}

// A rotation of one call. direction 1: forward; -1: the inverse rotation, which is the transpose.
struct Rotation {
  const OpShapes& shapes;
  TensorView from, to;
  const int32_t* begins;  // of documents; nullptr: every sequence is one
  double direction;

  void rotate(int64_t row, const Angles& angles) const {
    HWY_DYNAMIC_DISPATCH(rotate_row)(from, to, shapes, row, angles.cosine32, angles.sine32);
  }
  // Rotates the rows at positions [begin, end) of all sequences.
  void rotate_positions(int64_t begin, int64_t end, const Angles& angles) const {
    start_angles(shapes, begin, direction, angles);
    for (int64_t position = begin; position < end; ++position) {
      take_angles(shapes, angles);
      for (int64_t row = position; row < shapes.inputs[0][0]; row += shapes.attributes.sequence)
        rotate(row, angles);
    }
  }
  // Rotates rows [begin, end). Positions are counted from the beginnings of documents.
  void rotate_rows(int64_t begin, int64_t end, const Angles& angles) const {
    int64_t next = -1;  // the position whose angles come next
    for (int64_t row = begin; row < end; ++row) {
      // An idle row has position 0.
      const int64_t position = std::max<int64_t>(0, row % shapes.attributes.sequence - begins[row]);
      if (position != next || position % kPositions == 0) {
        start_angles(shapes, position / kPositions * kPositions, direction, angles);
        for (int64_t skipped = position % kPositions; skipped > 0; --skipped) take_angles(shapes, angles);
      }
      take_angles(shapes, angles);
      rotate(row, angles);
      next = position + 1;
    }
  }
};

void run(const Rotation& rotation, std::byte* workspace, Workers& workers) {
  const OpShapes& shapes = rotation.shapes;
  const uint64_t stride = angles_bytes(shapes);
  const int64_t items =
      rotation.begins == nullptr ? shapes.attributes.sequence : shapes.inputs[0][0];  // positions or rows
  workers.parallel_for((items + kPositions - 1) / kPositions, [&](int64_t block, int thread) {
    const Angles angles = angles_in(workspace + static_cast<uint64_t>(thread) * stride, pairs_of(shapes));
    const int64_t begin = block * kPositions, end = std::min(items, begin + kPositions);
    if (rotation.begins == nullptr)
      rotation.rotate_positions(begin, end, angles);
    else
      rotation.rotate_rows(begin, end, angles);
  });
}

const int32_t* begins_of(const OpCall& call) {
  return static_cast<const int32_t*>(view_of(call.inputs, 1).data);
}

}  // namespace

void rope_forward(const OpCall& call, const Resources& resources) {
  run({*call.shapes, call.inputs[0], {call.outputs[0].data}, begins_of(call), 1}, call.workspace,
      resources.workers);
}

void rope_backward(const OpCall& call, const Resources& resources) {
  if (call.input_gradients[0].data == nullptr) return;
  run({*call.shapes, call.output_gradients[0], call.input_gradients[0], begins_of(call), -1}, call.workspace,
      resources.workers);
}

uint64_t rope_workspace_bytes(const OpShapes& shapes, Pass, const Resources& resources) {
  return static_cast<uint64_t>(resources.workers.threads()) * angles_bytes(shapes);
}

}  // namespace sluice::cpu
#endif
