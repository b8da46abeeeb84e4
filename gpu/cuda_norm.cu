// layer_norm and rms_norm, and sums over rows for parameter gradients (theirs, and a linear op's bias).
//
// A warp owns a row: lane l takes elements [8 l, 8 l + 8), then 256 further. Sums over rows are cut into
// chunks whose number is a function of the shape; a block sums a chunk's columns, eight warps taking every
// eighth row, and a second kernel adds the chunks in order.
#include "gpu/cuda_base.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kLaneStep = kWarp * kWide;  // columns that a warp takes at a time
constexpr int64_t kChunksMax = 128;

struct NormShape {
  int64_t rows, columns;
  float epsilon;
  bool wide;  // rows begin at multiples of 16 bytes
};

NormShape norm_shape(const OpShapes& s) {
  const Shape& x = s.inputs[0];
  return {x[0], x[1], static_cast<float>(s.attributes.epsilon), x[1] % kWide == 0};
}

__device__ inline int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}

// Calls f(first column, columns there) for the lane's parts of a row.
template <typename F>
__device__ void for_lane_columns(int64_t columns, F f) {
  for (int64_t c = threadIdx.x % kWarp * kWide; c < columns; c += kLaneStep) f(c, columns - c);
}

// ---- Forward. kLayer: layer_norm, else rms_norm, which has neither mean nor bias.

template <typename T>
struct NormForward {
  NormShape shape;
  const T *x, *weight, *bias;
  T* y;
  float *mean, *rstd;
};

template <bool kLayer, typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(NormForward<T> a) {
  const NormShape& s = a.shape;
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const T* x = a.x + row * s.columns;
  const auto columns = static_cast<float>(s.columns);
  float mean = 0;
  if (kLayer) {
    for_lane_columns(s.columns, [&](int64_t c, int64_t count) {
      float value[kWide];
      load(x + c, count, s.wide, value);
      for (int i = 0; i < kWide; ++i) mean += value[i];  // zero beyond the row
    });
    mean = warp_sum(mean) / columns;
  }
  float squares = 0;
  for_lane_columns(s.columns, [&](int64_t c, int64_t count) {
    float value[kWide];
    load(x + c, count, s.wide, value);
    for (int i = 0; i < kWide; ++i)
      if (i < count) squares += (value[i] - mean) * (value[i] - mean);
  });
  const float rstd = 1.0f / sqrtf(warp_sum(squares) / columns + s.epsilon);
  for_lane_columns(s.columns, [&](int64_t c, int64_t count) {
    float value[kWide], weight[kWide], bias[kWide] = {};
    load(x + c, count, s.wide, value);
    load(a.weight + c, count, s.wide, weight);
    if (kLayer) load(a.bias + c, count, s.wide, bias);
    for (int i = 0; i < kWide; ++i) value[i] = (value[i] - mean) * rstd * weight[i] + bias[i];
    store(a.y + row * s.columns + c, count, s.wide, value);
  });
  if (threadIdx.x % kWarp != 0) return;
  if (kLayer) a.mean[row] = mean;
  a.rstd[row] = rstd;
}

// ---- Backward of the input. With n = (x - mean) * rstd and g = dy * weight:
// dx = rstd * (g - average(g) - n * average(g * n)); without mean and average(g) for rms_norm.

template <typename T>
struct NormBackward {
  NormShape shape;
  const T *x, *weight, *dy;
  const float *mean, *rstd;
  T* dx;
  bool accumulate;
};

