// layer_norm and rms_norm, and sums over rows for parameter gradients (those of the norms, and of biases).
//
// A warp owns a row. Lane l takes elements [8 l, 8 l + 8), then those 256 further on, and so on. If the row
// is short enough, the warp keeps what it loaded, so that memory is read once. Sums over rows are cut into
// chunks, whose number is a function of the shape. A block sums columns of a chunk, each of its eight warps
// every eighth row; a second kernel adds the chunks in order.
//
// For rows that fit into a block's registers, one kernel makes the gradients of the input and of parameters,
// so that x and dy are read once. A block owns a chunk and takes the chunk's rows one by one; each thread has
// some of the columns.
#include "gpu/cuda/base.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kLaneStep = kWarp * kWide;  // columns that a warp takes at a time

struct NormShape {
  int64_t rows, columns;
  float epsilon;
  float from;  // added to the weight of rms_norm: 1, or -0, which changes no number
  bool wide;   // rows begin at multiples of 16 bytes
  bool parts;  // several of these rows make one row of the input
};

NormShape norm_shape(const OpShapes& s) {
  const int64_t columns = s.parameters[0][0], rows = element_count(s.inputs[0]) / columns;
  const OpAttributes& a = s.attributes;
  return {rows,
          columns,
          static_cast<float>(a.epsilon),
          a.weight_from_one ? 1.0f : -0.0f,
          columns % kWide == 0,
          columns != s.inputs[0][1]};
}

__device__ inline int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}

// Calls f(number, first column, part) for the lane's parts of a row: up to kKept parts, all whole, or any
// number of parts for kKept = 0.
template <int kKept, typename F>
__device__ void for_lane_parts(const NormShape& s, F f) {
  const int64_t first = threadIdx.x % kWarp * kWide;
  if constexpr (kKept > 0) {
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (first + i * kLaneStep < s.columns) f(i, first + i * kLaneStep, Whole());
  } else {
    for (int64_t c = first; c < s.columns; c += kLaneStep)
      with_part(s.wide, s.columns - c, [&](auto part) { f(0, c, part); });
  }
}

// A lane's parts of a row: kept in registers as stored, or loaded every time for kKept = 0.
template <typename T, int kKept>
struct LaneRow {
  const T* row;
  Raw<T> kept[kKept > 0 ? kKept : 1];

  __device__ LaneRow(const T* from, const NormShape& s) : row(from) {
    if constexpr (kKept > 0)
      for_lane_parts<kKept>(s, [&](int i, int64_t c, Whole) { kept[i] = load_raw(row + c); });
  }
  template <typename P>
  __device__ void get(int i, int64_t c, P part, float (&out)[kWide]) const {
    if constexpr (kKept > 0)
      unpack(kept[i], out);
    else
      load(row + c, part, out);
  }
};

// Calls f with the number of parts that a lane keeps, as a constant: 0 for rows that do not fit in registers.
constexpr int kKeptSome = 8, kKeptMany = 20;  // 2048 and 5120 columns
template <typename T, typename F>
void with_kept(const NormShape& s, F f) {
  const int64_t parts = div_up(s.columns, kLaneStep);
  if (s.wide && parts <= kKeptSome) return f(std::integral_constant<int, kKeptSome>());
  if constexpr (sizeof(T) == 2)
    if (s.wide && parts <= kKeptMany) return f(std::integral_constant<int, kKeptMany>());
  f(std::integral_constant<int, 0>());
}

// ---- Forward. kLayer: layer_norm, else rms_norm, which has neither mean nor bias.

__device__ inline void add_to_all(float from, float (&weight)[kWide]) {
#pragma unroll
  for (int e = 0; e < kWide; ++e) weight[e] += from;
}
// Loads what columns are multiplied by.
template <bool kLayer, typename T, typename P>
__device__ void load_factors(const NormShape& s, const T* weight, P part, float (&out)[kWide]) {
  load(weight, part, out);
  if (!kLayer) add_to_all(s.from, out);
}

template <typename T>
struct NormForward {
  NormShape shape;
  const T *x, *weight, *bias;
  T* y;
  float *mean, *rstd;
};

