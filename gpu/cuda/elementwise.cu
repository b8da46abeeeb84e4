// Elementwise ops, forward and backward, in grids that stride: a thread takes kWide elements at a
// time. Also repeats a row.
#include <type_traits>

#include "gpu/cuda/gates.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

__device__ const float kOne = 1;
__global__ void put_kernel(float* to, float value) {
  if (threadIdx.x == 0) *to = value;
}

struct GeluOp {
  static constexpr int kInputs = 1, kReads = 1;
  __device__ static float forward(float x, float) { return Gelu::value(x); }
  __device__ static void backward(float x, float, float dy, float& dx, float&) {
    dx = dy * Gelu::derivative(x);
  }
};
struct AddOp {
  static constexpr int kInputs = 2, kReads = 0;
  __device__ static float forward(float a, float b) { return a + b; }
  __device__ static void backward(float, float, float dy, float& da, float& db) { da = db = dy; }
};

template <typename Op, typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(const T* a, const T* b, T* y, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kWide;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWide; i < count; i += step)
    with_part(true, count - i, [&](auto part) {
      float x[kWide], other[kWide] = {};
      load(a + i, part, x);
      if (Op::kInputs == 2) load(b + i, part, other);
#pragma unroll
      for (int e = 0; e < kWide; ++e) x[e] = Op::forward(x[e], other[e]);
      store(y + i, part, x);
    });
}

template <typename Op, typename T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const T* a, const T* b, const T* dy, Gradient<T> da, Gradient<T> db, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kWide;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWide; i < count; i += step)
    with_part(true, count - i, [&](auto part) {
      float x[kWide] = {}, other[kWide] = {}, d[kWide], before[kWide], other_before[kWide];
      if (Op::kReads >= 1) load(a + i, part, x);
      if (Op::kReads == 2) load(b + i, part, other);
      load(dy + i, part, d);
      load_before(da, i, part, before);
      if (Op::kInputs == 2) load_before(db, i, part, other_before);
      float dx[kWide], d_other[kWide];
#pragma unroll
      for (int e = 0; e < kWide; ++e) Op::backward(x[e], other[e], d[e], dx[e], d_other[e]);
      store_after(da, i, part, before, dx);
      if (Op::kInputs == 2) store_after(db, i, part, other_before, d_other);
    });
}

// For an op whose two inputs are packed, as the two halves of one input's rows. `columns`: columns of the
// output.
struct PackedParts {
  int64_t rows, columns, parts;

  explicit PackedParts(const Shape& y) : rows(y[0]), columns(y[1]), parts(div_up(y[1], kWide)) {}
  // Calls f(offset of the first half, of the second, of the output, part) for the thread's parts of rows.
  template <typename F>
  __device__ void for_each(F f) const {
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * parts; i += step) {
      const int64_t row = i / parts, column = i % parts * kWide, first = 2 * row * columns + column;
      with_part(columns % kWide == 0, columns - column,
                [&](auto part) { f(first, first + columns, row * columns + column, part); });
    }
  }
};

template <typename Op, typename T>
__global__ void __launch_bounds__(kThreads) packed_forward_kernel(const T* x, T* y, PackedParts parts) {
  parts.for_each([&](int64_t first, int64_t second, int64_t out, auto part) {
    float a[kWide], b[kWide];
    load(x + first, part, a);
    load(x + second, part, b);
#pragma unroll
    for (int e = 0; e < kWide; ++e) a[e] = Op::forward(a[e], b[e]);
    store(y + out, part, a);
  });
}

template <typename Op, typename T>
__global__ void __launch_bounds__(kThreads)
    packed_backward_kernel(const T* x, const T* dy, Gradient<T> dx, PackedParts parts) {
  parts.for_each([&](int64_t first, int64_t second, int64_t out, auto part) {
    float a[kWide], b[kWide], d[kWide], before_a[kWide], before_b[kWide], da[kWide], db[kWide];
    load(x + first, part, a);
    load(x + second, part, b);
    load(dy + out, part, d);
    load_before(dx, first, part, before_a);
    load_before(dx, second, part, before_b);
#pragma unroll
    for (int e = 0; e < kWide; ++e) Op::backward(a[e], b[e], d[e], da[e], db[e]);
    store_after(dx, first, part, before_a, da);
    store_after(dx, second, part, before_b, db);
  });
}

// Copies `row` [columns] to every row of `to`, each block one row at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    repeat_kernel(const T* row, T* to, int64_t rows, int64_t columns) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x)
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) to[r * columns + c] = row[c];
}

int64_t elementwise_blocks(const Queue& queue, int64_t count) {
  return striding_blocks(queue, div_up(count, kWide), kThreads);
}

