// A device that wraps one that computes in GPU memory, for tests whose operands lie in host memory: every
// call copies its operands to the GPU, runs, waits, and copies all of them back.
//
// On the GPU each operand lies between guard bands, aligned to 64 bytes as in an arena and to no more. The
// workspace is not copied: it is allocated on the GPU. Operands must have the sizes that the shapes say.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/cuda/error.h"
#include "gpu/device.h"

namespace sluice {

// `bytes` of GPU memory between guard bands. The destructor checks the bands and frees the memory.
class GpuBytes {
 public:
  explicit GpuBytes(uint64_t bytes) : bytes_(bytes) {
    cuda::check_setup(cudaMalloc(&gpu_, bytes + 2 * kBand), "Allocating GPU memory");
    const std::vector<uint8_t> band(kBand, kPattern);
    for (const uint64_t at : {uint64_t{0}, kBand + bytes})
      cuda::check_setup(cudaMemcpy(begin() + at, band.data(), kBand, cudaMemcpyHostToDevice),
                        "Copying to the GPU");
  }
  GpuBytes(const GpuBytes&) = delete;
  ~GpuBytes() {
    std::vector<uint8_t> band(kBand);
    for (const uint64_t at : {uint64_t{0}, kBand + bytes_}) {
      EXPECT_EQ(cudaMemcpy(band.data(), begin() + at, kBand, cudaMemcpyDeviceToHost), cudaSuccess);
      EXPECT_TRUE(std::all_of(band.begin(), band.end(), [](uint8_t byte) { return byte == kPattern; }))
          << "a kernel wrote outside of " << bytes_ << " bytes";
    }
    EXPECT_EQ(cudaFree(gpu_), cudaSuccess);
  }
  void* data() const { return begin() + kBand; }
  uint64_t bytes() const { return bytes_; }

 private:
  static constexpr uint64_t kBand = 256 + 64;  // cudaMalloc aligns to 256
  static constexpr uint8_t kPattern = 0xA5;
  uint8_t* begin() const { return static_cast<uint8_t*>(gpu_); }
  uint64_t bytes_;
  void* gpu_ = nullptr;
};

inline void wait_for_gpu() { cuda::check_step(cudaDeviceSynchronize()); }

// A copy on the GPU of `bytes` at `host`. The destructor copies it back and frees it.
class GpuCopy {
 public:
  GpuCopy(void* host, uint64_t bytes) : host_(host), gpu_(bytes) {
    cuda::check_setup(cudaMemcpy(data(), host, bytes, cudaMemcpyHostToDevice), "Copying to the GPU");
    wait_for_gpu();  // the device's streams are not ordered after this one
  }
  GpuCopy(const GpuCopy&) = delete;
  ~GpuCopy() { EXPECT_EQ(cudaMemcpy(host_, data(), gpu_.bytes(), cudaMemcpyDeviceToHost), cudaSuccess); }
  void* data() const { return gpu_.data(); }

