#include "gpu/cuda_ops.h"

#include "engine/error.h"
#include "gpu/cuda_device.h"
#include "gpu/cuda_error.h"
#include "gpu/cuda_matmul.h"

namespace sluice::cuda {
namespace {

class OpsDevice final : public Device {
 public:
  OpsDevice(const Queue& queue, Multiplier& multiplier) : queue_(queue), multiplier_(multiplier) {
    int gpu = 0, bytes = 0;
    check_setup(cudaGetDevice(&gpu), "Asking for the current GPU");
    check_setup(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu),
                "Asking for the GPU's shared memory");
    queue_.shared_bytes_max = static_cast<uint64_t>(bytes);
    load_kernels(queue_);
  }

  void forward(const OpCall& call) override {
    switch (call.shapes->kind) {
      case OpKind::embedding:
        return embedding_forward(queue_, call);
      case OpKind::layer_norm:
        return layer_norm_forward(queue_, call);
      case OpKind::rms_norm:
        return rms_norm_forward(queue_, call);
      case OpKind::linear:
      case OpKind::linear_gelu:
        return linear_forward(call, multiplier_);
      case OpKind::swiglu:
        return swiglu_forward(queue_, call);
      case OpKind::rope:
        return rope_forward(queue_, call);
      case OpKind::attention:
        return attention_forward(queue_, call);
      case OpKind::add:
        return add_forward(queue_, call);
      case OpKind::linear_cross_entropy:
        return linear_cross_entropy_forward(queue_, call, multiplier_);
    }
    CHECK(false, "an op that the cuda device does not know");
  }

  void backward(const OpCall& call) override {
    switch (call.shapes->kind) {
      case OpKind::embedding:
        return embedding_backward(queue_, call);
      case OpKind::layer_norm:
        return layer_norm_backward(queue_, call);
      case OpKind::rms_norm:
        return rms_norm_backward(queue_, call);
      case OpKind::linear:
        return linear_backward(queue_, call, multiplier_);
      case OpKind::linear_gelu:
        return linear_gelu_backward(queue_, call, multiplier_);
      case OpKind::swiglu:
        return swiglu_backward(queue_, call);
      case OpKind::rope:
        return rope_backward(queue_, call);
      case OpKind::attention:
        return attention_backward(queue_, call);
      case OpKind::add:
        return add_backward(queue_, call);
      case OpKind::linear_cross_entropy:
        return linear_cross_entropy_backward(queue_, call, multiplier_);
    }
    CHECK(false, "an op that the cuda device does not know");
  }

  uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const override {
    return cuda_workspace_bytes(shapes, pass);
  }

  void prepare(const OpShapes& shapes, Pass pass) override {
    for (const Product& product : products_of(shapes, pass)) multiplier_.prepare(product);
  }
  void warm_up(std::span<std::byte> arena) override {
    multiplier_.warm_up(arena);
    cuda::zero(queue_, arena.data(), arena.size());
  }

  void round(const float* accumulator, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    round_gradient(queue_, accumulator, gradient, precision, elements, block_sums);
  }

  void sum(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
           double* block_sums) override {
    sum_parts(queue_, from, parts, ranks, elements, to, out, block_sums);
  }

  void optimize(const AdamWRange& range, const StepScalars::Update* update) override {
    cuda::optimize(queue_, range, update);
  }

  void zero(void* data, uint64_t bytes) override { cuda::zero(queue_, data, bytes); }

 private:
  Queue queue_;
  Multiplier& multiplier_;
};

}  // namespace

void load_kernels(const Queue& queue) {
  load_embedding_kernels();
  load_norm_kernels();
  load_elementwise_kernels();
  load_rope_kernels();
  load_attention_forward_kernels(queue);
  load_attention_backward_kernels(queue);
  load_loss_kernels();
  load_optimizer_kernels();
}

std::unique_ptr<Device> make_ops_device(const Queue& queue, Multiplier& multiplier) {
  return std::make_unique<OpsDevice>(queue, multiplier);
}

}  // namespace sluice::cuda
