// linear: products, and the bias's gradient as sums over rows.
#include "gpu/cpu/column_sums.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/matmul.h"

namespace sluice::cpu {
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
    add_column_sums(
        s.precision, call.output_gradients[0].data, s.inputs[0][0], s.parameters[1][0],
        static_cast<float*>(db), [](int64_t) { return 1.0f; }, resources.workers);
}

}  // namespace sluice::cpu
