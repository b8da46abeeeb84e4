// Layer norm and RMS norm: one code, centred or not.
//
// Statistics are fp32, the variance in two passes. The gradients of weight and bias are sums over rows: rows
// are cut into at most kBlocks blocks by their number alone, each block sums its rows in order into the
// workspace, and the blocks' sums are added in order.
#include "engine/base/simd/targets.h"
#include "gpu/cpu/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "engine/base/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
using namespace sluice::HWY_NAMESPACE;

// Sum over i < n of term(i, lanes), a vector whose missing lanes are zero.
template <class Term>
HWY_INLINE float sum_of(size_t n, const Term& term) {
  FloatVector sum = hn::Zero(Floats());
  for_each_vector(n, [&](size_t i, auto lanes) SLUICE_KERNEL { sum = hn::Add(sum, term(i, lanes)); });
  return hn::GetLane(hn::SumOfLanes(Floats(), sum));
}

// What is added to the weight of an RMS norm: 1, or -0, which changes no number.
HWY_INLINE float weight_from(const OpCall& call) {
  return call.shapes->attributes.weight_from_one ? 1.0f : -0.0f;
}

template <bool kCentered, class T>
HWY_INLINE void forward_row(const T* x, const T* weight, float from, const T* bias, T* y, size_t columns,
                            float epsilon, float* mean_out, float* rstd_out) {
  const Floats d;
  const float count = static_cast<float>(columns);
  float mean = 0;
  if constexpr (kCentered)
    mean = sum_of(columns, [&](size_t i, auto lanes) SLUICE_KERNEL { return lanes.load(x + i); }) / count;
  const FloatVector shift = hn::Set(d, mean);
  const float square = sum_of(columns, [&](size_t i, auto lanes) SLUICE_KERNEL {
    const FloatVector v = lanes.zero_rest(hn::Sub(lanes.load(x + i), shift));
    return hn::Mul(v, v);
  });
  const float rstd = 1.0f / std::sqrt(square / count + epsilon);
  const FloatVector scale = hn::Set(d, rstd), first = hn::Set(d, from);
  for_each_vector(columns, [&](size_t i, auto lanes) SLUICE_KERNEL {
    const FloatVector normal = hn::Mul(hn::Sub(lanes.load(x + i), shift), scale);
    if constexpr (kCentered) {
      lanes.store(hn::MulAdd(normal, lanes.load(weight + i), lanes.load(bias + i)), y + i);
    } else {
      lanes.store(hn::Mul(normal, hn::Add(lanes.load(weight + i), first)), y + i);
    }
  });
  if (mean_out != nullptr) *mean_out = mean;
  if (rstd_out != nullptr) *rstd_out = rstd;
}

template <bool kCentered>
HWY_INLINE void forward_rows(const OpCall& call, int64_t begin, int64_t end) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const int64_t columns = call.shapes->parameters[0][0];
    const T* x = static_cast<const T*>(call.inputs[0].data);
    const T* weight = static_cast<const T*>(call.parameters[0].data);
    const T* bias = kCentered ? static_cast<const T*>(call.parameters[1].data) : nullptr;
    T* y = static_cast<T*>(call.outputs[0].data);
    float* mean = kCentered ? static_cast<float*>(call.outputs[1].data) : nullptr;
    float* rstd = static_cast<float*>(call.outputs[kCentered ? 2 : 1].data);
    const auto epsilon = static_cast<float>(call.shapes->attributes.epsilon);
    for (int64_t r = begin; r < end; ++r)
      forward_row<kCentered>(x + r * columns, weight, weight_from(call), bias, y + r * columns,
                             static_cast<size_t>(columns), epsilon, mean == nullptr ? nullptr : mean + r,
                             rstd == nullptr ? nullptr : rstd + r);
  });
}

