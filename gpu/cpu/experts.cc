// The ops of one expert without products: dispatch, expert_swiglu, combine. A group of rows is a task. The
// rows of an expert are rows of different tokens, so no two tasks write to the same row of a token.
#include "engine/base/simd/targets.h"
#include "gpu/cpu/expert_rows.h"
#include "gpu/cpu/gated_range.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/rows.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/experts.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "gpu/cpu/gates-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
using namespace sluice::HWY_NAMESPACE;

// to += from, both in `precision`.
void accumulate_row(DType precision, const void* from, void* to, int64_t n) {
  with_precision(precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* x = static_cast<const T*>(from);
    T* sum = static_cast<T*>(to);
    for_each_vector(static_cast<size_t>(n), [&](size_t i, auto lanes) SLUICE_KERNEL {
      lanes.store(hn::Add(lanes.load(sum + i), lanes.load(x + i)), sum + i);
    });
  });
}

// An activation's value for a gate and the other factor, and its derivative with respect to each of the two.
struct Activation {
  FloatVector value, by_gate, by_up;
};

template <class GateOf>
struct Gated {
  HWY_INLINE FloatVector value(FloatVector gate, FloatVector up) const {
    return hn::Mul(GateOf::value(gate), up);
  }
  HWY_INLINE Activation both(FloatVector gate, FloatVector up) const {
    const Gate g = GateOf::both(gate);
    return {hn::Mul(g.value, up), hn::Mul(g.derivative, up), g.value};
  }
};

// A gate with a limit (OpAttributes::swiglu_limit).
struct Clamped {
  explicit Clamped(const OpAttributes& a)
      : limit(hn::Set(Floats(), static_cast<float>(a.swiglu_limit))),
        alpha(hn::Set(Floats(), static_cast<float>(a.swiglu_alpha))) {}

  // A comparison with NaN is false, so NaN stays.
  HWY_INLINE FloatVector lower(FloatVector x) const { return hn::IfThenElse(hn::Gt(x, limit), limit, x); }
  HWY_INLINE FloatVector plus_one(FloatVector up) const {
    const FloatVector u = lower(up), least = hn::Neg(limit);
    return hn::Add(hn::IfThenElse(hn::Lt(u, least), least, u), hn::Set(Floats(), 1.0f));
  }
  HWY_INLINE FloatVector value(FloatVector gate, FloatVector up) const {
    const FloatVector g = lower(gate), one = hn::Set(Floats(), 1.0f);
    return hn::Mul(hn::Div(g, hn::Add(one, exp_minus(hn::Mul(alpha, g)))), plus_one(up));
  }
  HWY_INLINE Activation both(FloatVector gate, FloatVector up) const {
    const FloatVector g = lower(gate), u = plus_one(up), one = hn::Set(Floats(), 1.0f);
    const FloatVector scaled = hn::Mul(alpha, g), inverse = exp_minus(scaled);
    const FloatVector s = hn::Div(one, hn::Add(one, inverse)), gs = hn::Mul(g, s);
    const FloatVector slope = hn::Mul(s, hn::MulAdd(scaled, hn::Mul(inverse, s), one));
    return {hn::Mul(gs, u), hn::IfThenZeroElse(hn::Gt(gate, limit), hn::Mul(slope, u)),
            hn::IfThenZeroElse(hn::Gt(hn::Abs(up), limit), gs)};
  }

  FloatVector limit, alpha;
};

template <class Of>
HWY_INLINE void weighted_gated_forward(const OpCall& call, const GatedRange& range, float weight,
                                       const Of& activation) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* gate = at<const T>(call.inputs[1], range.gate);
    const T* up = at<const T>(call.inputs[range.up_input], range.up);
    T* y = at<T>(call.outputs[0], range.out);
    const FloatVector factor = hn::Set(Floats(), weight);
    for_each_vector(range.count, [&](size_t i, auto lanes) SLUICE_KERNEL {
      lanes.store(hn::Mul(factor, activation.value(lanes.load(gate + i), lanes.load(up + i))), y + i);
    });
  });
}

// Returns the gradient of the weight.
template <class Of>
HWY_INLINE float weighted_gated_backward(const OpCall& call, const GatedRange& range, float weight,
                                         const Of& activation) {
  return with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* gate = at<const T>(call.inputs[1], range.gate);
    const T* up = at<const T>(call.inputs[range.up_input], range.up);
    const T* dy = at<const T>(call.output_gradients[0], range.out);
    const Gradient<T> dgate(call.input_gradients[1], range.gate);
    const Gradient<T> dup(call.input_gradients[range.up_input], range.up);
    const Floats d;
    const FloatVector factor = hn::Set(d, weight);
    FloatVector sum = hn::Zero(d);
    for_each_vector(range.count, [&](size_t i, auto lanes) SLUICE_KERNEL {
      const FloatVector dv = lanes.load(dy + i), weighted = hn::Mul(dv, factor);
      const Activation a = activation.both(lanes.load(gate + i), lanes.load(up + i));
      sum = hn::Add(sum, lanes.zero_rest(hn::Mul(dv, a.value)));
      if (dgate.data != nullptr) dgate.put(hn::Mul(weighted, a.by_gate), i, lanes);
      if (dup.data != nullptr) dup.put(hn::Mul(weighted, a.by_up), i, lanes);
    });
    return hn::GetLane(hn::SumOfLanes(d, sum));
  });
}

