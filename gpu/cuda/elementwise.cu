// Elementwise ops, forward and backward, in grids that stride: a thread takes kWide elements at a
// time. Also repeats a row.
#include <type_traits>

#include "gpu/cuda/base.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

__device__ const float kOne = 1;

// 1 / (1 + e^-x): 1 for large x, 0 for large -x.
__device__ inline float sigmoid(float x) { return fast_reciprocal(1.0f + fast_exp2(x * -1.442695041f)); }

// The tanh form (Hendrycks, Gimpel 2016): 0.5 x (1 + tanh u) = x sigmoid(2 u) with 2 u = 2 sqrt(2 / pi) (x +
// 0.044715 x^3).
struct Gelu {
  static constexpr float kScale = 1.595769122f, kCubic = 0.044715f;
  __device__ static float part(float x) { return sigmoid(kScale * x * (1.0f + kCubic * x * x)); }
  __device__ static float value(float x) { return x * part(x); }
  __device__ static float derivative(float x) {
    const float s = part(x);
    return s + x * s * (1.0f - s) * kScale * (1.0f + 3.0f * kCubic * x * x);
  }
};

// What an op computes from one element of each operand; in backward, the gradients of inputs 0 and 1.
struct GeluOp {
  static constexpr int kInputs = 1, kReads = 1;  // reads: inputs that backward reads
  __device__ static float forward(float x, float) { return Gelu::value(x); }
  __device__ static void backward(float x, float, float dy, float& dx, float&) {
    dx = dy * Gelu::derivative(x);
  }
};
struct SwigluOp {
  static constexpr int kInputs = 2, kReads = 2;
  __device__ static float forward(float gate, float up) { return gate * sigmoid(gate) * up; }
  __device__ static void backward(float gate, float up, float dy, float& d_gate, float& d_up) {
    const float s = sigmoid(gate);
    d_gate = dy * up * s * (1.0f + gate * (1.0f - s));
    d_up = dy * gate * s;
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
    });
  }
};
// All ops of this file. An op that is missing here does not compile, since its kernels would not be loaded.
using AllOps = OpList<GeluOp, SwigluOp, AddOp>;

template <typename Op>
void forward(const Queue& queue, const OpCall& call) {
  static_assert(AllOps::has<Op>(), "gpu/cuda/elementwise.cu: add the op to AllOps");
  const int64_t count = element_count(call.shapes->inputs[0]);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    launch(queue, forward_kernel<Op, T>, elementwise_blocks(queue, count), kThreads, 0,
           data_of<const T>(call.inputs, 0), data_of<const T>(call.inputs, 1), data_of<T>(call.outputs, 0),
           count);
  });
}

template <typename Op>
void backward(const Queue& queue, const OpCall& call) {
  static_assert(AllOps::has<Op>(), "gpu/cuda/elementwise.cu: add the op to AllOps");
  const int64_t count = element_count(call.shapes->inputs[0]);
  with_precision(call.shapes->precision, [&]<typename T>(T) {
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
}

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
void swiglu_forward(const Queue& queue, const OpCall& call) { forward<SwigluOp>(queue, call); }
void swiglu_backward(const Queue& queue, const OpCall& call) { backward<SwigluOp>(queue, call); }
void add_forward(const Queue& queue, const OpCall& call) { forward<AddOp>(queue, call); }
void add_backward(const Queue& queue, const OpCall& call) { backward<AddOp>(queue, call); }

}  // namespace sluice::cuda