template <bool kLayer, typename T, int kKept>
__global__ void __launch_bounds__(kThreads) forward_kernel(NormForward<T> a) {
  const NormShape& s = a.shape;
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const LaneRow<T, kKept> x(a.x + row * s.columns, s);
  const auto columns = static_cast<float>(s.columns);
  float mean = 0;
  if (kLayer) {
    for_lane_parts<kKept>(s, [&](int i, int64_t c, auto part) {
      float value[kWide];
      x.get(i, c, part, value);
#pragma unroll
      for (int e = 0; e < kWide; ++e) mean += value[e];  // zero beyond the row
    });
    mean = warp_sum(mean) / columns;
  }
  float squares = 0;
  for_lane_parts<kKept>(s, [&](int i, int64_t c, auto part) {
    float value[kWide];
    x.get(i, c, part, value);
#pragma unroll
    for (int e = 0; e < kWide; ++e)
      if (present(part, e)) squares += (value[e] - mean) * (value[e] - mean);
  });
  const float rstd = 1.0f / sqrtf(warp_sum(squares) / columns + s.epsilon);
  for_lane_parts<kKept>(s, [&](int i, int64_t c, auto part) {
    float value[kWide], weight[kWide], bias[kWide] = {};
    x.get(i, c, part, value);
    load_factors<kLayer>(s, a.weight + c, part, weight);
    if (kLayer) load(a.bias + c, part, bias);
#pragma unroll
    for (int e = 0; e < kWide; ++e) value[e] = (value[e] - mean) * rstd * weight[e] + bias[e];
    store(a.y + row * s.columns + c, part, value);
  });
  if (threadIdx.x % kWarp != 0) return;
  if (kLayer) a.mean[row] = mean;
  a.rstd[row] = rstd;
}

// ---- Backward of the input, for rows that do not fit a block's registers or whose number of columns is no
// multiple of 8. With n = (x - mean) * rstd and g = dy * weight:
// dx = rstd * (g - average(g) - n * average(g * n)); without mean and average(g) for rms_norm.

template <typename T>
struct NormBackward {
  NormShape shape;
  const T *x, *weight, *dy;
  const float *mean, *rstd;
  Gradient<T> dx;
};

template <bool kLayer, typename T>
__global__ void __launch_bounds__(kThreads) backward_kernel(NormBackward<T> a) {
  const NormShape& s = a.shape;
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const float mean = kLayer ? a.mean[row] : 0.0f, rstd = a.rstd[row];
  const auto terms = [&](int64_t c, auto part, float(&n)[kWide], float(&g)[kWide]) {
    float weight[kWide];
    load(a.x + row * s.columns + c, part, n);
    load(a.dy + row * s.columns + c, part, g);
    load_factors<kLayer>(s, a.weight + c, part, weight);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      n[e] = (n[e] - mean) * rstd;
      g[e] *= weight[e];  // zero beyond the row
    }
  };
  float sum = 0, products = 0;
  for_lane_parts<0>(s, [&](int, int64_t c, auto part) {
    float n[kWide], g[kWide];
    terms(c, part, n, g);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      sum += g[e];
      products += g[e] * n[e];
    }
  });
  sum = kLayer ? warp_sum(sum) / static_cast<float>(s.columns) : 0.0f;
  products = warp_sum(products) / static_cast<float>(s.columns);
  for_lane_parts<0>(s, [&](int, int64_t c, auto part) {
    float n[kWide], g[kWide], before[kWide];
    load_before(a.dx, row * s.columns + c, part, before);
    terms(c, part, n, g);
#pragma unroll
    for (int e = 0; e < kWide; ++e) g[e] = rstd * (g[e] - sum - n[e] * products);
    store_after(a.dx, row * s.columns + c, part, before, g);
  });
}

// ---- Sums over rows.

// What is summed: dy, and dy * n with n of a norm's backward.
template <typename T>
struct ColumnTerms {
  int64_t rows, columns;
  bool wide;
  const T *dy, *x;
  const float *mean, *rstd;            // mean nullptr: zero
  float *partials, *product_partials;  // [chunks, columns]: of dy, of dy * n
};

