// Ops of one expert except its products, and add_sum, add_shared_sum and repeat. A thread takes kWide columns
// of a row at a time. In expert_swiglu and add_shared_sum, whose backward adds over a row, a warp takes one
// row.
//
// A gradient that covers all rows, or all choices, is first set to its addend, or to zeros. Then the expert's
// rows, which are all different, add to their elements.
#include "gpu/cuda/expert_rows.h"
#include "gpu/cuda/gates.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;

__device__ inline int64_t first_item() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }
__device__ inline int64_t item_step() { return static_cast<int64_t>(gridDim.x) * kThreads; }

// Calls f(row, first column, part) for the thread's parts of `rows` rows.
template <typename F>
__device__ void for_parts(int64_t rows, int64_t columns, F f) {
  const int64_t parts = (columns + kWide - 1) / kWide;
  for (int64_t i = first_item(); i < rows * parts; i += item_step()) {
    const int64_t row = i / parts, column = i % parts * kWide;
    with_part(columns % kWide == 0, columns - column,
              [&](auto part) { f(static_cast<int>(row), column, part); });
  }
}
int64_t part_blocks(const Queue& queue, int64_t rows, int64_t columns) {
  return striding_blocks(queue, rows * div_up(columns, kWide), kThreads);
}

// to[i] = from[i], or 0 if `from` is nullptr.
template <typename T>
__global__ void __launch_bounds__(kThreads) begin_kernel(T* to, const T* from, int64_t count, bool aligned) {
  for (int64_t i = first_item() * kWide; i < count; i += item_step() * kWide)
    with_part(aligned, count - i, [&](auto part) {
      float value[kWide] = {};
      if (from != nullptr) load(from + i, part, value);
      store(to + i, part, value);
    });
}
// Sets a gradient to what the expert's rows then add to. The gradient of weights may be one rank's part of a
// tensor, at any address.
template <typename T>
void begin(const Queue& queue, const Gradient<T>& to, int64_t count) {
  if (to.data == nullptr || to.addend == to.data) return;
  const bool aligned = aligned_to_16(to.data) && aligned_to_16(to.addend);  // nullptr counts as aligned
  launch(queue, begin_kernel<T>, striding_blocks(queue, div_up(count, kWide), kThreads), kThreads, 0, to.data,
         to.addend, count, aligned);
}

// y[i] = x[row of i], and zeros behind the rows. With From float and To T, this is combine's backward, too.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(ExpertRows rows, const From* x, Gradient<To> y, int64_t columns) {
  const int count = rows.count();
  for_parts(rows.with_zeros(count), columns, [&](int i, int64_t column, auto part) {
    const int64_t to = i * columns + column;
    float value[kWide] = {}, before[kWide];
    load_before(y, to, part, before);
    if (i < count) load(x + rows.row(i) * columns + column, part, value);
    store_after(y, to, part, before, value);
  });
}

// y[row of i] += x[i].
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(ExpertRows rows, const From* x, To* y, int64_t columns) {
  for_parts(rows.count(), columns, [&](int i, int64_t column, auto part) {
    const int64_t to = rows.row(i) * columns + column;
    float value[kWide], sum[kWide];
    load(x + i * columns + column, part, value);
    load(y + to, part, sum);
#pragma unroll
    for (int e = 0; e < kWide; ++e) sum[e] += value[e];
    store(y + to, part, sum);
  });
}

template <typename From, typename To>
void gather(const Queue& queue, const OpCall& call, const From* x, const Gradient<To>& y) {
  const Shape& of_expert =
      call.shapes->kind == OpKind::dispatch ? call.shapes->outputs[0] : call.shapes->inputs[1];
  launch(queue, gather_kernel<From, To>, part_blocks(queue, of_expert[0], of_expert[1]), kThreads, 0,
         expert_rows(call), x, y, of_expert[1]);
}
template <typename From, typename To>
void scatter(const Queue& queue, const OpCall& call, const From* x, To* y) {
  const Shape& of_expert =
      call.shapes->kind == OpKind::dispatch ? call.shapes->outputs[0] : call.shapes->inputs[1];
  launch(queue, scatter_kernel<From, To>, part_blocks(queue, of_expert[0], of_expert[1]), kThreads, 0,
         expert_rows(call), x, y, of_expert[1]);
}

