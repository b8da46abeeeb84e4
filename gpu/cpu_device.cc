// The cpu device: dispatches ops to the kernels of cpu_kernels.h. It owns the threads and the prepared
// matrix products; asking for an op's workspace is what prepares its products.
#include <algorithm>
#include <cstring>

#include "cpu_optim/reduce.h"
#include "engine/error.h"
#include "engine/parallel.h"
#include "gpu/cpu_kernels.h"
#include "gpu/cpu_matmul.h"

namespace sluice {
namespace {

constexpr uint64_t kZeroBytes = uint64_t{1} << 20;  // of one task

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads)
      : workers_(threads), multiplier_(std::make_unique<cpu::Multiplier>(threads, cpu::native_support())) {}

  void forward(const OpCall& call) override {
    switch (call.shapes->kind) {
      case OpKind::embedding: return cpu::embedding_forward(call, workers_);
      case OpKind::layer_norm: return cpu::layer_norm_forward(call, workers_);
      case OpKind::rms_norm: return cpu::rms_norm_forward(call, workers_);
      case OpKind::linear:
      case OpKind::linear_gelu: return cpu::linear_forward(call, *multiplier_, workers_);
      case OpKind::swiglu: return cpu::swiglu_forward(call, workers_);
      case OpKind::rope: return cpu::rope_forward(call, workers_);
      case OpKind::attention: return cpu::attention_forward(call, *multiplier_, workers_);
      case OpKind::add: return cpu::add_forward(call, workers_);
      case OpKind::linear_cross_entropy:
        return cpu::linear_cross_entropy_forward(call, *multiplier_, workers_);
    }
    CHECK(false, "an op that the cpu device does not know");
  }

  void backward(const OpCall& call) override {
    switch (call.shapes->kind) {
      case OpKind::embedding: return cpu::embedding_backward(call, workers_);
      case OpKind::layer_norm: return cpu::layer_norm_backward(call, workers_);
      case OpKind::rms_norm: return cpu::rms_norm_backward(call, workers_);
      case OpKind::linear: return cpu::linear_backward(call, *multiplier_, workers_);
      case OpKind::linear_gelu: return cpu::linear_gelu_backward(call, *multiplier_, workers_);
      case OpKind::swiglu: return cpu::swiglu_backward(call, workers_);
      case OpKind::rope: return cpu::rope_backward(call, workers_);
      case OpKind::attention: return cpu::attention_backward(call, *multiplier_, workers_);
      case OpKind::add: return cpu::add_backward(call, workers_);
      case OpKind::linear_cross_entropy:
        return cpu::linear_cross_entropy_backward(call, *multiplier_, workers_);
    }
    CHECK(false, "an op that the cpu device does not know");
  }

  uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const override {
    const int threads = workers_.threads();
    switch (shapes.kind) {
      case OpKind::embedding:
      case OpKind::swiglu:
      case OpKind::add: return 0;
      case OpKind::layer_norm: return cpu::layer_norm_workspace_bytes(shapes, pass, threads);
      case OpKind::rms_norm: return cpu::rms_norm_workspace_bytes(shapes, pass, threads);
      case OpKind::rope: return cpu::rope_workspace_bytes(shapes, pass, threads);
      case OpKind::linear:
      case OpKind::linear_gelu: return cpu::linear_workspace_bytes(shapes, pass, *multiplier_);
      case OpKind::attention: return cpu::attention_workspace_bytes(shapes, pass, threads);
      case OpKind::linear_cross_entropy:
        return cpu::linear_cross_entropy_workspace_bytes(shapes, pass, *multiplier_);
    }
    CHECK(false, "an op that the cpu device does not know");
    return 0;
  }

  void round(const float* accumulator, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    cpu::round_gradient(accumulator, gradient, precision, elements, block_sums, workers_);
  }

  void sum(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
           double* block_sums) override {
    sum_ranks(from, parts, ranks, elements, to, out, block_sums, workers_);
  }

  void optimize(const AdamWRange& range, const StepScalars::Update* update) override {
    update_range(range, *update, workers_);
  }

  void zero(void* data, uint64_t bytes) override {
    const auto parts = static_cast<int64_t>((bytes + kZeroBytes - 1) / kZeroBytes);
    workers_.parallel_for(parts, [&](int64_t index, int) {
      const uint64_t begin = static_cast<uint64_t>(index) * kZeroBytes;
      std::memset(static_cast<std::byte*>(data) + begin, 0, std::min(kZeroBytes, bytes - begin));
    });
  }

 private:
  Workers workers_;
  std::unique_ptr<cpu::Multiplier> multiplier_;  // behind a pointer: workspace_bytes is const and prepares
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) { return std::make_unique<CpuDevice>(threads); }

bool cpu_device_has_native_bf16() { return cpu::native_support().bf16; }

}  // namespace sluice
