// linear: y = x W (+ b); dx = dy W^T, dW += x^T dy, db += column sums of dy.
#include <algorithm>

#include "engine/error.h"
#include "gpu/cuda_kernels.h"
#include "gpu/cuda_matmul.h"

namespace sluice::cuda {
namespace {

struct Products {
  Product y, dx, dw;
};

// W is stored [K,N], or [N,K] if weight_out_in, and dW alike.
Products products_of(const OpShapes& s, bool accumulate_dx) {
  const bool out_in = s.attributes.weight_out_in;
  const int64_t rows = s.inputs[0][0], in = s.inputs[0][1], out = s.parameters[0][out_in ? 0 : 1];
  const int64_t stride_w = out_in ? in : out;
  const DType t = s.precision;
  const Product dw = out_in ? Product{out, in, rows, true, false, out, in, in, t, DType::f32, true}
                            : Product{in, out, rows, true, false, in, out, out, t, DType::f32, true};
  return {{rows, out, in, false, out_in, in, stride_w, out, t, t, false, s.parameters.size() == 2},
          {rows, in, out, false, !out_in, out, stride_w, in, t, t, accumulate_dx},
          dw};
}

void* wanted(std::span<const TensorView> views, size_t i) {
  return i < views.size() ? views[i].data : nullptr;
}

}  // namespace

uint64_t linear_workspace_bytes(const OpShapes& shapes, Pass pass) {
  if (pass == Pass::forward || shapes.parameters.size() < 2) return kMatmulWorkspaceBytes;
  return std::max(kMatmulWorkspaceBytes,
                  column_sums_workspace_bytes(shapes.inputs[0][0], shapes.parameters[1][0]));
}

void linear_forward(const Queue&, const OpCall& call, Multiplier& multiplier) {
  multiplier.run(products_of(*call.shapes, false).y, call.inputs[0].data, call.parameters[0].data,
                 wanted(call.parameters, 1), call.outputs[0].data, call.workspace);
}

void linear_backward(const Queue& queue, const OpCall& call, Multiplier& multiplier) {
  const OpShapes& s = *call.shapes;
  const void *x = call.inputs[0].data, *dy = call.output_gradients[0].data;
  CHECK(dy != nullptr, "linear's backward without a gradient of its output");
  void* dx = wanted(call.input_gradients, 0);
  const Products p = products_of(s, dx != nullptr && call.input_gradients[0].accumulate);
  if (dx != nullptr) multiplier.run(p.dx, dy, call.parameters[0].data, nullptr, dx, call.workspace);
  const bool out_in = s.attributes.weight_out_in;
  if (void* dw = wanted(call.parameter_gradients, 0))
    multiplier.run(p.dw, out_in ? dy : x, out_in ? x : dy, nullptr, dw, call.workspace);
  if (void* db = wanted(call.parameter_gradients, 1))
    add_column_sums(queue, s.precision, dy, p.y.m, p.y.n, static_cast<float*>(db), call.workspace);
}

}  // namespace sluice::cuda