// ---- expert_swiglu.

// Where the gates and the other factors of rows are: element (row, c) of the factors is at
// up[row * stride + c].
struct GatedShape {
  int64_t columns, stride;
  int64_t up_after;  // columns from the gates to the factors; 0: the factors have a tensor of their own, or
                     // there are none and each counts as 1

  __device__ bool wide() const { return columns % kWide == 0; }
};
GatedShape gated_shape(const OpShapes& s) {
  const int64_t columns = s.outputs[0][1], stride = s.inputs[1][1];
  return {columns, stride, stride == columns ? 0 : columns};
}

__device__ inline int row_of_warp() { return static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarp); }

// Calls f(first column, part) for the lane's parts of a row.
template <typename F>
__device__ void for_lane_parts(const GatedShape& s, F f) {
  for (int64_t c = threadIdx.x % kWarp * kWide; c < s.columns; c += kWarp * kWide)
    with_part(s.wide(), s.columns - c, [&](auto part) { f(c, part); });
}

template <typename T, typename P>
__device__ void load_factors(const T* up, int64_t at, P part, float (&b)[kWide]) {
  if (up != nullptr) return load(up + at, part, b);
#pragma unroll
  for (int e = 0; e < kWide; ++e) b[e] = 1;
}

template <typename Op, typename T>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(ExpertRows rows, GatedShape s, Op op, const T* gate, const T* up, T* y) {
  const int count = rows.count(), i = row_of_warp();
  if (i >= rows.with_zeros(count)) return;
  const float weight = i < count ? rows.weight(i) : 0.0f;
  for_lane_parts(s, [&](int64_t c, auto part) {
    float a[kWide] = {}, b[kWide];
    if (i < count) {
      load(gate + i * s.stride + c, part, a);
      load_factors(up, i * s.stride + c, part, b);
#pragma unroll
      for (int e = 0; e < kWide; ++e) a[e] = weight * op.forward(a[e], b[e]);
    }
    store(y + i * s.columns + c, part, a);
  });
}

template <typename Op, typename T>
__global__ void __launch_bounds__(kThreads)
    swiglu_gradient_kernel(ExpertRows rows, GatedShape s, Op op, const T* gate, const T* up, const T* dy,
                           Gradient<T> d_gate, Gradient<T> d_up, float* d_weights) {
  const int count = rows.count(), i = row_of_warp();
  if (i >= rows.with_zeros(count)) return;
  const float weight = i < count ? rows.weight(i) : 0.0f;
  float sum = 0;
  for_lane_parts(s, [&](int64_t c, auto part) {
    const int64_t at = i * s.stride + c;
    float a[kWide], b[kWide], d[kWide], before_a[kWide], before_b[kWide], da[kWide] = {}, db[kWide] = {};
    load_before(d_gate, at, part, before_a);
    load_before(d_up, at, part, before_b);
    if (i < count) {
      load(gate + at, part, a);
      load_factors(up, at, part, b);
      load(dy + i * s.columns + c, part, d);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        sum += d[e] * op.forward(a[e], b[e]);  // zero beyond the row
        op.backward(a[e], b[e], weight * d[e], da[e], db[e]);
      }
    }
    store_after(d_gate, at, part, before_a, da);
    store_after(d_up, at, part, before_b, db);
  });
  if (d_weights == nullptr || i >= count) return;
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) d_weights[rows.choice(i)] += sum;
}

