// expert_linear: a linear op on the rows of one expert. The number of rows is read on the device. cuBLASLt
// takes sizes from the host, so it cannot multiply these rows: tensor_product.h multiplies 16-bit operands,
// plain_product.h fp32. Every sum has one owner and an order that is a function of the shape.
#include "gpu/cuda/expert_rows.h"
#include "gpu/cuda/tensor_product.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;

// y = factor * x W + weight * bias, and dx = factor * dy W^T. kAcross: W is stored [depth, columns].
template <typename T, bool kAcross>
struct RowsProduct {
  using A = T;
  using B = T;
  static constexpr bool kAcrossA = false, kAcrossB = kAcross;
  const T *a, *b;
  int64_t stride_a, stride_b;
  int columns, depth;
  float factor;
  ExpertRows rows;
  const T* bias;  // nullptr: none
  Gradient<T> to;

  __device__ Extent extent() const { return {rows.with_zeros(rows.count()), depth}; }
  __device__ void put(int row, int column, float (&sums)[kWide]) const {
    const int64_t at = static_cast<int64_t>(row) * columns + column;
    const bool own = row < rows.count();
    with_part(columns % kWide == 0, columns - column, [&](auto part) {
      float before[kWide], added[kWide] = {};
      load_before(to, at, part, before);
      if (bias != nullptr && own) load(bias + column, part, added);
      const float weight = own ? rows.weight(row) : 0.0f;
#pragma unroll
      for (int e = 0; e < kWide; ++e) sums[e] = own ? factor * sums[e] + weight * added[e] : 0.0f;
      store_after(to, at, part, before, sums);
    });
  }
};

// dW = factor * a^T b (+ dW) over the expert's rows, of which there may be none.
template <typename T>
struct WeightProduct {
  using A = T;
  using B = T;
  static constexpr bool kAcrossA = true, kAcrossB = true;
  const T *a, *b;
  int64_t stride_a, stride_b;
  int columns, all_rows;
  float factor;
  ExpertRows rows;
  Gradient<float> to;

  __device__ Extent extent() const {
    const int depth = rows.count();
    return {depth == 0 && to.addend != nullptr ? 0 : all_rows, depth};
  }
  __device__ void put(int row, int column, float (&sums)[kWide]) const {
    const int64_t at = static_cast<int64_t>(row) * columns + column;
    with_part(columns % kWide == 0, columns - column, [&](auto part) {
      float before[kWide];
      load_before(to, at, part, before);
#pragma unroll
      for (int e = 0; e < kWide; ++e) sums[e] *= factor;
      store_after(to, at, part, before, sums);
    });
  }
};

// `rows_most`: the most rows that the product may have; `rows`: the number that is expected.
template <typename P>
void multiply(const Queue& queue, const P& p, int64_t rows_most, int64_t rows) {
  if constexpr (sizeof(typename P::A) == 2)
    tensor_product(queue, p, rows_most, rows);
  else
    plain_product(queue, p, rows_most);
}
template <typename P>
void load_products() {
  if constexpr (sizeof(typename P::A) == 2)
    load_tensor_kernels<P>();
  else
    load(plain_kernel<P>);
}

// d bias[column] += the sum of weight * dy. A block takes kWarp columns, and each of its warps takes every
// kWarps-th row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    bias_kernel(ExpertRows rows, const T* dy, int64_t columns, float* to) {
  __shared__ float shared[kWarps][kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  const int count = rows.count();
  float sum = 0;
  if (column < columns)
#pragma unroll 4
    for (int i = warp; i < count; i += kWarps) sum += rows.weight(i) * widen(dy[i * columns + column]);
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += shared[w][lane];
  to[column] += sum;
}

// d weights[choice] += the sum of dy * bias. Each warp takes one row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    weights_kernel(ExpertRows rows, const T* dy, const T* bias, int64_t columns, float* to) {
  const int i = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarp);
  if (i >= rows.count()) return;
  float sum = 0;
  for (int64_t c = threadIdx.x % kWarp * kWide; c < columns; c += kWarp * kWide)
    with_part(columns % kWide == 0, columns - c, [&](auto part) {
      float d[kWide], b[kWide];
      load(dy + i * columns + c, part, d);
      load(bias + c, part, b);
#pragma unroll
      for (int e = 0; e < kWide; ++e) sum += d[e] * b[e];  // zero beyond the row
    });
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) to[rows.choice(i)] += sum;
}

