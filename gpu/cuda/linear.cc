// linear: products, and the bias's gradient as sums over rows. cuBLASLt has epilogues that compute this
// gradient beside dW's product. They overwrite instead of adding, in dW's type, and there are fewer
// algorithms with them. So the sums have a kernel of their own.
#include <algorithm>

#include "gpu/cuda/kernels.h"
#include "gpu/cuda/matmul.h"

namespace sluice::cuda {

void linear_forward(const Queue& queue, const OpCall& call) {
  queue.multiplier->run(linear_output(call), call.workspace);
}

void linear_backward(const Queue& queue, const OpCall& call) {
  const OpShapes& s = *call.shapes;
  for (const ProductCall& product : linear_gradients(call)) queue.multiplier->run(product, call.workspace);
  if (void* db = view_of(call.parameter_gradients, 1).data)
    add_column_sums(queue, s.precision, call.output_gradients[0].data, s.inputs[0][0], s.parameters[1][0],
                    static_cast<float*>(db), call.workspace);
}

}  // namespace sluice::cuda