template <typename Op, typename T>
void run_swiglu(const Queue& queue, const OpCall& call, const Op& op) {
  const GatedShape s = gated_shape(*call.shapes);
  const bool packed = s.up_after != 0, ungated = call.shapes->attributes.ungated;
  const T* const gate = data_of<const T>(call.inputs, 1);
  const T* const up = packed ? gate + s.up_after : ungated ? nullptr : data_of<const T>(call.inputs, 2);
  const int64_t blocks = div_up(call.shapes->inputs[1][0], kWarps);
  if (call.output_gradients.empty())
    return launch(queue, swiglu_kernel<Op, T>, blocks, kThreads, 0, expert_rows(call), s, op, gate, up,
                  data_of<T>(call.outputs, 0));
  const Gradient<T> d_gate = gradient_of<T>(call.input_gradients, 1);
  Gradient<T> d_up = ungated ? Gradient<T>{} : gradient_of<T>(call.input_gradients, 2);
  if (packed)
    d_up = {d_gate.data == nullptr ? nullptr : d_gate.data + s.up_after,
            d_gate.addend == nullptr ? nullptr : d_gate.addend + s.up_after};
  Gradient<float> d_weights{};
  if (call.shapes->attributes.routing.weighted)
    d_weights = gradient_of<float>(call.input_gradients, call.shapes->inputs.size() - 1);
  begin(queue, d_weights, routing_layout(*call.shapes).choices());
  launch(queue, swiglu_gradient_kernel<Op, T>, blocks, kThreads, 0, expert_rows(call), s, op, gate, up,
         data_of<const T>(call.output_gradients, 0), d_gate, d_up, d_weights.data);
}

void run_swiglu(const Queue& queue, const OpCall& call) {
  const OpAttributes& a = call.shapes->attributes;
  const ClampedSwigluOp clamped{static_cast<float>(a.swiglu_limit), static_cast<float>(a.swiglu_alpha)};
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    if (a.swiglu_limit > 0) return run_swiglu<ClampedSwigluOp, T>(queue, call, clamped);
    a.gelu_gate ? run_swiglu<GegluOp, T>(queue, call, {}) : run_swiglu<SwigluOp, T>(queue, call, {});
  });
}

// ---- add_sum.

