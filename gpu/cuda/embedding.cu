// Embedding: rows of a table, plus rows of a position table.
//
// The gradient of a token's row of the table belongs to the block of the first row in the micro-batch that
// has the token. That block walks the rows from its own on and adds those with the token, in order. All
// blocks of the same columns together make at most rows^2 comparisons: at 64 Ki rows 4 * 10^9, which take a
// few milliseconds from the cache.
#include "gpu/cuda/base.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPart = kThreads * kWide;  // columns of one block
constexpr int kTokens = 4;               // that a thread compares at a time
constexpr int kStep = kThreads * kTokens;

// A row's position in its document; 0 for an idle row.
__device__ inline uint32_t position_of(uint32_t row, uint32_t sequence, const int32_t* begins) {
  const auto place = static_cast<int32_t>(row % sequence);
  const int32_t begin = begins == nullptr ? 0 : begins[row];
  require(begin <= place + 1);
  return static_cast<uint32_t>(begin > place ? 0 : place - begin);
}

template <typename T>
struct EmbeddingForward {
  const int32_t* tokens;
  const int32_t* begins;       // of documents; nullptr: every sequence is one
  const T *table, *positions;  // positions may be nullptr
  T* x;
  uint32_t rows, columns, vocabulary, sequence;
  float factor;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(EmbeddingForward<T> a) {
  const uint32_t parts = (a.columns + kWide - 1) / kWide, items = a.rows * parts;
  const auto columns = static_cast<int64_t>(a.columns);
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < items; i += gridDim.x * kThreads) {
    const uint32_t row = i / parts, column = i % parts * kWide;
    const auto token = static_cast<uint32_t>(a.tokens[row]);  // a negative one is beyond the vocabulary
    require(token < a.vocabulary);
    with_part(columns % kWide == 0, columns - column, [&](auto part) {
      float value[kWide], position[kWide] = {};
      load(a.table + token * columns + column, part, value);
      if (a.positions != nullptr)
        load(a.positions + position_of(row, a.sequence, a.begins) * columns + column, part, position);
#pragma unroll
      for (int e = 0; e < kWide; ++e) value[e] = value[e] * a.factor + position[e];
      store(a.x + row * columns + column, part, value);
    });
  }
}

template <typename T>
struct EmbeddingBackward {
  const int32_t *tokens, *begins;
  const T* dy;
  float* gradient;
  uint32_t rows, columns, vocabulary, sequence;
  float factor;  // of the token table's rows

  // Adds `sums` to the gradient's row.
  template <typename P>
  __device__ void add(int64_t row, int64_t column, P part, float (&sums)[kWide]) const {
    const Gradient<float> to{gradient, gradient};
    float before[kWide];
    load_before(to, row * columns + column, part, before);
    store_after(to, row * columns + column, part, before, sums);
  }
};

// Whether one of the rows before `row` has its token. The whole block calls, and gets the same answer.
__device__ inline bool occurs_before(const int32_t* tokens, uint32_t row, int32_t token) {
  for (uint32_t first = 0; first < row; first += kStep) {
    bool found = false;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const uint32_t other = first + i * kThreads + threadIdx.x;
      found = found || (other < row && tokens[other] == token);
    }
    if (__syncthreads_or(found ? 1 : 0) != 0) return true;
  }
  return false;
}

// Shared memory of a block.
struct Found {
  int rows[kStep];
  int counts[kTokens][kThreads / kWarp];
};

// Writes the rows of [first, first + kStep) with `token` into `found`, ascending, counted from `first`.
// Returns how many there are.
__device__ inline int find_rows(const int32_t* tokens, uint32_t first, uint32_t rows, int32_t token,
                                Found& found) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  unsigned ballots[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const uint32_t row = first + static_cast<uint32_t>(i * kThreads + thread);
    ballots[i] = __ballot_sync(kAllLanes, row < rows && tokens[row] == token ? 1 : 0);
  }
  __syncthreads();  // the last call's results have been read
  if (lane == 0)
    for (int i = 0; i < kTokens; ++i) found.counts[i][warp] = __popc(ballots[i]);
  __syncthreads();
  int total = 0;
#pragma unroll
  for (int i = 0; i < kTokens; ++i)
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w == warp && (ballots[i] >> lane & 1u) != 0)
        found.rows[total + __popc(ballots[i] & ((1u << lane) - 1u))] = i * kThreads + thread;
      total += found.counts[i][w];
    }
  __syncthreads();
  return total;
}

