// linear: y = x W (+ b); dx = dy W^T, dW += x^T dy, db += column sums of dy.
#include <algorithm>

#include "engine/error.h"
#include "gpu/cpu_kernels.h"
#include "gpu/cpu_matmul.h"
#include "gpu/cpu_rows.h"

namespace sluice::cpu {
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
  return {{rows, out, in, false, out_in, in, stride_w, out, t, t, false},
          {rows, in, out, false, !out_in, out, stride_w, in, t, t, accumulate_dx},
          dw};
}

bool wanted(std::span<const TensorView> views, size_t i) {
  return i < views.size() && views[i].data != nullptr;
}

// Blocks of rows are summed, then the sums are added, both in order: the error grows with the square root of
// the rows.
void add_column_sums(DType precision, const void* dy, int64_t rows, int64_t columns, float* to,
                     Workers& workers) {
  constexpr int64_t kColumns = 128, kRows = 64;
  workers.parallel_for((columns + kColumns - 1) / kColumns, [&](int64_t index, int) {
    const int64_t column = index * kColumns, n = std::min(kColumns, columns - column);
    float total[kColumns] = {};
    for (int64_t begin = 0; begin < rows; begin += kRows) {
      float block[kColumns] = {};
      for (int64_t r = begin; r < std::min(rows, begin + kRows); ++r) {
        const auto offset = static_cast<uint64_t>(r * columns + column) * dtype_bytes(precision);
        add_row(precision, static_cast<const std::byte*>(dy) + offset, block, n);
      }
      add_row(DType::f32, block, total, n);
    }
    add_row(DType::f32, total, to + column, n);
  });
}

}  // namespace

uint64_t linear_workspace_bytes(const OpShapes& shapes, Pass pass, Multiplier& multiplier) {
  const Products p = products_of(shapes, false);
  if (pass == Pass::forward) return multiplier.prepare(p.y);
  return std::max(multiplier.prepare(p.dx), multiplier.prepare(p.dw));
}

void linear_forward(const OpCall& call, Multiplier& multiplier, Workers& workers) {
  const void* bias = wanted(call.parameters, 1) ? call.parameters[1].data : nullptr;
  multiplier.run(products_of(*call.shapes, false).y, call.inputs[0].data, call.parameters[0].data, bias,
                 call.outputs[0].data, call.workspace, workers);
}

void linear_backward(const OpCall& call, Multiplier& multiplier, Workers& workers) {
  const OpShapes& s = *call.shapes;
  const void* dy = call.output_gradients[0].data;
  CHECK(dy != nullptr, "linear's backward without a gradient of its output");
  const Products p = products_of(s, wanted(call.input_gradients, 0) && call.input_gradients[0].accumulate);
  if (wanted(call.input_gradients, 0))
    multiplier.run(p.dx, dy, call.parameters[0].data, nullptr, call.input_gradients[0].data, call.workspace,
                   workers);
  if (wanted(call.parameter_gradients, 0)) {
    const void* x = call.inputs[0].data;
    const bool out_in = s.attributes.weight_out_in;
    multiplier.run(p.dw, out_in ? dy : x, out_in ? x : dy, nullptr, call.parameter_gradients[0].data,
                   call.workspace, workers);
  }
  if (wanted(call.parameter_gradients, 1))
    add_column_sums(s.precision, dy, p.y.m, p.y.n, static_cast<float*>(call.parameter_gradients[1].data),
                    workers);
}

}  // namespace sluice::cpu