struct LinearShape {
  int64_t most, expected;  // rows
  int64_t in, out;
  bool out_in;
  float factor;
  ExpertRows rows;
};
LinearShape linear_shape(const OpCall& call) {
  const OpShapes& s = *call.shapes;
  return {s.inputs[1][0],
          static_cast<int64_t>(expected_rows(s)),
          s.inputs[1][1],
          s.outputs[0][1],
          s.attributes.weight_out_in,
          static_cast<float>(s.attributes.factor()),
          expert_rows(call)};
}

// to = factor * from B. from [most, depth]; B [depth, columns]: the weight as stored if `across`, else its
// transpose.
template <typename T>
void multiply_by_weight(const Queue& queue, const LinearShape& s, const T* from, int64_t depth,
                        const T* weight, bool across, int64_t columns, const T* bias, const Gradient<T>& to) {
  const auto run = [&]<bool kAcross>(std::bool_constant<kAcross>) {
    multiply(
        queue,
        RowsProduct<T, kAcross>{from, weight, depth, kAcross ? columns : depth, static_cast<int>(columns),
                                static_cast<int>(depth), s.factor, s.rows, bias, to},
        s.most, s.expected);
  };
  across ? run(std::true_type()) : run(std::false_type());
}

}  // namespace

void load_expert_linear_kernels() {
  for_each_precision([]<typename T>(T) {
    load_products<RowsProduct<T, true>>();
    load_products<RowsProduct<T, false>>();
    load_products<WeightProduct<T>>();
    load(bias_kernel<T>);
    load(weights_kernel<T>);
  });
}

void expert_linear_forward(const Queue& queue, const OpCall& call) {
  const LinearShape s = linear_shape(call);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    multiply_by_weight<T>(queue, s, data_of<const T>(call.inputs, 1), s.in,
                          data_of<const T>(call.parameters, 0), !s.out_in, s.out,
                          data_of<const T>(call.parameters, 1), {data_of<T>(call.outputs, 0), nullptr});
  });
}

void expert_linear_backward(const Queue& queue, const OpCall& call) {
  const LinearShape s = linear_shape(call);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const T* const x = data_of<const T>(call.inputs, 1);
    const T* const dy = data_of<const T>(call.output_gradients, 0);
    const Gradient<T> dx = gradient_of<T>(call.input_gradients, 1);
    if (dx.data != nullptr)
      multiply_by_weight<T>(queue, s, dy, s.out, data_of<const T>(call.parameters, 0), s.out_in, s.in,
                            nullptr, dx);
    const Gradient<float> d_weight = gradient_of<float>(call.parameter_gradients, 0);
    if (d_weight.data != nullptr) {
      const int64_t rows = s.out_in ? s.out : s.in, columns = s.out_in ? s.in : s.out;
      multiply(
          queue,
          WeightProduct<T>{s.out_in ? dy : x, s.out_in ? x : dy, rows, columns, static_cast<int>(columns),
                           static_cast<int>(rows), s.factor, s.rows, d_weight},
          rows, rows);
    }
    if (call.shapes->parameters.size() < 2) return;
    if (auto* const d_bias = data_of<float>(call.parameter_gradients, 1))
      launch(queue, bias_kernel<T>, div_up(s.out, kWarp), kThreads, 0, s.rows, dy, s.out, d_bias);
    if (!call.shapes->attributes.routing.weighted) return;
    const Gradient<float> d_weights =
        gradient_of<float>(call.input_gradients, call.shapes->inputs.size() - 1);
    if (d_weights.data == nullptr) return;
    begin_choices(queue, d_weights.data, d_weights.addend, routing_layout(*call.shapes).choices());
    launch(queue, weights_kernel<T>, div_up(s.most, kWarps), kThreads, 0, s.rows, dy,
           data_of<const T>(call.parameters, 1), s.out, d_weights.data);
  });
}

}  // namespace sluice::cuda
