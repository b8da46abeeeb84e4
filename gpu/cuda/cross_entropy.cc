// linear_cross_entropy: products and rows, chunk by chunk.
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/matmul.h"

namespace sluice::cuda {
namespace {

void run(const Queue& queue, const OpCall& call, Pass pass) {
  const LossLayout layout = loss_layout(*call.shapes);
  const double* loss_scale = pass == Pass::backward ? call.loss_scale : nullptr;
  auto* loss = static_cast<double*>(view_of(call.outputs, 0).data);
  std::byte* scratch = call.workspace + layout.bytes();
  for (int64_t begin = 0; begin < layout.rows; begin += layout.chunk) {
    const LossChunk chunk = loss_chunk(call, pass, layout, begin);
    queue.multiplier->run(chunk.logits, scratch);
    if (loss != nullptr && chunk.rows.rights != nullptr) count_right_rows(queue, chunk.rows, loss + 1);
    finish_loss_rows(queue, chunk.rows, call.shapes->precision, loss_scale, call.valid_tokens);
    if (loss != nullptr) add_losses(queue, chunk.rows.losses, chunk.rows.rows, loss);
    queue.multiplier->run(chunk.dx, scratch);
    queue.multiplier->run(chunk.dw, scratch);
  }
}

}  // namespace

void linear_cross_entropy_forward(const Queue& queue, const OpCall& call) { run(queue, call, Pass::forward); }

void linear_cross_entropy_backward(const Queue& queue, const OpCall& call) {
  run(queue, call, Pass::backward);
}

}  // namespace sluice::cuda