// With n = (x - mean) rstd and h = dy * (from + weight): dx = rstd (h - average(h) - n average(h n));
// uncentred, without average(h). Adds dy n to weight_sum and dy to bias_sum, each unless nullptr.
template <bool kCentered, class T>
HWY_INLINE void backward_row(const T* x, const T* dy, const T* weight, float from, float mean, float rstd,
                             size_t columns, T* dx, const T* addend, float* weight_sum, float* bias_sum) {
  const Floats d;
  const FloatVector shift = hn::Set(d, mean), scale = hn::Set(d, rstd), first = hn::Set(d, from);
  const auto factor = [&](size_t i, auto lanes) SLUICE_KERNEL {
    return kCentered ? lanes.load(weight + i) : hn::Add(lanes.load(weight + i), first);
  };
  FloatVector sum_h = hn::Zero(d), sum_hn = hn::Zero(d);
  for_each_vector(columns, [&](size_t i, auto lanes) SLUICE_KERNEL {
    const FloatVector g = lanes.load(dy + i), h = hn::Mul(g, factor(i, lanes));
    const FloatVector normal = hn::Mul(hn::Sub(lanes.load(x + i), shift), scale);
    sum_h = hn::Add(sum_h, h);  // in missing lanes, g is 0, so h is 0
    sum_hn = hn::MulAdd(h, normal, sum_hn);
    if (weight_sum != nullptr) lanes.store(hn::MulAdd(g, normal, lanes.load(weight_sum + i)), weight_sum + i);
    if (bias_sum != nullptr) lanes.store(hn::Add(g, lanes.load(bias_sum + i)), bias_sum + i);
  });
  if (dx == nullptr) return;
  const FloatVector one_by_count = hn::Set(d, 1.0f / static_cast<float>(columns));
  const FloatVector average_h = kCentered ? hn::Mul(hn::SumOfLanes(d, sum_h), one_by_count) : hn::Zero(d);
  const FloatVector average_hn = hn::Mul(hn::SumOfLanes(d, sum_hn), one_by_count);
  for_each_vector(columns, [&](size_t i, auto lanes) SLUICE_KERNEL {
    const FloatVector h = hn::Mul(lanes.load(dy + i), factor(i, lanes));
    const FloatVector normal = hn::Mul(hn::Sub(lanes.load(x + i), shift), scale);
    FloatVector out = hn::Mul(scale, hn::NegMulAdd(normal, average_hn, hn::Sub(h, average_h)));
    if (addend != nullptr) out = hn::Add(out, lanes.load(addend + i));
    lanes.store(out, dx + i);
  });
}

// weight_sum, bias_sum: this block's sums [columns], or nullptr where no gradient is wanted.
template <bool kCentered>
HWY_INLINE void backward_rows(const OpCall& call, int64_t begin, int64_t end, float* weight_sum,
                              float* bias_sum) {
  with_precision(call.shapes->precision, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const int64_t columns = call.shapes->parameters[0][0];
    const T* x = static_cast<const T*>(call.inputs[0].data);
    const T* dy = static_cast<const T*>(call.output_gradients[0].data);
    const T* weight = static_cast<const T*>(call.parameters[0].data);
    const float* mean = kCentered ? static_cast<const float*>(call.outputs[1].data) : nullptr;
    const float* rstd = static_cast<const float*>(call.outputs[kCentered ? 2 : 1].data);
    T* dx = static_cast<T*>(call.input_gradients[0].data);
    const T* addend = static_cast<const T*>(call.input_gradients[0].addend);
    for (float* sum : {weight_sum, bias_sum})
      if (sum != nullptr) std::fill(sum, sum + columns, 0.0f);
    for (int64_t r = begin; r < end; ++r)
      backward_row<kCentered>(x + r * columns, dy + r * columns, weight, weight_from(call),
                              kCentered ? mean[r] : 0.0f, rstd[r], static_cast<size_t>(columns),
                              dx == nullptr ? nullptr : dx + r * columns,
                              addend == nullptr ? nullptr : addend + r * columns, weight_sum, bias_sum);
  });
}

void layer_norm_forward_rows(const OpCall& call, int64_t begin, int64_t end) {
  forward_rows<true>(call, begin, end);
}
void rms_norm_forward_rows(const OpCall& call, int64_t begin, int64_t end) {
  forward_rows<false>(call, begin, end);
}
void layer_norm_backward_rows(const OpCall& call, int64_t begin, int64_t end, float* weight_sum,
                              float* bias_sum) {
  backward_rows<true>(call, begin, end, weight_sum, bias_sum);
}
void rms_norm_backward_rows(const OpCall& call, int64_t begin, int64_t end, float* weight_sum,
                            float* bias_sum) {
  backward_rows<false>(call, begin, end, weight_sum, bias_sum);
}