template <bool kLayer, typename T>
__global__ void __launch_bounds__(kThreads) backward_kernel(NormBackward<T> a) {
  const NormShape& s = a.shape;
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const T *x = a.x + row * s.columns, *dy = a.dy + row * s.columns;
  const float mean = kLayer ? a.mean[row] : 0.0f, rstd = a.rstd[row];
  float sum = 0, products = 0;
  const auto with_terms = [&](auto f) {
    for_lane_columns(s.columns, [&](int64_t c, int64_t count) {
      float n[kWide], g[kWide], weight[kWide];
      load(x + c, count, s.wide, n);
      load(dy + c, count, s.wide, g);
      load(a.weight + c, count, s.wide, weight);
      for (int i = 0; i < kWide; ++i) {
        n[i] = (n[i] - mean) * rstd;
        g[i] *= weight[i];  // zero beyond the row
      }
      f(c, count, n, g);
    });
  };
  with_terms([&](int64_t, int64_t, float(&n)[kWide], float(&g)[kWide]) {
    for (int i = 0; i < kWide; ++i) {
      sum += g[i];
      products += g[i] * n[i];
    }
  });
  sum = kLayer ? warp_sum(sum) / static_cast<float>(s.columns) : 0.0f;
  products = warp_sum(products) / static_cast<float>(s.columns);
  with_terms([&](int64_t c, int64_t count, float(&n)[kWide], float(&g)[kWide]) {
    for (int i = 0; i < kWide; ++i) g[i] = rstd * (g[i] - sum - n[i] * products);
    store_gradient(a.dx, a.accumulate, row * s.columns + c, count, s.wide, g);
  });
}

// ---- Sums over rows.

// What is summed: dy, or dy * n with n of a norm's backward.
template <typename T>
struct ColumnTerms {
  int64_t rows, columns;
  bool wide;
  const T *dy, *x;           // x nullptr: dy alone
  const float *mean, *rstd;  // mean nullptr: zero
};

int64_t chunk_count(int64_t rows) { return std::min(kChunksMax, div_up(rows, 4 * kWarps)); }

template <typename T>
__device__ void add_terms(const ColumnTerms<T>& t, int64_t row, int64_t column, float (&sums)[kWide]) {
  const int64_t offset = row * t.columns + column, count = t.columns - column;
  float term[kWide];
  load(t.dy + offset, count, t.wide, term);
  if (t.x != nullptr) {
    const float mean = t.mean == nullptr ? 0.0f : t.mean[row], rstd = t.rstd[row];
    float x[kWide];
    load(t.x + offset, count, t.wide, x);
    for (int i = 0; i < kWide; ++i) term[i] *= (x[i] - mean) * rstd;
  }
  for (int i = 0; i < kWide; ++i) sums[i] += term[i];
}

// Block (chunk, part of kLaneStep columns): partials[chunk, columns].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(ColumnTerms<T> t, int64_t chunks, float* partials) {
  __shared__ float shared[kWarps][kLaneStep];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t chunk = blockIdx.x % chunks, first_column = blockIdx.x / chunks * kLaneStep;
  const int64_t rows_per_chunk = div_up(t.rows, chunks), begin = chunk * rows_per_chunk;
  const int64_t end = begin + rows_per_chunk < t.rows ? begin + rows_per_chunk : t.rows;
  float sums[kWide] = {};
  const int64_t column = first_column + lane * kWide;
  if (column < t.columns)
    for (int64_t row = begin + warp; row < end; row += kWarps) add_terms(t, row, column, sums);
  for (int i = 0; i < kWide; ++i) shared[warp][lane * kWide + i] = sums[i];
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x);  // kThreads == kLaneStep
  if (first_column + mine >= t.columns) return;
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += shared[w][mine];
  partials[chunk * t.columns + first_column + mine] = sum;
}
static_assert(kThreads == kLaneStep, "a thread adds the warps' sums of one column");

__global__ void __launch_bounds__(kThreads)
    add_chunks_kernel(const float* partials, int64_t chunks, int64_t columns, float* to) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  double sum = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    sum += static_cast<double>(partials[chunk * columns + column]);
  to[column] += static_cast<float>(sum);
}