template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_sum_kernel(const T* x, const float* sum, T* y, int64_t count) {
  for (int64_t i = first_item() * kWide; i < count; i += item_step() * kWide)
    with_part(true, count - i, [&](auto part) {
      float a[kWide], b[kWide];
      load(x + i, part, a);
      load(sum + i, part, b);
#pragma unroll
      for (int e = 0; e < kWide; ++e) a[e] += b[e];
      store(y + i, part, a);
    });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_sum_gradient_kernel(const T* dy, Gradient<T> dx, Gradient<float> d_sum, int64_t count) {
  for (int64_t i = first_item() * kWide; i < count; i += item_step() * kWide)
    with_part(true, count - i, [&](auto part) {
      float d[kWide], other[kWide], before[kWide], before_sum[kWide];
      load(dy + i, part, d);
      load_before(dx, i, part, before);
      load_before(d_sum, i, part, before_sum);
#pragma unroll
      for (int e = 0; e < kWide; ++e) other[e] = d[e];
      store_after(dx, i, part, before, d);
      store_after(d_sum, i, part, before_sum, other);
    });
}

// ---- repeat. A thread has an element.

__global__ void __launch_bounds__(kThreads)
    repeat_kernel(const float* x, float* y, int64_t elements, int64_t parts) {
  for (int64_t i = first_item(); i < elements; i += item_step())
    for (int64_t part = 0; part < parts; ++part) y[part * elements + i] = x[i];
}

__global__ void __launch_bounds__(kThreads)
    repeat_gradient_kernel(const float* dy, Gradient<float> dx, int64_t elements, int64_t parts) {
  for (int64_t i = first_item(); i < elements; i += item_step()) {
    float sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += dy[part * elements + i];
    dx.data[i] = dx.addend == nullptr ? sum : sum + dx.addend[i];
  }
}

// ---- add_shared_sum. A warp has a row.

struct SharedRows {
  int64_t rows, columns;
  const float* shares;

  // The softmax of the row's two shares: one for the sum, one for z.
  __device__ float of_sum(int row) const { return sigmoid(shares[2 * row] - shares[2 * row + 1]); }
  __device__ float of_z(int row) const { return sigmoid(shares[2 * row + 1] - shares[2 * row]); }
  // Calls f(first element, part) for the lane's parts of the row.
  template <typename F>
  __device__ void for_parts(int row, F f) const {
    for (int64_t c = threadIdx.x % kWarp * kWide; c < columns; c += kWarp * kWide)
      with_part(columns % kWide == 0, columns - c, [&](auto part) { f(row * columns + c, part); });
  }
};
SharedRows shared_rows(const OpCall& call) {
  const Shape& x = call.shapes->inputs[0];
  return {x[0], x[1], data_of<const float>(call.inputs, 3)};
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    shared_sum_kernel(SharedRows s, const T* x, const T* z, const float* sum, T* y) {
  const int row = row_of_warp();
  if (row >= s.rows) return;
  const float of_sum = s.of_sum(row), of_z = s.of_z(row);
  s.for_parts(row, [&](int64_t at, auto part) {
    float a[kWide], b[kWide], c[kWide];
    load(x + at, part, a);
    load(z + at, part, b);
    load(sum + at, part, c);
#pragma unroll
    for (int e = 0; e < kWide; ++e) a[e] += of_sum * c[e] + of_z * b[e];
    store(y + at, part, a);
  });
}

// The gradient of share 0 is s0 s1 (dy sum - dy z). The gradient of share 1 is its negative.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    shared_sum_gradient_kernel(SharedRows s, const T* z, const float* sum, const T* dy, Gradient<T> dx,
                               Gradient<T> dz, Gradient<float> d_sum, Gradient<float> d_shares) {
  const int row = row_of_warp();
  if (row >= s.rows) return;
  const float of_sum = s.of_sum(row), of_z = s.of_z(row);
  float difference = 0;
  s.for_parts(row, [&](int64_t at, auto part) {
    float d[kWide], b[kWide], c[kWide], before_x[kWide], before_z[kWide], before_sum[kWide];
    load(dy + at, part, d);
    load(z + at, part, b);
    load(sum + at, part, c);
    load_before(dx, at, part, before_x);
    load_before(dz, at, part, before_z);
    load_before(d_sum, at, part, before_sum);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      difference += d[e] * (c[e] - b[e]);  // zero beyond the row
      b[e] = of_z * d[e], c[e] = of_sum * d[e];
    }
    store_after(dx, at, part, before_x, d);
    store_after(dz, at, part, before_z, b);
    store_after(d_sum, at, part, before_sum, c);
  });
  difference = of_sum * of_z * warp_sum(difference);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane > 1 || d_shares.data == nullptr) return;
  const float before = d_shares.addend == nullptr ? 0.0f : d_shares.addend[2 * row + lane];
  d_shares.data[2 * row + lane] = before + (lane == 0 ? difference : -difference);
}

}  // namespace

void load_expert_kernels() {
  for_each_precision([]<typename T>(T) {
    load(begin_kernel<T>);
    load(gather_kernel<T, T>);
    load(scatter_kernel<T, T>);
    if constexpr (sizeof(T) == 2) {
      load(gather_kernel<float, T>);
      load(scatter_kernel<T, float>);
    }
    load(swiglu_kernel<SwigluOp, T>);
    load(swiglu_kernel<GegluOp, T>);
    load(swiglu_kernel<ClampedSwigluOp, T>);
    load(swiglu_gradient_kernel<SwigluOp, T>);
    load(swiglu_gradient_kernel<GegluOp, T>);
    load(swiglu_gradient_kernel<ClampedSwigluOp, T>);
    load(add_sum_kernel<T>);
    load(add_sum_gradient_kernel<T>);
    load(shared_sum_kernel<T>);
    load(shared_sum_gradient_kernel<T>);
  });
  load(repeat_kernel);
  load(repeat_gradient_kernel);
}

void begin_choices(const Queue& queue, float* to, const float* addend, int64_t count) {
  begin<float>(queue, {to, addend}, count);
}