int64_t packed_blocks(const Queue& queue, const Shape& y) {
  return striding_blocks(queue, y[0] * div_up(y[1], kWide), kThreads);
}

// Whether the op's inputs may come packed into one.
template <typename Op>
constexpr bool kMayBePacked = Op::kInputs == 2 && Op::kReads == 2;

template <typename Op, typename T>
void load_packed() {
  if constexpr (kMayBePacked<Op>) {
    load(packed_forward_kernel<Op, T>);
    load(packed_backward_kernel<Op, T>);
  }
}

template <typename... Ops>
struct OpList {
  template <typename Op>
  static constexpr bool has() {
    return (std::is_same_v<Op, Ops> || ...);
  }
  static void load_kernels() {
    for_each_precision([]<typename T>(T) {
      (load(forward_kernel<Ops, T>), ...);
      (load(backward_kernel<Ops, T>), ...);
      (load_packed<Ops, T>(), ...);
    });
  }
};
// All ops of this file. An op that is missing here does not compile, since its kernels would not be loaded.
using AllOps = OpList<GeluOp, SwigluOp, GegluOp, AddOp>;

template <typename Op>
void forward(const Queue& queue, const OpCall& call) {
  static_assert(AllOps::has<Op>(), "gpu/cuda/elementwise.cu: add the op to AllOps");
  const Shape& y = call.shapes->outputs[0];
  const int64_t count = element_count(y);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    if constexpr (kMayBePacked<Op>)
      if (call.shapes->inputs.size() == 1)
        return launch(queue, packed_forward_kernel<Op, T>, packed_blocks(queue, y), kThreads, 0,
                      data_of<const T>(call.inputs, 0), data_of<T>(call.outputs, 0), PackedParts(y));
    launch(queue, forward_kernel<Op, T>, elementwise_blocks(queue, count), kThreads, 0,
           data_of<const T>(call.inputs, 0), data_of<const T>(call.inputs, 1), data_of<T>(call.outputs, 0),
           count);
  });
}

template <typename Op>
void backward(const Queue& queue, const OpCall& call) {
  static_assert(AllOps::has<Op>(), "gpu/cuda/elementwise.cu: add the op to AllOps");
  const Shape& y = call.shapes->outputs[0];
  const int64_t count = element_count(y);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    if constexpr (kMayBePacked<Op>)
      if (call.shapes->inputs.size() == 1)
        return launch(queue, packed_backward_kernel<Op, T>, packed_blocks(queue, y), kThreads, 0,
                      data_of<const T>(call.inputs, 0), data_of<const T>(call.output_gradients, 0),
                      gradient_of<T>(call.input_gradients, 0), PackedParts(y));
    launch(queue, backward_kernel<Op, T>, elementwise_blocks(queue, count), kThreads, 0,
           data_of<const T>(call.inputs, 0), data_of<const T>(call.inputs, 1),
           data_of<const T>(call.output_gradients, 0), gradient_of<T>(call.input_gradients, 0),
           gradient_of<T>(call.input_gradients, 1), count);
  });
}

}  // namespace

void load_elementwise_kernels() {
  AllOps::load_kernels();
  for_each_precision([]<typename T>(T) { load(repeat_kernel<T>); });
  load(put_kernel);
}

void put(const Queue& queue, float value, float* to) { launch(queue, put_kernel, 1, kWarp, 0, to, value); }

const float* one_on_device() {
  void* one = nullptr;
  check_setup(cudaGetSymbolAddress(&one, kOne), "Preparing the GPU's kernels");
  return static_cast<const float*>(one);
}

void repeat_row(const Queue& queue, DType precision, const void* row, void* to, int64_t rows,
                int64_t columns) {
  with_precision(precision, [&]<typename T>(T) {
    launch(queue, repeat_kernel<T>, striding_blocks(queue, rows * kThreads, kThreads), kThreads, 0,
           static_cast<const T*>(row), static_cast<T*>(to), rows, columns);
  });
}

void gelu_forward(const Queue& queue, const OpCall& call) { forward<GeluOp>(queue, call); }
void gelu_backward(const Queue& queue, const OpCall& call) { backward<GeluOp>(queue, call); }
void swiglu_forward(const Queue& queue, const OpCall& call) {
  call.shapes->attributes.gelu_gate ? forward<GegluOp>(queue, call) : forward<SwigluOp>(queue, call);
}
void swiglu_backward(const Queue& queue, const OpCall& call) {
  call.shapes->attributes.gelu_gate ? backward<GegluOp>(queue, call) : backward<SwigluOp>(queue, call);
}
void add_forward(const Queue& queue, const OpCall& call) { forward<AddOp>(queue, call); }
void add_backward(const Queue& queue, const OpCall& call) { backward<AddOp>(queue, call); }

}  // namespace sluice::cuda