// Adds the warps' sums of the block's columns, in order. Every thread gives the sums of its own columns and
// gets the total of column `thread`.
__device__ inline float add_warps(float (&shared)[kWarps][kLaneStep], const float (&sums)[kWide]) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // what was there has been read
#pragma unroll
  for (int e = 0; e < kWide; ++e) shared[thread / kWarp][thread % kWarp * kWide + e] = sums[e];
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += shared[warp][thread];
  return sum;
}
static_assert(kThreads == kLaneStep, "a thread adds the warps' sums of one column");

// There is one block for each chunk and each part of kLaneStep columns.
template <typename T, bool kDy, bool kProducts>
__global__ void __launch_bounds__(kThreads) column_sums_kernel(ColumnTerms<T> t, int64_t chunks) {
  __shared__ float shared[kWarps][kLaneStep];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t chunk = blockIdx.x % chunks, first_column = blockIdx.x / chunks * kLaneStep;
  const int64_t rows_per_chunk = div_up(t.rows, chunks), begin = chunk * rows_per_chunk;
  const int64_t end = begin + rows_per_chunk < t.rows ? begin + rows_per_chunk : t.rows;
  float sums[kWide] = {}, products[kWide] = {};
  const int64_t column = first_column + thread % kWarp * kWide;
  if (column < t.columns)
    with_part(t.wide, t.columns - column, [&](auto part) {
#pragma unroll 2
      for (int64_t row = begin + thread / kWarp; row < end; row += kWarps) {
        float dy[kWide], x[kWide];
        load(t.dy + row * t.columns + column, part, dy);
        if (kProducts) load(t.x + row * t.columns + column, part, x);
        const float mean = !kProducts || t.mean == nullptr ? 0.0f : t.mean[row];
        const float rstd = kProducts ? t.rstd[row] : 0.0f;
#pragma unroll
        for (int e = 0; e < kWide; ++e) {
          if (kDy) sums[e] += dy[e];
          if (kProducts) products[e] += dy[e] * ((x[e] - mean) * rstd);
        }
      }
    });
  const int64_t mine = first_column + thread, to = chunk * t.columns + mine;
  if (kDy) {
    const float sum = add_warps(shared, sums);
    if (mine < t.columns) t.partials[to] = sum;
  }
  if (kProducts) {
    const float sum = add_warps(shared, products);
    if (mine < t.columns) t.product_partials[to] = sum;
  }
}