// Like weighted_gated_forward, for a gate without another factor (OpAttributes::ungated).
template <class GateOf>
HWY_INLINE void weighted_forward(const OpCall& call, const GatedRange& range, float weight) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* x = at<const T>(call.inputs[1], range.gate);
    T* y = at<T>(call.outputs[0], range.out);
    const FloatVector factor = hn::Set(Floats(), weight);
    for_each_vector(range.count, [&](size_t i, auto lanes) SLUICE_KERNEL {
      lanes.store(hn::Mul(factor, GateOf::value(lanes.load(x + i))), y + i);
    });
  });
}

// Returns the gradient of the weight.
template <class GateOf>
HWY_INLINE float weighted_backward(const OpCall& call, const GatedRange& range, float weight) {
  return with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* x = at<const T>(call.inputs[1], range.gate);
    const T* dy = at<const T>(call.output_gradients[0], range.out);
    const Gradient<T> dx(call.input_gradients[1], range.gate);
    const Floats d;
    const FloatVector factor = hn::Set(d, weight);
    FloatVector sum = hn::Zero(d);
    for_each_vector(range.count, [&](size_t i, auto lanes) SLUICE_KERNEL {
      const FloatVector dv = lanes.load(dy + i);
      const Gate gate = GateOf::both(lanes.load(x + i));
      sum = hn::Add(sum, lanes.zero_rest(hn::Mul(dv, gate.value)));
      if (dx.data != nullptr) dx.put(hn::Mul(hn::Mul(dv, factor), gate.derivative), i, lanes);
    });
    return hn::GetLane(hn::SumOfLanes(d, sum));
  });
}

void expert_swiglu_forward_row(const OpCall& call, const GatedRange& range, float weight) {
  const OpAttributes& a = call.shapes->attributes;
  if (a.ungated)
    return a.gelu_gate ? weighted_forward<GeluGate>(call, range, weight)
                       : weighted_forward<SiluGate>(call, range, weight);
  if (a.swiglu_limit > 0) return weighted_gated_forward(call, range, weight, Clamped(a));
  a.gelu_gate ? weighted_gated_forward(call, range, weight, Gated<GeluGate>())
              : weighted_gated_forward(call, range, weight, Gated<SiluGate>());
}

