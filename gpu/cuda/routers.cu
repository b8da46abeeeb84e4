// router, router_statistics and router_loss. route.cu chooses.
//
// A router's gradients are products of fp32 gradients of logits and 16-bit operands. No tensor core
// multiplies these two types. Statistics are cut into chunks of rows, which are summed in fp32; then the
// chunks' sums are added in double, both in order.
#include "engine/graph/routing.h"
#include "gpu/cuda/router_rows.h"
#include "gpu/cuda/tensor_product.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = kRouterThreads;

// logits = x W^T (+ bias).
template <typename T>
struct LogitsProduct {
  using A = T;
  using B = T;
  static constexpr bool kAcrossA = false, kAcrossB = false;
  const T *a, *b;
  int64_t stride_a, stride_b;
  int columns, rows, depth;
  const T* bias;
  float* to;

  __device__ Extent extent() const { return {rows, depth}; }
  __device__ void put(int row, int column, float (&sums)[kWide]) const {
    with_part(columns % kWide == 0, columns - column, [&](auto part) {
      float added[kWide] = {};
      if (bias != nullptr) load(bias + column, part, added);
#pragma unroll
      for (int e = 0; e < kWide; ++e) sums[e] += added[e];
      store(to + static_cast<int64_t>(row) * columns + column, part, sums);
    });
  }
};

// A gradient: dx = d logits W, or dW += d logits^T x.
template <typename OfB, typename To, bool across>
struct RouterGradient {
  using A = float;
  using B = OfB;
  static constexpr bool kAcrossA = across, kAcrossB = true;
  const float* a;
  const B* b;
  int64_t stride_a, stride_b;
  int columns, rows, depth;
  Gradient<To> to;

  __device__ Extent extent() const { return {rows, depth}; }
  __device__ void put(int row, int column, float (&sums)[kWide]) const {
    const int64_t at = static_cast<int64_t>(row) * columns + column;
    with_part(columns % kWide == 0, columns - column, [&](auto part) {
      float before[kWide];
      load_before(to, at, part, before);
      store_after(to, at, part, before, sums);
    });
  }
};
template <typename T>
using InputProduct = RouterGradient<T, T, false>;
template <typename T>
using RouterWeightProduct = RouterGradient<T, float, true>;

struct RouterShape {
  int64_t rows, columns, experts;

  explicit RouterShape(const OpShapes& s)
      : rows(s.inputs[0][0]), columns(s.inputs[0][1]), experts(s.parameters[0][0]) {}
};
int narrow_size(int64_t n) {
  CHECK(n <= INT_MAX / 2, "routers count in 32 bits");
  return static_cast<int>(n);
}

// ---- router_statistics.

struct StatisticsShape {
  int rows, experts, chosen, counted, chunks;  // counted: how many of the chosen count, from the first on
  __host__ __device__ int sums() const { return 2 * experts + 2; }
  __device__ int rows_of_chunk() const { return (rows + chunks - 1) / chunks; }
};
StatisticsShape statistics_shape(const OpShapes& s) {
  const int64_t rows = s.inputs[0][0];
  const Routing& r = s.attributes.routing;
  return {narrow_size(rows), narrow_size(r.experts), narrow_size(r.chosen), narrow_size(r.counted_choices()),
          narrow_size(statistics_chunks(rows))};
}

// Where `labels` is nullptr, all rows count.
__device__ bool is_padding(const int32_t* labels, int row) {
  return labels != nullptr && labels[row] == kPaddingLabel;
}

__global__ void __launch_bounds__(kThreads)
    log_sums_kernel(const float* logits, int rows, int experts, LogitSum* sums) {
  const int row = router_row();
  if (row >= rows) return;
  const float* const of_row = logits + static_cast<int64_t>(row) * experts;
  const LogitSum sum = log_sum(experts, [&](int e) { return of_row[e]; });
  if (threadIdx.x % kWarp == 0) sums[row] = sum;
}

// There is one thread for each sum of each chunk.
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(StatisticsShape s, const float* logits, const int32_t* routed, const int32_t* choices,
                      const int32_t* labels, const LogitSum* log_sums, float* partials) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, all = s.sums();
  if (i >= s.chunks * all) return;
  const int which = static_cast<int>(i % all), first = static_cast<int>(i / all) * s.rows_of_chunk();
  const int end = first + s.rows_of_chunk() < s.rows ? first + s.rows_of_chunk() : s.rows;
  float sum = 0;
  if (which == 2 * s.experts + 1) {
    partials[i] = first == 0 ? static_cast<float>(routed[s.experts]) : 0;
    return;
  }
  for (int row = first; row < end; ++row) {
    if (is_padding(labels, row)) continue;
    if (which < s.experts) {
      sum += log_sums[row].probability(logits[static_cast<int64_t>(row) * s.experts + which]);
    } else if (which == s.experts) {
      const float value = log_sums[row].value();
      sum += value * value;
    } else {
      for (int j = 0; j < s.counted; ++j)
        if (choices[static_cast<int64_t>(row) * s.chosen + j] == which - s.experts - 1) sum += 1;
    }
  }
  partials[i] = sum;
}

