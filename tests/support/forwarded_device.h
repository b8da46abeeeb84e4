// A device that forwards every call to another device, unless a test overrides the call.
#pragma once

#include <memory>
#include <utility>

#include "gpu/device.h"

namespace sluice {

class ForwardedDevice : public Device {
 public:
  explicit ForwardedDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  DeviceSizes sizes() const override { return device_->sizes(); }
  uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const override {
    return device_->workspace_bytes(shapes, pass);
  }
  void prepare(const OpShapes& shapes, Pass pass) override { device_->prepare(shapes, pass); }
  void warm_up(std::span<std::byte> arena) override { device_->warm_up(arena); }
  void forward(const OpCall& call) override { device_->forward(call); }
  void backward(const OpCall& call) override { device_->backward(call); }
  void zero(void* data, uint64_t bytes) override { device_->zero(data, bytes); }
  void round(const Accumulators& accumulators, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    device_->round(accumulators, gradient, precision, elements, block_sums);
  }
  void sum(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
           double* block_sums) override {
    device_->sum(from, parts, ranks, elements, to, out, block_sums);
  }
  void update(OptimizerKind optimizer, UpdateForm form, const UpdateRange& range,
              const UpdateScalars& scalars) override {
    device_->update(optimizer, form, range, scalars);
  }

 private:
  std::unique_ptr<Device> device_;
};

}  // namespace sluice