// gradient[i] += the sum, in order, of sums[block * stride + i].
void add_blocks(const float* sums, int64_t blocks, int64_t stride, float* gradient, size_t count) {
  for_each_vector(count, [&](size_t i, auto lanes) SLUICE_KERNEL {
    FloatVector total = lanes.load(sums + i);
    for (int64_t b = 1; b < blocks; ++b)
      total = hn::Add(total, lanes.load(sums + b * stride + static_cast<int64_t>(i)));
    lanes.store(hn::Add(lanes.load(gradient + i), total), gradient + i);
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
namespace {

HWY_EXPORT(layer_norm_forward_rows);
HWY_EXPORT(rms_norm_forward_rows);
HWY_EXPORT(layer_norm_backward_rows);
HWY_EXPORT(rms_norm_backward_rows);
HWY_EXPORT(add_blocks);

constexpr int64_t kForwardRows = 16;  // of one task
constexpr int64_t kBlocks = 32;       // the most blocks of rows in a backward
constexpr int64_t kBlockRows = 16;    // the fewest rows of a block
constexpr int64_t kColumns = 256;     // of one task that adds blocks

struct Cut {
  int64_t rows, columns, block_rows, blocks;
  int64_t stride;  // elements of one block's sums of one parameter
};

Cut cut_rows(const OpShapes& shapes) {
  Cut c;
  c.columns = shapes.parameters[0][0];
  c.rows = element_count(shapes.inputs[0]) / c.columns;
  c.block_rows = std::max(kBlockRows, (c.rows + kBlocks - 1) / kBlocks);
  c.blocks = (c.rows + c.block_rows - 1) / c.block_rows;
  c.stride = (c.columns + 15) / 16 * 16;  // whole cache lines
  return c;
}

template <class Rows>
void norm_forward(const OpCall& call, Workers& workers, const Rows& rows_kernel) {
  const Cut c = cut_rows(*call.shapes);
  workers.parallel_for((c.rows + kForwardRows - 1) / kForwardRows, [&](int64_t block, int) {
    rows_kernel(call, block * kForwardRows, std::min(c.rows, (block + 1) * kForwardRows));
  });
}

template <class Rows>
void norm_backward(const OpCall& call, Workers& workers, const Rows& rows_kernel) {
  const Cut c = cut_rows(*call.shapes);
  float* sums[2] = {nullptr, nullptr};  // weight, bias: [blocks, stride]
  for (size_t p = 0; p < call.parameter_gradients.size(); ++p)
    if (call.parameter_gradients[p].data != nullptr)
      sums[p] = reinterpret_cast<float*>(call.workspace) + static_cast<int64_t>(p) * c.blocks * c.stride;
  workers.parallel_for(c.blocks, [&](int64_t block, int) {
    const int64_t offset = block * c.stride;
    rows_kernel(call, block * c.block_rows, std::min(c.rows, (block + 1) * c.block_rows),
                sums[0] == nullptr ? nullptr : sums[0] + offset,
                sums[1] == nullptr ? nullptr : sums[1] + offset);
  });
  for (size_t p = 0; p < 2; ++p) {
    if (sums[p] == nullptr) continue;
    auto* gradient = static_cast<float*>(call.parameter_gradients[p].data);
    workers.parallel_for((c.columns + kColumns - 1) / kColumns, [&](int64_t task, int) {
      const int64_t begin = task * kColumns;
      HWY_DYNAMIC_DISPATCH(add_blocks)
      (sums[p] + begin, c.blocks, c.stride, gradient + begin,
       static_cast<size_t>(std::min(kColumns, c.columns - begin)));
    });
  }
}

}  // namespace

void layer_norm_forward(const OpCall& call, const Resources& resources) {
  norm_forward(call, resources.workers, HWY_DYNAMIC_DISPATCH(layer_norm_forward_rows));
}

void layer_norm_backward(const OpCall& call, const Resources& resources) {
  norm_backward(call, resources.workers, HWY_DYNAMIC_DISPATCH(layer_norm_backward_rows));
}

void rms_norm_forward(const OpCall& call, const Resources& resources) {
  norm_forward(call, resources.workers, HWY_DYNAMIC_DISPATCH(rms_norm_forward_rows));
}

void rms_norm_backward(const OpCall& call, const Resources& resources) {
  norm_backward(call, resources.workers, HWY_DYNAMIC_DISPATCH(rms_norm_backward_rows));
}

// The workspace has the sums of each block of rows, for the gradients of parameters.
uint64_t norm_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources&) {
  if (pass == Pass::forward) return 0;
  const Cut c = cut_rows(shapes);
  return static_cast<uint64_t>(c.blocks * c.stride) * shapes.parameters.size() * sizeof(float);
}

}  // namespace sluice::cpu
#endif