// A block takes kWarp columns, and each of its warps takes every kWarps-th chunk.
__global__ void __launch_bounds__(kThreads)
    add_chunks_kernel(const float* partials, int64_t chunks, int64_t columns, float* to) {
  __shared__ double shared[kWarps][kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  double sum = 0;
  if (column < columns)
#pragma unroll 4
    for (int64_t chunk = warp; chunk < chunks; chunk += kWarps)
      sum += static_cast<double>(partials[chunk * columns + column]);
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += shared[w][lane];
  to[column] += static_cast<float>(sum);
}

void add_chunks(const Queue& queue, const float* partials, int64_t chunks, int64_t columns, float* to) {
  if (to == nullptr) return;
  launch(queue, add_chunks_kernel, div_up(columns, kWarp), kThreads, 0, partials, chunks, columns, to);
}

// Adds to `sums` and `products`; nullptr: not wanted.
template <typename T, bool kDy, bool kProducts>
void add_column_terms(const Queue& queue, ColumnTerms<T> terms, float* sums, float* products,
                      std::byte* workspace) {
  if (sums == nullptr && products == nullptr) return;
  const int64_t chunks = column_sum_chunks(terms.rows);
  terms.partials = reinterpret_cast<float*>(workspace);
  terms.product_partials = terms.partials + (kDy ? chunks * terms.columns : 0);
  launch(queue, column_sums_kernel<T, kDy, kProducts>, chunks * div_up(terms.columns, kLaneStep), kThreads, 0,
         terms, chunks);
  if (kDy) add_chunks(queue, terms.partials, chunks, terms.columns, sums);
  if (kProducts) add_chunks(queue, terms.product_partials, chunks, terms.columns, products);
}

// ---- Backward of the input and of parameters, for rows that fit.

// Columns of thread t: [8 t, 8 t + 8), and those kBlockStep further on, kParts times.
constexpr int kBlockStep = kThreads * kWide;

// Calls f with the number of parts that a thread needs, as a constant, and returns true. Returns false for
// rows that do not fit, and for parts of rows, which are so narrow that few threads of a block would have
// work.
template <typename F>
bool with_block_parts(const NormShape& s, F f) {
  if (!s.wide || s.parts || s.columns > 4 * kBlockStep) return false;
  if (s.columns <= kBlockStep)
    f(std::integral_constant<int, 1>());
  else if (s.columns <= 2 * kBlockStep)
    f(std::integral_constant<int, 2>());
  else
    f(std::integral_constant<int, 4>());
  return true;
}

struct TwoSums {
  float a, b;
};
// The sums over the block, in a fixed order. `shared` must not be the previous call's.
__device__ inline TwoSums block_sums(TwoSums mine, TwoSums (&shared)[kWarps]) {
  mine = {warp_sum(mine.a), warp_sum(mine.b)};
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
  __syncthreads();
  TwoSums sums = shared[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) sums.a += shared[warp].a, sums.b += shared[warp].b;
  return sums;
}

template <bool kLayer, typename T, int kParts>
__global__ void __launch_bounds__(kThreads)
    both_kernel(NormBackward<T> a, float* partials, float* product_partials, int64_t chunks) {
  __shared__ TwoSums shared[2][kWarps];
  const NormShape& s = a.shape;
  const int64_t rows_per_chunk = div_up(s.rows, chunks), begin = blockIdx.x * rows_per_chunk;
  const int64_t end = begin + rows_per_chunk < s.rows ? begin + rows_per_chunk : s.rows;
  const int64_t first = threadIdx.x * kWide;
  const auto for_parts = [&](auto f) {
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (first + i * kBlockStep < s.columns) f(i, first + i * kBlockStep);
  };
  Raw<T> x[kParts], dy[kParts], weight[kParts];
  const auto load_row = [&](int64_t row) {
    for_parts([&](int i, int64_t c) {
      x[i] = load_raw(a.x + row * s.columns + c);
      dy[i] = load_raw(a.dy + row * s.columns + c);
    });
  };
  for_parts([&](int i, int64_t c) { weight[i] = load_raw(a.weight + c); });
  float sums[kLayer ? kParts : 1][kWide] = {}, products[kParts][kWide] = {};
  if (begin < end) load_row(begin);
  for (int64_t row = begin; row < end; ++row) {
    const float mean = kLayer ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    float n[kParts][kWide], g[kParts][kWide];
    TwoSums mine = {0, 0};
    for_parts([&](int i, int64_t) {
      float w[kWide];
      unpack(x[i], n[i]);
      unpack(dy[i], g[i]);
      unpack(weight[i], w);
      if (!kLayer) add_to_all(s.from, w);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        n[i][e] = (n[i][e] - mean) * rstd;
        if (kLayer) sums[i][e] += g[i][e];
        products[i][e] += g[i][e] * n[i][e];
        g[i][e] *= w[e];
        mine.a += g[i][e];
        mine.b += g[i][e] * n[i][e];
      }
    });
    if (row + 1 < end) load_row(row + 1);  // under way while this row's sums are added
    const TwoSums all = block_sums(mine, shared[(row - begin) % 2]);
    const auto columns = static_cast<float>(s.columns);
    const float average = kLayer ? all.a / columns : 0.0f, product = all.b / columns;
    for_parts([&](int i, int64_t c) {
      float before[kWide];
      load_before(a.dx, row * s.columns + c, Whole(), before);
#pragma unroll
      for (int e = 0; e < kWide; ++e) g[i][e] = rstd * (g[i][e] - average - n[i][e] * product);
      store_after(a.dx, row * s.columns + c, Whole(), before, g[i]);
    });
  }
  for_parts([&](int i, int64_t c) {
    const int64_t to = blockIdx.x * s.columns + c;
    if constexpr (kLayer) store(partials + to, Whole(), sums[i]);
    store(product_partials + to, Whole(), products[i]);
  });
}

