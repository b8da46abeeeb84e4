// linear_cross_entropy: logits = x W^T in chunks of rows, the rows' losses, and dx = dlogits W, dW +=
// dlogits^T x.
//
// The logits of a chunk are fp32 in the workspace; their gradient is rounded to the working precision in
// place (a row of it begins where the row of logits does).
#include <algorithm>

#include "gpu/cuda_kernels.h"
#include "gpu/cuda_matmul.h"

namespace sluice::cuda {
namespace {

struct Layout {
  int64_t rows, columns, vocabulary;
  int64_t chunk;   // rows of one chunk
  int64_t stride;  // floats of one row of logits: a multiple of 64 bytes
  uint64_t logits_bytes;
  uint64_t losses_bytes;  // one double a row of the chunk
};

Layout layout_of(const OpShapes& s) {
  Layout l;
  l.rows = s.inputs[0][0];
  l.columns = s.inputs[0][1];
  l.vocabulary = s.parameters[0][0];
  l.chunk = std::min(l.rows, cross_entropy_chunk(l.vocabulary));
  l.stride = (l.vocabulary + 15) / 16 * 16;
  l.logits_bytes = static_cast<uint64_t>(l.chunk * l.stride) * sizeof(float);
  l.losses_bytes = static_cast<uint64_t>((l.chunk + 7) / 8 * 8) * sizeof(double);
  return l;
}

struct Products {
  Product logits, dx, dw;
};

Products products_of(const OpShapes& s, const Layout& l, int64_t rows, bool accumulate_dx) {
  const DType t = s.precision;
  const int64_t c = l.columns, v = l.vocabulary;
  const int64_t stride = l.stride * static_cast<int64_t>(sizeof(float) / dtype_bytes(t));
  return {{rows, v, c, false, true, c, c, l.stride, t, DType::f32},
          {rows, c, v, false, false, stride, c, c, t, t, accumulate_dx},
          {v, c, rows, true, false, stride, c, c, t, DType::f32, true}};
}

void run(const Queue& queue, const OpCall& call, Pass pass, Multiplier& multiplier) {
  const OpShapes& s = *call.shapes;
  const Layout l = layout_of(s);
  const bool backward = pass == Pass::backward;
  const TensorView dx = backward ? call.input_gradients[0] : TensorView{};
  void* dw = backward ? call.parameter_gradients[0].data : nullptr;
  const void* weight = call.parameters[0].data;
  auto* losses = reinterpret_cast<double*>(call.workspace + l.logits_bytes);
  std::byte* scratch = call.workspace + l.logits_bytes + l.losses_bytes;
  for (int64_t begin = 0; begin < l.rows; begin += l.chunk) {
    const int64_t rows = std::min(l.chunk, l.rows - begin);
    const Products p = products_of(s, l, rows, dx.accumulate);
    const uint64_t offset = static_cast<uint64_t>(begin * l.columns) * dtype_bytes(s.precision);
    const void* x = static_cast<const std::byte*>(call.inputs[0].data) + offset;
    multiplier.run(p.logits, x, weight, nullptr, call.workspace, scratch);
    const LossRows loss_rows{reinterpret_cast<float*>(call.workspace),
                             losses,
                             static_cast<const int32_t*>(call.inputs[1].data) + begin,
                             rows,
                             l.vocabulary,
                             l.stride};
    finish_loss_rows(queue, loss_rows, s.precision, backward ? call.loss_scale : nullptr, call.valid_tokens);
    if (!call.outputs.empty() && call.outputs[0].data != nullptr)
      add_losses(queue, losses, rows, static_cast<double*>(call.outputs[0].data));
    if (dx.data != nullptr)
      multiplier.run(p.dx, call.workspace, weight, nullptr, static_cast<std::byte*>(dx.data) + offset,
                     scratch);
    if (dw != nullptr) multiplier.run(p.dw, call.workspace, x, nullptr, dw, scratch);
  }
}

}  // namespace

uint64_t linear_cross_entropy_workspace_bytes(const OpShapes& shapes) {
  const Layout l = layout_of(shapes);
  return l.logits_bytes + l.losses_bytes + kMatmulWorkspaceBytes;
}

void linear_cross_entropy_forward(const Queue& queue, const OpCall& call, Multiplier& multiplier) {
  run(queue, call, Pass::forward, multiplier);
}

void linear_cross_entropy_backward(const Queue& queue, const OpCall& call, Multiplier& multiplier) {
  run(queue, call, Pass::backward, multiplier);
}

}  // namespace sluice::cuda
