#include "gpu/cuda/ops.h"

#include "engine/base/error.h"
#include "gpu/cuda/device.h"
#include "gpu/cuda/error.h"
#include "gpu/cuda/matmul.h"

namespace sluice::cuda {
namespace {

class OpsDevice final : public Device {
 public:
  OpsDevice(const Queue& queue, Multiplier& multiplier) : queue_(queue) {
    int gpu = 0;
    check_setup(cudaGetDevice(&gpu), "Asking for the current GPU");
    const auto bytes = [gpu](cudaDeviceAttr attribute) {
      int value = 0;
      check_setup(cudaDeviceGetAttribute(&value, attribute, gpu), "Asking for the GPU's shared memory");
      return static_cast<uint64_t>(value);
    };
    queue_.shared_bytes_max = bytes(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    queue_.shared_bytes_together = bytes(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    queue_.shared_bytes_reserved = bytes(cudaDevAttrReservedSharedMemoryPerBlock);
    queue_.multiplier = &multiplier;
    load_kernels(queue_);
  }

  void forward(const OpCall& call) override { kernels_of(kKernels, call.shapes->kind).forward(queue_, call); }
  void backward(const OpCall& call) override {
    kernels_of(kKernels, call.shapes->kind).backward(queue_, call);
  }
  uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const override {
    return cuda_workspace_bytes(shapes, pass);
  }

  void prepare(const OpShapes& shapes, Pass pass) override {
    try {
      for (const Product& product : products_of(shapes, pass)) queue_.multiplier->prepare(product);
    } catch (const Error& error) {
      throw error.with_clause("in " + op_text(shapes, pass));
    }
  }
  void warm_up(std::span<std::byte> arena) override {
    queue_.multiplier->warm_up(arena);
    cuda::zero(queue_, arena.data(), arena.size());
  }

  void round(const Accumulators& accumulators, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    round_gradient(queue_, accumulators, gradient, precision, elements, block_sums);
  }

  void sum(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
           double* block_sums) override {
    sum_parts(queue_, from, parts, ranks, elements, to, out, block_sums);
  }

  void update(OptimizerKind optimizer, UpdateForm form, const UpdateRange& range,
              const UpdateScalars& scalars) override {
    with_optimizer(optimizer, [&]<OptimizerKind kind>() { update_by<kind>(queue_, form, range, scalars); });
  }

  void zero(void* data, uint64_t bytes) override { cuda::zero(queue_, data, bytes); }

 private:
  Queue queue_;
};

}  // namespace

void load_kernels(const Queue& queue) {
  load_embedding_kernels();
  load_norm_kernels();
  load_elementwise_kernels();
  load_rope_kernels();
  load_attention_forward_kernels(queue);
  load_attention_backward_kernels(queue);
  load_loss_kernels(queue);
  load_cached_attention_kernels();
  load_router_kernels();
  load_route_kernels();
  load_expert_kernels();
  load_expert_linear_kernels();
  load_gradient_kernels();
  for (int k = 0; k < kOptimizerKinds; ++k)
    with_optimizer(static_cast<OptimizerKind>(k), []<OptimizerKind kind>() { load_update_kernels<kind>(); });
}

std::unique_ptr<Device> make_ops_device(const Queue& queue, Multiplier& multiplier) {
  return std::make_unique<OpsDevice>(queue, multiplier);
}

}  // namespace sluice::cuda
