// linear: products, and the bias's gradient as sums over rows.
#include <algorithm>

#include "gpu/cpu/kernels.h"
#include "gpu/cpu/matmul.h"
#include "gpu/cpu/rows.h"

namespace sluice::cpu {
namespace {

// Blocks of rows are summed, then their sums are added, both in order. Two levels keep the rounding error
// small when there are many rows.
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

uint64_t linear_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources) {
  return resources.multiplier.prepare(products_of(shapes, pass));
}

void linear_forward(const OpCall& call, const Resources& resources) {
  resources.multiplier.run(linear_output(call), call.workspace, resources.workers);
}

void linear_backward(const OpCall& call, const Resources& resources) {
  const OpShapes& s = *call.shapes;
  for (const ProductCall& product : linear_gradients(call))
    resources.multiplier.run(product, call.workspace, resources.workers);
  if (void* db = view_of(call.parameter_gradients, 1).data)
    add_column_sums(s.precision, call.output_gradients[0].data, s.inputs[0][0], s.parameters[1][0],
                    static_cast<float*>(db), resources.workers);
}

}  // namespace sluice::cpu