__global__ void __launch_bounds__(kThreads)
    add_statistics_kernel(const float* partials, int chunks, int count, float* to) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= count) return;
  double sum = 0;
#pragma unroll 4
  for (int chunk = 0; chunk < chunks; ++chunk)
    sum += static_cast<double>(partials[static_cast<int64_t>(chunk) * count + i]);
  to[i] = static_cast<float>(static_cast<double>(to[i]) + sum);
}

// With g the gradients of the softmax's sums: d logit = p (g - the sum of g p + 2 log-sum-exp dz).
__global__ void __launch_bounds__(kThreads)
    statistics_gradient_kernel(const float* logits, const int32_t* labels, int rows, int experts,
                               const float* d_sums, Gradient<float> to) {
  const int row = router_row();
  if (row >= rows) return;
  const int64_t first = static_cast<int64_t>(row) * experts;
  const LogitSum sum = log_sum(experts, [&](int e) { return logits[first + e]; });
  float product = 0;
  for (int e = static_cast<int>(threadIdx.x) % kWarp; e < experts; e += kWarp)
    product += d_sums[e] * sum.probability(logits[first + e]);
  product = warp_sum(product);
  const float of_z = 2 * sum.value() * d_sums[experts];
  const bool counts = !is_padding(labels, row);
  for (int e = static_cast<int>(threadIdx.x) % kWarp; e < experts; e += kWarp) {
    const float d = counts ? sum.probability(logits[first + e]) * (d_sums[e] - product + of_z) : 0;
    to.data[first + e] = to.addend == nullptr ? d : to.addend[first + e] + d;
  }
}

// ---- router_loss: one block.

struct RouterLoss {
  const float* statistics;
  const int32_t* labels;
  int experts, labels_count;
  double layers, balance, z;  // the number of layers; the factors of the two losses
  double* loss;               // nullptr: not wanted
  const double *loss_scale, *valid_tokens;
  Gradient<float> to;
};

__global__ void __launch_bounds__(kThreads) loss_kernel(RouterLoss a, bool differentiate) {
  __shared__ double shared[kThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  int mine_valid = 0, mine_counted = 0;
  for (int i = thread; i < a.labels_count; i += kThreads) {
    mine_valid += is_ignored(a.labels[i]) ? 0 : 1;
    mine_counted += a.labels[i] == kPaddingLabel ? 0 : 1;
  }
  const double valid = block_sum(static_cast<double>(mine_valid), shared);
  const double rows = fmax(block_sum(static_cast<double>(mine_counted), shared), 1.0) * a.layers;
  const double balance = valid * a.balance * a.experts / rows / rows, z = valid * a.z / rows;
  const auto choices = [&](int e) { return static_cast<double>(a.statistics[a.experts + 1 + e]); };
  double sum = 0;
  for (int e = thread; e < a.experts; e += kThreads) sum += choices(e) * static_cast<double>(a.statistics[e]);
  sum = block_sum(sum, shared);
  if (thread == 0 && a.loss != nullptr) {
    const double loss = balance * sum + z * static_cast<double>(a.statistics[a.experts]);
    a.loss[0] += loss;
    a.loss[2] += loss;
  }
  if (!differentiate || a.to.data == nullptr) return;
  const auto seed = static_cast<double>(static_cast<float>(*a.loss_scale / *a.valid_tokens));
  for (int i = thread; i < 2 * a.experts + 2; i += kThreads) {
    const double d = i < a.experts ? seed * balance * choices(i) : i == a.experts ? seed * z : 0.0;
    a.to.data[i] = static_cast<float>(a.to.addend == nullptr ? d : static_cast<double>(a.to.addend[i]) + d);
  }
}

void run_loss(const Queue& queue, const OpCall& call, bool differentiate) {
  const OpShapes& s = *call.shapes;
  const Routing& r = s.attributes.routing;
  const int labels = narrow_size(s.inputs[1][0]);
  const RouterLoss arguments{data_of<const float>(call.inputs, 0),
                             data_of<const int32_t>(call.inputs, 1),
                             narrow_size(r.experts),
                             labels,
                             static_cast<double>(r.layers),
                             r.balance_loss,
                             r.z_loss,
                             data_of<double>(call.outputs, 0),
                             call.loss_scale,
                             call.valid_tokens,
                             gradient_of<float>(call.input_gradients, 0)};
  launch(queue, loss_kernel, 1, kThreads, 0, arguments, differentiate);
}

}  // namespace