template <typename T>
void add_column_terms(const Queue& queue, const ColumnTerms<T>& terms, float* to, std::byte* workspace) {
  if (to == nullptr) return;
  auto* partials = reinterpret_cast<float*>(workspace);
  const int64_t chunks = chunk_count(terms.rows);
  launch(queue, column_sums_kernel<T>, chunks * div_up(terms.columns, kLaneStep), kThreads, 0, terms, chunks,
         partials);
  launch(queue, add_chunks_kernel, div_up(terms.columns, kThreads), kThreads, 0,
         static_cast<const float*>(partials), chunks, terms.columns, to);
}

// ---- Both norms. Outputs: layer_norm has y, mean, rstd; rms_norm y, rstd.

template <bool kLayer>
void norm_forward(const Queue& queue, const OpCall& call) {
  const NormShape s = norm_shape(*call.shapes);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const NormForward<T> arguments{s,
                                   data_of<const T>(call.inputs, 0),
                                   data_of<const T>(call.parameters, 0),
                                   data_of<const T>(call.parameters, 1),
                                   data_of<T>(call.outputs, 0),
                                   kLayer ? data_of<float>(call.outputs, 1) : nullptr,
                                   data_of<float>(call.outputs, kLayer ? 2 : 1)};
    launch(queue, forward_kernel<kLayer, T>, div_up(s.rows, kWarps), kThreads, 0, arguments);
  });
}

template <bool kLayer>
void norm_backward(const Queue& queue, const OpCall& call) {
  const NormShape s = norm_shape(*call.shapes);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const T *x = data_of<const T>(call.inputs, 0), *dy = data_of<const T>(call.output_gradients, 0);
    const float* mean = kLayer ? data_of<const float>(call.outputs, 1) : nullptr;
    const float* rstd = data_of<const float>(call.outputs, kLayer ? 2 : 1);
    const TensorView dx = view_of(call.input_gradients, 0);
    const NormBackward<T> arguments{
        s, x, data_of<const T>(call.parameters, 0), dy, mean, rstd, static_cast<T*>(dx.data), dx.accumulate};
    if (dx.data != nullptr)
      launch(queue, backward_kernel<kLayer, T>, div_up(s.rows, kWarps), kThreads, 0, arguments);
    add_column_terms<T>(queue, {s.rows, s.columns, s.wide, dy, x, mean, rstd},
                        data_of<float>(call.parameter_gradients, 0), call.workspace);
    add_column_terms<T>(queue, {s.rows, s.columns, s.wide, dy, nullptr, nullptr, nullptr},
                        data_of<float>(call.parameter_gradients, 1), call.workspace);
  });
}

}  // namespace

void load_norm_kernels() {
  for_each_precision([]<typename T>(T) {
    load(forward_kernel<true, T>);
    load(forward_kernel<false, T>);
    load(backward_kernel<true, T>);
    load(backward_kernel<false, T>);
    load(column_sums_kernel<T>);
  });
  load(add_chunks_kernel);
}

void layer_norm_forward(const Queue& queue, const OpCall& call) { norm_forward<true>(queue, call); }
void layer_norm_backward(const Queue& queue, const OpCall& call) { norm_backward<true>(queue, call); }
void rms_norm_forward(const Queue& queue, const OpCall& call) { norm_forward<false>(queue, call); }
void rms_norm_backward(const Queue& queue, const OpCall& call) { norm_backward<false>(queue, call); }

uint64_t norm_workspace_bytes(const OpShapes& shapes, Pass pass) {
  return pass == Pass::forward ? 0 : column_sums_workspace_bytes(shapes.inputs[0][0], shapes.inputs[0][1]);
}

void add_column_sums(const Queue& queue, DType precision, const void* from, int64_t rows, int64_t columns,
                     float* to, std::byte* workspace) {
  with_precision(precision, [&]<typename T>(T) {
    add_column_terms<T>(
        queue, {rows, columns, columns % kWide == 0, static_cast<const T*>(from), nullptr, nullptr, nullptr},
        to, workspace);
  });
}

uint64_t column_sums_workspace_bytes(int64_t rows, int64_t columns) {
  return static_cast<uint64_t>(chunk_count(rows) * columns) * sizeof(float);
}

}  // namespace sluice::cuda
