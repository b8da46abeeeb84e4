// Embedding: rows of a table, plus rows of a position table.
//
// The gradient of a token's row belongs to the block of the token's first row in the batch: that block walks
// the rows from there on and adds those with its token, in order. It looks at all tokens, which is rows^2 / 2
// comparisons in all: at 64 Ki rows 2 * 10^9, out of the cache, well below the products of one layer.
#include "gpu/cuda_base.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPart = kThreads * kWide;  // columns of one block

template <typename T>
struct EmbeddingForward {
  const int32_t* tokens;
  const T *table, *positions;  // positions may be nullptr
  T* x;
  int64_t rows, columns, vocabulary, sequence;
  bool wide;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(EmbeddingForward<T> a) {
  const int64_t parts = div_up(a.columns, kWide);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < a.rows * parts; i += step) {
    const int64_t row = i / parts, column = i % parts * kWide, count = a.columns - column;
    const int64_t token = a.tokens[row];
    require(token >= 0 && token < a.vocabulary);
    float value[kWide], position[kWide] = {};
    load(a.table + token * a.columns + column, count, a.wide, value);
    if (a.positions != nullptr) {
      load(a.positions + row % a.sequence * a.columns + column, count, a.wide, position);
      for (int e = 0; e < kWide; ++e) value[e] += position[e];
    }
    store(a.x + row * a.columns + column, count, a.wide, value);
  }
}

template <typename T>
struct EmbeddingBackward {
  const int32_t* tokens;
  const T* dy;
  float* gradient;
  int64_t rows, columns, vocabulary, sequence;
  bool wide;
};

// The rows among [first, first + kThreads) with `token`, ascending, into `found`; returns how many.
__device__ inline int find_rows(const int32_t* tokens, int64_t first, int64_t rows, int32_t token, int* found,
                                int* warp_counts) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const bool match = first + thread < rows && tokens[first + thread] == token;
  const unsigned ballot = __ballot_sync(kAllLanes, match ? 1 : 0);
  __syncthreads();  // the last call's results have been read
  if (lane == 0) warp_counts[warp] = __popc(ballot);
  __syncthreads();
  int before = 0, total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) before += warp_counts[w];
    total += warp_counts[w];
  }
  if (match) found[before + __popc(ballot & ((1u << lane) - 1u))] = thread;
  __syncthreads();
  return total;
}

// Block (row, part of the columns).
template <typename T>
__global__ void __launch_bounds__(kThreads) table_kernel(EmbeddingBackward<T> a) {
  __shared__ int found[kThreads];
  __shared__ int warp_counts[kThreads / kWarp];
  const int64_t row = blockIdx.x % a.rows;
  const int64_t column = blockIdx.x / a.rows * kPart + threadIdx.x * kWide, count = a.columns - column;
  const int32_t token = a.tokens[row];
  require(token >= 0 && token < a.vocabulary);
  for (int64_t first = 0; first < row; first += kThreads) {
    const int64_t other = first + threadIdx.x;
    if (__syncthreads_or(other < row && a.tokens[other] == token ? 1 : 0) != 0) return;  // not its first row
  }
  float sums[kWide] = {};
  for (int64_t first = row; first < a.rows; first += kThreads) {
    const int rows_found = find_rows(a.tokens, first, a.rows, token, found, warp_counts);
    for (int i = 0; count > 0 && i < rows_found; ++i) {
      float value[kWide];
      load(a.dy + (first + found[i]) * a.columns + column, count, a.wide, value);
      for (int e = 0; e < kWide; ++e) sums[e] += value[e];
    }
  }
  if (count > 0) store_gradient(a.gradient, true, token * a.columns + column, count, a.wide, sums);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) positions_kernel(EmbeddingBackward<T> a) {
  const int64_t parts = div_up(a.columns, kWide);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < a.sequence * parts;
       i += step) {
    const int64_t position = i / parts, column = i % parts * kWide, count = a.columns - column;
    float sums[kWide] = {};
    for (int64_t row = position; row < a.rows; row += a.sequence) {
      float value[kWide];
      load(a.dy + row * a.columns + column, count, a.wide, value);
      for (int e = 0; e < kWide; ++e) sums[e] += value[e];
    }
    store_gradient(a.gradient, true, position * a.columns + column, count, a.wide, sums);
  }
}

}  // namespace

void load_embedding_kernels() {
  for_each_precision([]<typename T>(T) {
    load(forward_kernel<T>);
    load(table_kernel<T>);
    load(positions_kernel<T>);
  });
}

void embedding_forward(const Queue& queue, const OpCall& call) {
  const OpShapes& s = *call.shapes;
  const int64_t rows = s.inputs[0][0], columns = s.parameters[0][1];
  with_precision(s.precision, [&]<typename T>(T) {
    const EmbeddingForward<T> arguments{data_of<const int32_t>(call.inputs, 0),
                                        data_of<const T>(call.parameters, 0),
                                        data_of<const T>(call.parameters, 1),
                                        data_of<T>(call.outputs, 0),
                                        rows,
                                        columns,
                                        s.parameters[0][0],
                                        s.attributes.sequence,
                                        columns % kWide == 0};
    launch(queue, forward_kernel<T>, striding_blocks(queue, rows * div_up(columns, kWide), kThreads),
           kThreads, 0, arguments);
  });
}

void embedding_backward(const Queue& queue, const OpCall& call) {
  const OpShapes& s = *call.shapes;
  const int64_t rows = s.inputs[0][0], columns = s.parameters[0][1];
  with_precision(s.precision, [&]<typename T>(T) {
    EmbeddingBackward<T> arguments{data_of<const int32_t>(call.inputs, 0),
                                   data_of<const T>(call.output_gradients, 0),
                                   data_of<float>(call.parameter_gradients, 0),
                                   rows,
                                   columns,
                                   s.parameters[0][0],
                                   s.attributes.sequence,
                                   columns % kWide == 0};
    if (arguments.gradient != nullptr)
      launch(queue, table_kernel<T>, rows * div_up(columns, kPart), kThreads, 0, arguments);
    arguments.gradient = data_of<float>(call.parameter_gradients, 1);
    if (arguments.gradient != nullptr)
      launch(queue, positions_kernel<T>,
             striding_blocks(queue, s.attributes.sequence * div_up(columns, kWide), kThreads), kThreads, 0,
             arguments);
  });
}

}  // namespace sluice::cuda
