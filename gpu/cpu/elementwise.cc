// Elementwise ops: GELU, SwiGLU, add, add_sum, repeat; and the rounding of gradients.
#include "engine/base/simd/targets.h"
#include "gpu/cpu/gated_range.h"
#include "gpu/cpu/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/elementwise.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "gpu/cpu/gates-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
using namespace sluice::HWY_NAMESPACE;

void gelu_forward_range(const OpCall& call, uint64_t begin, uint64_t count) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* x = at<const T>(call.inputs[0], begin);
    T* y = at<T>(call.outputs[0], begin);
    const FloatVector one = hn::Set(Floats(), 1.0f);
    for_each_vector(count, [&](size_t i, auto lanes) SLUICE_KERNEL {
      const FloatVector v = lanes.load(x + i);
      lanes.store(hn::Div(v, hn::Add(one, exp_minus(gelu_2u(v)))), y + i);
    });
  });
}

// With s = 1 / (1 + e^-2u): d gelu = s + x s (1-s) 2u', 2u' = 2k (1 + 3c x^2).
void gelu_backward_range(const OpCall& call, uint64_t begin, uint64_t count) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* x = at<const T>(call.inputs[0], begin);
    const T* dy = at<const T>(call.output_gradients[0], begin);
    const Gradient<T> dx(call.input_gradients[0], begin);
    if (dx.data == nullptr) return;
    const Floats d;
    const FloatVector one = hn::Set(d, 1.0f);
    for_each_vector(count, [&](size_t i, auto lanes) SLUICE_KERNEL {
      const FloatVector v = lanes.load(x + i);
      const FloatVector inverse = exp_minus(gelu_2u(v));
      const FloatVector s = hn::Div(one, hn::Add(one, inverse));
      const FloatVector slope =
          hn::MulAdd(hn::Mul(v, v), hn::Set(d, 3 * kGelu2K * kGeluC), hn::Set(d, kGelu2K));
      const FloatVector derivative = hn::MulAdd(hn::Mul(hn::Mul(v, s), hn::Mul(inverse, s)), slope, s);
      dx.put(hn::Mul(lanes.load(dy + i), derivative), i, lanes);
    });
  });
}

template <class GateOf>
HWY_INLINE void gated_forward(const OpCall& call, const GatedRange& range) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* gate = at<const T>(call.inputs[0], range.gate);
    const T* up = at<const T>(call.inputs[range.up_input], range.up);
    T* y = at<T>(call.outputs[0], range.out);
    for_each_vector(range.count, [&](size_t i, auto lanes) SLUICE_KERNEL {
      lanes.store(hn::Mul(GateOf::value(lanes.load(gate + i)), lanes.load(up + i)), y + i);
    });
  });
}

template <class GateOf>
HWY_INLINE void gated_backward(const OpCall& call, const GatedRange& range) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* gate = at<const T>(call.inputs[0], range.gate);
    const T* up = at<const T>(call.inputs[range.up_input], range.up);
    const T* dy = at<const T>(call.output_gradients[0], range.out);
    const Gradient<T> dgate(call.input_gradients[0], range.gate);
    const Gradient<T> dup(call.input_gradients[range.up_input], range.up);
    for_each_vector(range.count, [&](size_t i, auto lanes) SLUICE_KERNEL {
      const FloatVector u = lanes.load(up + i), dv = lanes.load(dy + i);
      const Gate g = GateOf::both(lanes.load(gate + i));
      if (dgate.data != nullptr) dgate.put(hn::Mul(hn::Mul(dv, u), g.derivative), i, lanes);
      if (dup.data != nullptr) dup.put(hn::Mul(dv, g.value), i, lanes);
    });
  });
}

void swiglu_forward_range(const OpCall& call, const GatedRange& range) {
  call.shapes->attributes.gelu_gate ? gated_forward<GeluGate>(call, range)
                                    : gated_forward<SiluGate>(call, range);
}

void swiglu_backward_range(const OpCall& call, const GatedRange& range) {
  call.shapes->attributes.gelu_gate ? gated_backward<GeluGate>(call, range)
                                    : gated_backward<SiluGate>(call, range);
}

// y = a + b, where b is of type B.
template <class T, class B>
HWY_INLINE void add_pairs(const OpCall& call, uint64_t begin, uint64_t count) {
  const T* a = at<const T>(call.inputs[0], begin);
  const B* b = at<const B>(call.inputs[1], begin);
  T* y = at<T>(call.outputs[0], begin);
  for_each_vector(count, [&](size_t i, auto lanes) SLUICE_KERNEL {
    lanes.store(hn::Add(lanes.load(a + i), lanes.load(b + i)), y + i);
  });
}