float expert_swiglu_backward_row(const OpCall& call, const GatedRange& range, float weight) {
  const OpAttributes& a = call.shapes->attributes;
  if (a.ungated)
    return a.gelu_gate ? weighted_backward<GeluGate>(call, range, weight)
                       : weighted_backward<SiluGate>(call, range, weight);
  if (a.swiglu_limit > 0) return weighted_gated_backward(call, range, weight, Clamped(a));
  return a.gelu_gate ? weighted_gated_backward(call, range, weight, Gated<GeluGate>())
                     : weighted_gated_backward(call, range, weight, Gated<SiluGate>());
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
namespace {

HWY_EXPORT(accumulate_row);
HWY_EXPORT(expert_swiglu_forward_row);
HWY_EXPORT(expert_swiglu_backward_row);

// Elements of one task, which then takes tens of microseconds.
constexpr int64_t kElements = 16384;

// Calls body(row) for rows in [0, rows).
template <class Body>
void for_each_row(int64_t rows, int64_t columns, Workers& workers, const Body& body) {
  const int64_t group = std::max<int64_t>(1, kElements / columns);
  workers.parallel_for((rows + group - 1) / group, [&](int64_t index, int) {
    for (int64_t r = index * group; r < std::min(rows, (index + 1) * group); ++r) body(r);
  });
}

// A matrix, by rows.
struct Matrix {
  Matrix(const TensorView& view, int64_t columns, DType type)
      : data(static_cast<std::byte*>(view.data)),
        addend(static_cast<const std::byte*>(view.addend)),
        row_bytes(static_cast<uint64_t>(columns) * dtype_bytes(type)) {}
  std::byte* row(int64_t r) const { return data + static_cast<uint64_t>(r) * row_bytes; }
  const std::byte* addend_row(int64_t r) const {
    return addend == nullptr ? nullptr : addend + static_cast<uint64_t>(r) * row_bytes;
  }
  void clear_row(int64_t r) const { std::memset(row(r), 0, row_bytes); }
  // Puts the addend, or zeros, in the first `rows` rows.
  void begin_sum(int64_t rows, int64_t columns, Workers& workers) const {
    if (addend == data) return;
    for_each_row(rows, columns, workers, [&](int64_t r) {
      if (addend == nullptr)
        clear_row(r);
      else
        std::memcpy(row(r), addend_row(r), row_bytes);
    });
  }

  std::byte* data;
  const std::byte* addend;
  uint64_t row_bytes;
};

// expert_swiglu's operands: the gate and the other factor, if there is one, lie in two tensors, or in one.
struct GatedRows {
  explicit GatedRows(const OpCall& call)
      : columns(call.shapes->outputs[0][1]),
        packed(call.shapes->inputs[1][1] != columns),
        ungated(call.shapes->attributes.ungated) {}
  size_t up_input() const { return packed ? 1 : 2; }
  GatedRange range(int64_t row) const {
    const auto n = static_cast<uint64_t>(columns), out = static_cast<uint64_t>(row) * n;
    if (packed) return {2 * out, 2 * out + n, out, n, up_input()};
    return {out, out, out, n, up_input()};
  }

  int64_t columns;
  bool packed, ungated;
};

}  // namespace

void dispatch_forward(const OpCall& call, const Resources& resources) {
  const ExpertRows rows(call);
  const int64_t columns = call.shapes->inputs[1][1];
  const Matrix x(call.inputs[1], columns, call.shapes->precision);
  const Matrix y(call.outputs[0], columns, call.shapes->precision);
  for_each_row(rows.with_zeros(), columns, resources.workers, [&](int64_t i) {
    if (i < rows.count)
      std::memcpy(y.row(i), x.row(rows.row(i)), x.row_bytes);
    else
      y.clear_row(i);
  });
}

void dispatch_backward(const OpCall& call, const Resources& resources) {
  if (call.input_gradients[1].data == nullptr) return;
  const ExpertRows rows(call);
  const int64_t columns = call.shapes->inputs[1][1];
  const DType precision = call.shapes->precision;
  const Matrix dy(call.output_gradients[0], columns, precision);
  const Matrix dx(call.input_gradients[1], columns, precision);
  dx.begin_sum(rows.layout.rows, columns, resources.workers);
  for_each_row(rows.count, columns, resources.workers, [&](int64_t i) {
    HWY_DYNAMIC_DISPATCH(accumulate_row)(precision, dy.row(i), dx.row(rows.row(i)), columns);
  });
}

void expert_swiglu_forward(const OpCall& call, const Resources& resources) {
  const ExpertRows rows(call);
  const GatedRows operands(call);
  const Matrix y(call.outputs[0], operands.columns, call.shapes->precision);
  for_each_row(rows.with_zeros(), operands.columns, resources.workers, [&](int64_t i) {
    if (i < rows.count)
      HWY_DYNAMIC_DISPATCH(expert_swiglu_forward_row)(call, operands.range(i), rows.weight(i));
    else
      y.clear_row(i);
  });
}

void expert_swiglu_backward(const OpCall& call, const Resources& resources) {
  const ExpertRows rows(call);
  const GatedRows operands(call);
  const OpShapes& s = *call.shapes;
  const Matrix d_gate(call.input_gradients[1], s.inputs[1][1], s.precision);
  const Matrix d_up(operands.ungated ? TensorView{} : call.input_gradients[operands.up_input()],
                    s.inputs[1][1], s.precision);
  float* d_weights = nullptr;
  if (rows.weights != nullptr && call.input_gradients.back().data != nullptr) {
    const Matrix gradient(call.input_gradients.back(), rows.layout.chosen, DType::f32);
    gradient.begin_sum(rows.layout.rows, rows.layout.chosen, resources.workers);
    d_weights = reinterpret_cast<float*>(gradient.data);
  }
  for_each_row(rows.with_zeros(), operands.columns, resources.workers, [&](int64_t i) {
    if (i < rows.count) {
      const float d =
          HWY_DYNAMIC_DISPATCH(expert_swiglu_backward_row)(call, operands.range(i), rows.weight(i));
      if (d_weights != nullptr) d_weights[rows.choice(i)] += d;
      return;
    }
    if (d_gate.data != nullptr) d_gate.clear_row(i);
    if (!operands.packed && d_up.data != nullptr) d_up.clear_row(i);
  });
}

void combine_forward(const OpCall& call, const Resources& resources) {
  const ExpertRows rows(call);
  const int64_t columns = call.shapes->inputs[1][1];
  const Matrix x(call.inputs[1], columns, call.shapes->precision);
  const Matrix sum(call.outputs[0], columns, DType::f32);
  for_each_row(rows.count, columns, resources.workers, [&](int64_t i) {
    add_row(call.shapes->precision, x.row(i), reinterpret_cast<float*>(sum.row(rows.row(i))), columns);
  });
}

void combine_backward(const OpCall& call, const Resources& resources) {
  if (call.input_gradients[1].data == nullptr) return;
  const ExpertRows rows(call);
  const int64_t columns = call.shapes->inputs[1][1];
  const Matrix d_sum(call.output_gradients[0], columns, DType::f32);
  const Matrix dx(call.input_gradients[1], columns, call.shapes->precision);
  for_each_row(rows.with_zeros(), columns, resources.workers, [&](int64_t i) {
    if (i < rows.count)
      finish_row(call.shapes->precision, reinterpret_cast<const float*>(d_sum.row(rows.row(i))), nullptr,
                 dx.addend_row(i), dx.row(i), columns);
    else
      dx.clear_row(i);
  });
}

}  // namespace sluice::cpu
#endif