// There is one block for each row and each part of the row's columns.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4) table_kernel(EmbeddingBackward<T> a) {
  __shared__ Found found;
  const uint32_t row = blockIdx.x % a.rows;
  const auto columns = static_cast<int64_t>(a.columns);
  const int64_t column = blockIdx.x / a.rows * kPart + threadIdx.x * kWide;
  const int32_t token = a.tokens[row];
  require(static_cast<uint32_t>(token) < a.vocabulary);
  if (occurs_before(a.tokens, row, token)) return;
  float sums[kWide] = {};
  for (uint32_t first = row; first < a.rows; first += kStep) {
    const int count = find_rows(a.tokens, first, a.rows, token, found);
    if (column >= columns) continue;
    with_part(columns % kWide == 0, columns - column, [&](auto part) {
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        float value[kWide];
        load(a.dy + (static_cast<int64_t>(first) + found.rows[i]) * columns + column, part, value);
#pragma unroll
        for (int e = 0; e < kWide; ++e) sums[e] += value[e];
      }
    });
  }
#pragma unroll
  for (int e = 0; e < kWide; ++e) sums[e] *= a.factor;
  if (column < columns)
    with_part(columns % kWide == 0, columns - column, [&](auto part) { a.add(token, column, part, sums); });
}

// Where each document has positions of its own, a thread looks at every row that may have the thread's
// position, in order.
template <typename T>
__global__ void __launch_bounds__(kThreads) positions_kernel(EmbeddingBackward<T> a) {
  const uint32_t parts = (a.columns + kWide - 1) / kWide, items = a.sequence * parts;
  const auto columns = static_cast<int64_t>(a.columns);
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < items; i += gridDim.x * kThreads) {
    const uint32_t position = i / parts, column = i % parts * kWide;
    with_part(columns % kWide == 0, columns - column, [&](auto part) {
      float sums[kWide] = {};
      const auto add = [&](uint32_t row) {
        float value[kWide];
        load(a.dy + row * columns + column, part, value);
#pragma unroll
        for (int e = 0; e < kWide; ++e) sums[e] += value[e];
      };
      if (a.begins == nullptr) {
#pragma unroll 4
        for (uint32_t row = position; row < a.rows; row += a.sequence) add(row);
      } else {
        for (uint32_t row = position; row < a.rows; ++row)
          if (position_of(row, a.sequence, a.begins) == position) add(row);
      }
      a.add(position, column, part, sums);
    });
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
  const int64_t blocks = striding_blocks(queue, rows * div_up(columns, kWide), kThreads);
  with_precision(s.precision, [&]<typename T>(T) {
    const EmbeddingForward<T> arguments{data_of<const int32_t>(call.inputs, 0),
                                        data_of<const int32_t>(call.inputs, 1),
                                        data_of<const T>(call.parameters, 0),
                                        data_of<const T>(call.parameters, 1),
                                        data_of<T>(call.outputs, 0),
                                        static_cast<uint32_t>(rows),
                                        static_cast<uint32_t>(columns),
                                        static_cast<uint32_t>(s.parameters[0][0]),
                                        static_cast<uint32_t>(s.attributes.sequence),
                                        static_cast<float>(s.attributes.factor())};
    launch(queue, forward_kernel<T>, blocks, kThreads, 0, arguments);
  });
}

void embedding_backward(const Queue& queue, const OpCall& call) {
  const OpShapes& s = *call.shapes;
  const int64_t rows = s.inputs[0][0], columns = s.parameters[0][1], sequence = s.attributes.sequence;
  with_precision(s.precision, [&]<typename T>(T) {
    EmbeddingBackward<T> arguments{data_of<const int32_t>(call.inputs, 0),
                                   data_of<const int32_t>(call.inputs, 1),
                                   data_of<const T>(call.output_gradients, 0),
                                   data_of<float>(call.parameter_gradients, 0),
                                   static_cast<uint32_t>(rows),
                                   static_cast<uint32_t>(columns),
                                   static_cast<uint32_t>(s.parameters[0][0]),
                                   static_cast<uint32_t>(sequence),
                                   static_cast<float>(s.attributes.factor())};
    if (arguments.gradient != nullptr)
      launch(queue, table_kernel<T>, rows * div_up(columns, kPart), kThreads, 0, arguments);
    arguments.gradient = data_of<float>(call.parameter_gradients, 1);
    if (arguments.gradient != nullptr)
      launch(queue, positions_kernel<T>, striding_blocks(queue, sequence * div_up(columns, kWide), kThreads),
             kThreads, 0, arguments);
  });
}

}  // namespace sluice::cuda