void add_forward_range(const OpCall& call, uint64_t begin, uint64_t count) {
  with_precision(call.shapes->precision,
                 [&](auto type) HWY_ATTR { add_pairs<decltype(type), decltype(type)>(call, begin, count); });
}

void add_sum_forward_range(const OpCall& call, uint64_t begin, uint64_t count) {
  with_precision(call.shapes->precision,
                 [&](auto type) HWY_ATTR { add_pairs<decltype(type), float>(call, begin, count); });
}

// Writes one gradient after the other. If both go to one tensor, the second is added to the first.
void add_backward_range(const OpCall& call, uint64_t begin, uint64_t count) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* dy = at<const T>(call.output_gradients[0], begin);
    for (const TensorView& gradient : call.input_gradients) {
      const Gradient<T> dx(gradient, begin);
      if (dx.data == nullptr) continue;
      for_each_vector(count,
                      [&](size_t i, auto lanes) SLUICE_KERNEL { dx.put(lanes.load(dy + i), i, lanes); });
    }
  });
}

void add_sum_backward_range(const OpCall& call, uint64_t begin, uint64_t count) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* dy = at<const T>(call.output_gradients[0], begin);
    const Gradient<T> dx(call.input_gradients[0], begin);
    const Gradient<float> d_sum(call.input_gradients[1], begin);
    for_each_vector(count, [&](size_t i, auto lanes) SLUICE_KERNEL {
      const FloatVector v = lanes.load(dy + i);
      if (dx.data != nullptr) dx.put(v, i, lanes);
      if (d_sum.data != nullptr) d_sum.put(v, i, lanes);
    });
  });
}

// Rounds one block; returns the sum of the squares of what was written. Element i belongs to sum i mod
// kSums.
template <class T>
HWY_INLINE double round_block_as(const Accumulators& from, uint64_t first, T* to, size_t elements) {
  constexpr size_t kSums = 16;
  HWY_ALIGN float written[kSums];
  SquareSums<kSums> squares;
  for (size_t begin = 0; begin < elements; begin += kSums) {
    const size_t count = HWY_MIN(kSums, elements - begin);
    if (count < kSums) std::fill(written, written + kSums, 0.0f);
    for_each_vector(count, [&](size_t i, auto lanes) SLUICE_KERNEL {
      auto value = lanes.load(from.of[0] + first + begin + i);
      for (uint32_t a = 1; a < from.count; ++a)
        value = hn::Add(value, lanes.load(from.of[a] + first + begin + i));
      lanes.store(value, to + begin + i);
      lanes.store(lanes.load(to + begin + i), written + i);
    });
    squares.add(written, kSums);
  }
  return squares.total();
}