// Returns false where rows do not fit. Adds to `sums` and `products`; nullptr: not wanted.
template <bool kLayer, typename T>
bool both_gradients(const Queue& queue, const NormBackward<T>& arguments, float* sums, float* products,
                    std::byte* workspace) {
  const NormShape& s = arguments.shape;
  const int64_t chunks = norm_chunks(s.rows, kLayer ? 2 : 1);
  auto* partials = reinterpret_cast<float*>(workspace);
  float* product_partials = partials + (kLayer ? chunks * s.columns : 0);
  const bool fits = with_block_parts(s, [&]<int kParts>(std::integral_constant<int, kParts>) {
    launch(queue, both_kernel<kLayer, T, kParts>, chunks, kThreads, 0, arguments, partials, product_partials,
           chunks);
  });
  if (!fits) return false;
  if (kLayer) add_chunks(queue, partials, chunks, s.columns, sums);
  add_chunks(queue, product_partials, chunks, s.columns, products);
  return true;
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
    with_kept<T>(s, [&]<int kKept>(std::integral_constant<int, kKept>) {
      launch(queue, forward_kernel<kLayer, T, kKept>, div_up(s.rows, kWarps), kThreads, 0, arguments);
    });
  });
}

template <bool kLayer>
void norm_backward(const Queue& queue, const OpCall& call) {
  const NormShape s = norm_shape(*call.shapes);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const T *x = data_of<const T>(call.inputs, 0), *dy = data_of<const T>(call.output_gradients, 0);
    const float* mean = kLayer ? data_of<const float>(call.outputs, 1) : nullptr;
    const float* rstd = data_of<const float>(call.outputs, kLayer ? 2 : 1);
    const NormBackward<T> arguments{s,    x,    data_of<const T>(call.parameters, 0),   dy,
                                    mean, rstd, gradient_of<T>(call.input_gradients, 0)};
    float *products = data_of<float>(call.parameter_gradients, 0),
          *sums = data_of<float>(call.parameter_gradients, 1);
    if (both_gradients<kLayer>(queue, arguments, sums, products, call.workspace)) return;
    if (arguments.dx.data != nullptr)
      launch(queue, backward_kernel<kLayer, T>, div_up(s.rows, kWarps), kThreads, 0, arguments);
    add_column_terms<T, kLayer, true>(queue, {s.rows, s.columns, s.wide, dy, x, mean, rstd, nullptr, nullptr},
                                      sums, products, call.workspace);
  });
}

template <typename T, int kParts>
void load_both_kernels() {
  load(both_kernel<true, T, kParts>);
  load(both_kernel<false, T, kParts>);
}

template <typename T, int kKept>
void load_forward_kernels() {
  load(forward_kernel<true, T, kKept>);
  load(forward_kernel<false, T, kKept>);
}

}  // namespace

void load_norm_kernels() {
  for_each_precision([]<typename T>(T) {
    load_forward_kernels<T, 0>();
    load_forward_kernels<T, kKeptSome>();
    if constexpr (sizeof(T) == 2) load_forward_kernels<T, kKeptMany>();
    load(backward_kernel<true, T>);
    load(backward_kernel<false, T>);
    load_both_kernels<T, 1>();
    load_both_kernels<T, 2>();
    load_both_kernels<T, 4>();
    load(column_sums_kernel<T, true, true>);
    load(column_sums_kernel<T, false, true>);
    load(column_sums_kernel<T, true, false>);
  });
  load(add_chunks_kernel);
}

void layer_norm_forward(const Queue& queue, const OpCall& call) { norm_forward<true>(queue, call); }
void layer_norm_backward(const Queue& queue, const OpCall& call) { norm_backward<true>(queue, call); }
void rms_norm_forward(const Queue& queue, const OpCall& call) { norm_forward<false>(queue, call); }
void rms_norm_backward(const Queue& queue, const OpCall& call) { norm_backward<false>(queue, call); }

void add_column_sums(const Queue& queue, DType precision, const void* from, int64_t rows, int64_t columns,
                     float* to, std::byte* workspace) {
  with_precision(precision, [&]<typename T>(T) {
    add_column_terms<T, true, false>(queue,
                                     {rows, columns, columns % kWide == 0, static_cast<const T*>(from),
                                      nullptr, nullptr, nullptr, nullptr, nullptr},
                                     to, nullptr, workspace);
  });
}

}  // namespace sluice::cuda