void load_router_kernels() {
  for_each_precision([]<typename T>(T) {
    if constexpr (sizeof(T) == 2)
      load_tensor_kernels<LogitsProduct<T>>();
    else
      load(plain_kernel<LogitsProduct<T>>);
    load(plain_kernel<InputProduct<T>>);
    load(plain_kernel<RouterWeightProduct<T>>);
  });
  load(log_sums_kernel);
  load(statistics_kernel);
  load(add_statistics_kernel);
  load(statistics_gradient_kernel);
  load(loss_kernel);
}

void router_forward(const Queue& queue, const OpCall& call) {
  const RouterShape s(*call.shapes);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const LogitsProduct<T> product{data_of<const T>(call.inputs, 0),
                                   data_of<const T>(call.parameters, 0),
                                   s.columns,
                                   s.columns,
                                   narrow_size(s.experts),
                                   narrow_size(s.rows),
                                   narrow_size(s.columns),
                                   data_of<const T>(call.parameters, 1),
                                   data_of<float>(call.outputs, 0)};
    if constexpr (sizeof(T) == 2)
      tensor_product(queue, product, s.rows, s.rows);
    else
      plain_product(queue, product, s.rows);
  });
}

void router_backward(const Queue& queue, const OpCall& call) {
  const RouterShape s(*call.shapes);
  const auto* const d_logits = data_of<const float>(call.output_gradients, 0);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Gradient<T> dx = gradient_of<T>(call.input_gradients, 0);
    if (dx.data != nullptr)
      plain_product(queue,
                    InputProduct<T>{d_logits, data_of<const T>(call.parameters, 0), s.experts, s.columns,
                                    narrow_size(s.columns), narrow_size(s.rows), narrow_size(s.experts), dx},
                    s.rows);
    if (auto* const d_weight = data_of<float>(call.parameter_gradients, 0))
      plain_product(queue,
                    RouterWeightProduct<T>{d_logits,
                                           data_of<const T>(call.inputs, 0),
                                           s.experts,
                                           s.columns,
                                           narrow_size(s.columns),
                                           narrow_size(s.experts),
                                           narrow_size(s.rows),
                                           {d_weight, d_weight}},
                    s.experts);
  });
  if (auto* const d_bias = data_of<float>(call.parameter_gradients, 1))
    add_column_sums(queue, DType::f32, d_logits, s.rows, s.experts, d_bias, call.workspace);
}

void router_statistics_forward(const Queue& queue, const OpCall& call) {
  const StatisticsShape s = statistics_shape(*call.shapes);
  const auto* const logits = data_of<const float>(call.inputs, 0);
  const auto* const routed = data_of<const int32_t>(call.inputs, 1);
  const int64_t choices = RoutingLayout{s.rows, s.experts, s.chosen}.experts_of();
  auto* const log_sums = reinterpret_cast<LogitSum*>(call.workspace);
  auto* const partials = reinterpret_cast<float*>(log_sums + s.rows);
  launch(queue, log_sums_kernel, div_up(s.rows, kRouterWarps), kThreads, 0, logits, s.rows, s.experts,
         log_sums);
  launch(queue, statistics_kernel, div_up(int64_t{s.chunks} * s.sums(), kThreads), kThreads, 0, s, logits,
         routed, routed + choices, data_of<const int32_t>(call.inputs, 2), log_sums, partials);
  launch(queue, add_statistics_kernel, div_up(s.sums(), kThreads), kThreads, 0, partials, s.chunks, s.sums(),
         data_of<float>(call.outputs, 0));
}

void router_statistics_backward(const Queue& queue, const OpCall& call) {
  const StatisticsShape s = statistics_shape(*call.shapes);
  const Gradient<float> to = gradient_of<float>(call.input_gradients, 0);
  if (to.data == nullptr) return;
  launch(queue, statistics_gradient_kernel, div_up(s.rows, kRouterWarps), kThreads, 0,
         data_of<const float>(call.inputs, 0), data_of<const int32_t>(call.inputs, 2), s.rows, s.experts,
         data_of<const float>(call.output_gradients, 0), to);
}

void router_loss_forward(const Queue& queue, const OpCall& call) { run_loss(queue, call, false); }
void router_loss_backward(const Queue& queue, const OpCall& call) { run_loss(queue, call, true); }

}  // namespace sluice::cuda