 private:
  void* host_;
  GpuBytes gpu_;
};

class HostOperands final : public Device {
 public:
  explicit HostOperands(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  void forward(const OpCall& call) override { run(call, Pass::forward); }
  void backward(const OpCall& call) override { run(call, Pass::backward); }
  uint64_t workspace_bytes(const OpShapes&, Pass) const override { return 0; }

  void prepare(const OpShapes& shapes, Pass pass) override { device_->prepare(shapes, pass); }
  void round(const Accumulators& accumulators, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    Copies copies;
    const uint64_t blocks = (elements + kNormBlock - 1) / kNormBlock;
    Accumulators on_gpu = accumulators;
    for (uint32_t a = 0; a < on_gpu.count; ++a) on_gpu.of[a] = copies.of(on_gpu.of[a], elements);
    device_->round(on_gpu, copies.of(gradient, elements * dtype_bytes(precision)), precision, elements,
                   copies.of(block_sums, blocks));
    wait_for_gpu();
  }

  void sum(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
           double* block_sums) override {
    Copies copies;
    const uint64_t blocks = (elements + kNormBlock - 1) / kNormBlock;
    device_->sum(from, copies.of(parts, ranks * elements * dtype_bytes(from)), ranks, elements, to,
                 copies.of(out, elements * dtype_bytes(to)), copies.of(block_sums, blocks));
    wait_for_gpu();
  }

  void update(OptimizerKind optimizer, UpdateForm form, const UpdateRange& range,
              const UpdateScalars& scalars) override {
    Copies copies;
    const uint64_t n = range.elements, bytes = n * dtype_bytes(range.precision);
    UpdateRange there = range;
    there.master = copies.of(range.master, n);
    const std::span<const StatePlane> planes = optimizer_of(optimizer).planes;
    for (size_t p = 0; p < planes.size(); ++p)
      there.planes[p] = copies.of(range.planes[p], planes[p].bytes(n));
    there.gradient = copies.of(range.gradient, bytes);
    there.weights = copies.of(range.weights, bytes);
    there.next_gradient = copies.of(range.next_gradient, bytes);
    device_->update(optimizer, form, there, {copies.of(scalars.update, 1), copies.of(scalars.guess, 1)});
    wait_for_gpu();
  }

  void zero(void* data, uint64_t bytes) override {
    Copies copies;
    device_->zero(copies.of(data, bytes), bytes);
    wait_for_gpu();
  }

 private:
  class Copies {
   public:
    // A copy of `elements` of T (of bytes for void); nullptr for nullptr.
    template <typename T>
    T* of(T* host, uint64_t elements) {
      if (host == nullptr) return nullptr;
      uint64_t bytes = elements;
      if constexpr (!std::is_void_v<T>) bytes *= sizeof(T);
      copies_.emplace_back(const_cast<std::remove_const_t<T>*>(host), bytes);
      return static_cast<T*>(copies_.back().data());
    }
    std::vector<TensorView> of(std::span<const TensorView> views, const std::vector<Shape>& shapes,
                               const std::vector<DType>& types) {
      std::vector<TensorView> out(views.begin(), views.end());
      for (size_t i = 0; i < out.size(); ++i) {
        const uint64_t bytes = static_cast<uint64_t>(element_count(shapes[i])) * dtype_bytes(types[i]);
        out[i].data = of(views[i].data, bytes);
        out[i].addend = views[i].addend == views[i].data ? out[i].data : of(views[i].addend, bytes);
      }
      return out;
    }

   private:
    std::list<GpuCopy> copies_;
  };

  static std::vector<DType> input_types(const OpShapes& s) {
    std::vector<DType> types;
    for (size_t i = 0; i < s.inputs.size(); ++i) types.push_back(input_type(s, i));
    return types;
  }

  void run(const OpCall& call, Pass pass) {
    const OpShapes& s = *call.shapes;
    std::vector<Shape> output_shapes;
    std::vector<DType> output_types;
    op_rule(s.kind).infer(s, output_shapes, output_types);
    const std::vector<DType> precision(s.parameters.size(), s.precision);
    const std::vector<DType> fp32(s.parameters.size(), DType::f32);
    Copies copies;
    const auto inputs = copies.of(call.inputs, s.inputs, input_types(s));
    const auto outputs = copies.of(call.outputs, output_shapes, output_types);
    const auto parameters = copies.of(call.parameters, s.parameters, precision);
    const auto output_gradients = copies.of(call.output_gradients, output_shapes, output_types);
    const auto input_gradients = copies.of(call.input_gradients, s.inputs, input_types(s));
    const auto parameter_gradients = copies.of(call.parameter_gradients, s.parameters, fp32);
    OpCall there = call;
    there.inputs = inputs;
    there.outputs = outputs;
    there.parameters = parameters;
    there.output_gradients = output_gradients;
    there.input_gradients = input_gradients;
    there.parameter_gradients = parameter_gradients;
    there.loss_scale = copies.of(call.loss_scale, 1);
    there.valid_tokens = copies.of(call.valid_tokens, 1);
    there.workspace = workspace(device_->workspace_bytes(s, pass));
    if (pass == Pass::forward)
      device_->forward(there);
    else
      device_->backward(there);
    wait_for_gpu();
  }

  // A workspace whose bytes are all NaN.
  std::byte* workspace(uint64_t bytes) {
    if (workspace_ == nullptr || workspace_->bytes() != bytes) {
      workspace_.reset();
      workspace_ = std::make_unique<GpuBytes>(bytes);
    }
    constexpr int kNan = 0xFF;
    cuda::check_setup(cudaMemsetAsync(workspace_->data(), kNan, bytes), "Poisoning a workspace");
    wait_for_gpu();
    return static_cast<std::byte*>(workspace_->data());
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<GpuBytes> workspace_;  // of the last call
};

}  // namespace sluice