double round_block(const Accumulators& from, uint64_t first, void* to, DType precision, uint64_t elements) {
  return with_precision(precision, [&](auto type) HWY_ATTR {
    return round_block_as(from, first, static_cast<decltype(type)*>(to), elements);
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
namespace {

HWY_EXPORT(gelu_forward_range);
HWY_EXPORT(gelu_backward_range);
HWY_EXPORT(swiglu_forward_range);
HWY_EXPORT(swiglu_backward_range);
HWY_EXPORT(add_forward_range);
HWY_EXPORT(add_backward_range);
HWY_EXPORT(add_sum_forward_range);
HWY_EXPORT(add_sum_backward_range);
HWY_EXPORT(round_block);

// Elements of one task, which then takes tens of microseconds.
constexpr uint64_t kRange = 16384;

template <class Body>
void for_each_range(uint64_t elements, Workers& workers, const Body& body) {
  const auto ranges = static_cast<int64_t>((elements + kRange - 1) / kRange);
  workers.parallel_for(ranges, [&](int64_t index, int) {
    const uint64_t begin = static_cast<uint64_t>(index) * kRange;
    body(begin, std::min(kRange, elements - begin));
  });
}

uint64_t element_count_of(const OpCall& call) {
  return static_cast<uint64_t>(element_count(call.shapes->inputs[0]));
}

// Calls body(range) for ranges of up to kRange elements or, if the inputs are packed, for each row.
template <class Body>
void for_each_gated_range(const OpCall& call, Workers& workers, const Body& body) {
  const Shape& y = call.shapes->outputs[0];
  if (call.shapes->inputs.size() == 2)
    return for_each_range(static_cast<uint64_t>(element_count(y)), workers,
                          [&](uint64_t begin, uint64_t count) {
                            body({begin, begin, begin, count, 1});
                          });
  const auto columns = static_cast<uint64_t>(y[1]);
  const int64_t group = std::max<int64_t>(1, static_cast<int64_t>(kRange / columns));  // rows of one task
  workers.parallel_for((y[0] + group - 1) / group, [&](int64_t index, int) {
    for (int64_t r = index * group; r < std::min(y[0], (index + 1) * group); ++r) {
      const uint64_t row = static_cast<uint64_t>(r) * columns;
      body({2 * row, 2 * row + columns, row, columns, 0});
    }
  });
}

}  // namespace

void gelu_forward(const OpCall& call, const Resources& resources) {
  for_each_range(element_count_of(call), resources.workers, [&](uint64_t begin, uint64_t count) {
    HWY_DYNAMIC_DISPATCH(gelu_forward_range)(call, begin, count);
  });
}

void gelu_backward(const OpCall& call, const Resources& resources) {
  for_each_range(element_count_of(call), resources.workers, [&](uint64_t begin, uint64_t count) {
    HWY_DYNAMIC_DISPATCH(gelu_backward_range)(call, begin, count);
  });
}

void swiglu_forward(const OpCall& call, const Resources& resources) {
  for_each_gated_range(call, resources.workers, [&](const GatedRange& range) {
    HWY_DYNAMIC_DISPATCH(swiglu_forward_range)(call, range);
  });
}

void swiglu_backward(const OpCall& call, const Resources& resources) {
  for_each_gated_range(call, resources.workers, [&](const GatedRange& range) {
    HWY_DYNAMIC_DISPATCH(swiglu_backward_range)(call, range);
  });
}

void add_forward(const OpCall& call, const Resources& resources) {
  for_each_range(element_count_of(call), resources.workers, [&](uint64_t begin, uint64_t count) {
    HWY_DYNAMIC_DISPATCH(add_forward_range)(call, begin, count);
  });
}

void add_backward(const OpCall& call, const Resources& resources) {
  for_each_range(element_count_of(call), resources.workers, [&](uint64_t begin, uint64_t count) {
    HWY_DYNAMIC_DISPATCH(add_backward_range)(call, begin, count);
  });
}

void add_sum_forward(const OpCall& call, const Resources& resources) {
  for_each_range(element_count_of(call), resources.workers, [&](uint64_t begin, uint64_t count) {
    HWY_DYNAMIC_DISPATCH(add_sum_forward_range)(call, begin, count);
  });
}

void add_sum_backward(const OpCall& call, const Resources& resources) {
  for_each_range(element_count_of(call), resources.workers, [&](uint64_t begin, uint64_t count) {
    HWY_DYNAMIC_DISPATCH(add_sum_backward_range)(call, begin, count);
  });
}

void repeat_forward(const OpCall& call, const Resources& resources) {
  const uint64_t elements = element_count_of(call);
  const auto all = static_cast<uint64_t>(element_count(call.shapes->outputs[0]));
  for_each_range(elements, resources.workers, [&](uint64_t begin, uint64_t count) {
    const auto* const x = static_cast<const float*>(call.inputs[0].data) + begin;
    auto* const y = static_cast<float*>(call.outputs[0].data);
    for (uint64_t part = begin; part < all; part += elements) std::copy_n(x, count, y + part);
  });
}

// Parts are added in order, and the addend last.
void repeat_backward(const OpCall& call, const Resources& resources) {
  const uint64_t elements = element_count_of(call);
  const auto all = static_cast<uint64_t>(element_count(call.shapes->outputs[0]));
  const auto* const dy = static_cast<const float*>(call.output_gradients[0].data);
  const TensorView& gradient = call.input_gradients[0];
  auto* const dx = static_cast<float*>(gradient.data);
  if (dx == nullptr) return;
  const auto* const addend = static_cast<const float*>(gradient.addend);
  for_each_range(elements, resources.workers, [&](uint64_t begin, uint64_t count) {
    for (uint64_t i = begin; i < begin + count; ++i) {
      float sum = 0;
      for (uint64_t k = i; k < all; k += elements) sum += dy[k];
      dx[i] = addend == nullptr ? sum : sum + addend[i];
    }
  });
}

void round_gradient(const Accumulators& accumulators, void* gradient, DType precision, uint64_t elements,
                    double* block_sums, Workers& workers) {
  const auto blocks = static_cast<int64_t>((elements + kNormBlock - 1) / kNormBlock);
  workers.parallel_for(blocks, [&](int64_t block, int) {
    const uint64_t begin = static_cast<uint64_t>(block) * kNormBlock;
    void* to = static_cast<std::byte*>(gradient) + begin * dtype_bytes(precision);
    const double sum = HWY_DYNAMIC_DISPATCH(round_block)(accumulators, begin, to, precision,
                                                         std::min(kNormBlock, elements - begin));
    if (block_sums) block_sums[block] = sum;
  });
}

}  // namespace sluice::cpu
#endif