void dispatch_forward(const Queue& queue, const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    gather(queue, call, data_of<const T>(call.inputs, 1), Gradient<T>{data_of<T>(call.outputs, 0), nullptr});
  });
}
void dispatch_backward(const Queue& queue, const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Gradient<T> dx = gradient_of<T>(call.input_gradients, 1);
    if (dx.data == nullptr) return;
    begin(queue, dx, element_count(call.shapes->inputs[1]));
    scatter(queue, call, data_of<const T>(call.output_gradients, 0), dx.data);
  });
}

void expert_swiglu_forward(const Queue& queue, const OpCall& call) { run_swiglu(queue, call); }
void expert_swiglu_backward(const Queue& queue, const OpCall& call) { run_swiglu(queue, call); }

void combine_forward(const Queue& queue, const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    scatter(queue, call, data_of<const T>(call.inputs, 1), data_of<float>(call.outputs, 0));
  });
}
void combine_backward(const Queue& queue, const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Gradient<T> dx = gradient_of<T>(call.input_gradients, 1);
    if (dx.data != nullptr) gather(queue, call, data_of<const float>(call.output_gradients, 0), dx);
  });
}

void add_sum_forward(const Queue& queue, const OpCall& call) {
  const int64_t count = element_count(call.shapes->outputs[0]);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    launch(queue, add_sum_kernel<T>, striding_blocks(queue, div_up(count, kWide), kThreads), kThreads, 0,
           data_of<const T>(call.inputs, 0), data_of<const float>(call.inputs, 1),
           data_of<T>(call.outputs, 0), count);
  });
}
void add_sum_backward(const Queue& queue, const OpCall& call) {
  const int64_t count = element_count(call.shapes->outputs[0]);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    launch(queue, add_sum_gradient_kernel<T>, striding_blocks(queue, div_up(count, kWide), kThreads),
           kThreads, 0, data_of<const T>(call.output_gradients, 0), gradient_of<T>(call.input_gradients, 0),
           gradient_of<float>(call.input_gradients, 1), count);
  });
}

void repeat_forward(const Queue& queue, const OpCall& call) {
  const int64_t elements = element_count(call.shapes->inputs[0]);
  launch(queue, repeat_kernel, striding_blocks(queue, elements, kThreads), kThreads, 0,
         data_of<const float>(call.inputs, 0), data_of<float>(call.outputs, 0), elements,
         element_count(call.shapes->outputs[0]) / elements);
}
void repeat_backward(const Queue& queue, const OpCall& call) {
  const int64_t elements = element_count(call.shapes->inputs[0]);
  const auto dx = gradient_of<float>(call.input_gradients, 0);
  if (dx.data == nullptr) return;
  launch(queue, repeat_gradient_kernel, striding_blocks(queue, elements, kThreads), kThreads, 0,
         data_of<const float>(call.output_gradients, 0), dx, elements,
         element_count(call.shapes->outputs[0]) / elements);
}

void add_shared_sum_forward(const Queue& queue, const OpCall& call) {
  const SharedRows s = shared_rows(call);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    launch(queue, shared_sum_kernel<T>, div_up(s.rows, kWarps), kThreads, 0, s,
           data_of<const T>(call.inputs, 0), data_of<const T>(call.inputs, 1),
           data_of<const float>(call.inputs, 2), data_of<T>(call.outputs, 0));
  });
}
void add_shared_sum_backward(const Queue& queue, const OpCall& call) {
  const SharedRows s = shared_rows(call);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    launch(queue, shared_sum_gradient_kernel<T>, div_up(s.rows, kWarps), kThreads, 0, s,
           data_of<const T>(call.inputs, 1), data_of<const float>(call.inputs, 2),
           data_of<const T>(call.output_gradients, 0), gradient_of<T>(call.input_gradients, 0),
           gradient_of<T>(call.input_gradients, 1), gradient_of<float>(call.input_gradients, 2),
           gradient_of<float>(call.input_gradients, 3));
  });
}

}  // namespace sluice::cuda
