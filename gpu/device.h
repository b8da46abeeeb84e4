// A device runs ops, described by plain structs. No device knows models, planner or tiers.
//
// Owner: the compute lane's thread; one call at a time. A call may use its operands and its workspace and
// nothing else: after construction a device allocates no memory. On one kind of processor, results depend on
// shapes and values only, never on thread counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cpu_optim/optimizer.h"
#include "engine/program/program.h"
#include "gpu/accelerator.h"

namespace sluice {

struct TensorView {
  void* data = nullptr;  // nullptr: not wanted (gradients) or not there (gradient of an unused output)
  // For a gradient that is written: what is added to it before it is rounded. This is `data` itself, or, for
  // gradients of inputs, another tensor of the same shape and type, which is only read. nullptr: nothing.
  const void* addend = nullptr;
};

// View i, or a view without data if `views` has fewer.
inline TensorView view_of(std::span<const TensorView> views, size_t i) {
  return i < views.size() ? views[i] : TensorView{};
}

struct OpCall {
  const OpShapes* shapes = nullptr;
  // The tensors that `shapes` describes. engine/graph/op.h says which values integers may have; a device need
  // not check them.
  std::span<const TensorView> inputs, outputs, parameters;
  // For backward: one for each output, input and parameter. Gradients of outputs are only read unless the
  // op's rule says that they are overwritten. Gradients of parameters are fp32. The op adds to them even
  // without an addend, unless its rule says that they can be overwritten: then it adds if there is an addend,
  // and overwrites if there is none. A frozen parameter's data is nullptr.
  std::span<const TensorView> output_gradients, input_gradients, parameter_gradients;
  std::byte* workspace = nullptr;  // workspace_bytes(shapes, pass), aligned to 64
  int64_t expert = 0;              // of an op of one expert
  uint32_t layer = 0;              // of an op that draws random numbers (engine/graph/draws.h)
  // For the backward of the loss and for both passes of router_loss: two of the step's scalars, in the
  // device's memory. Their quotient, rounded to fp32, is d(objective) by d(sum of losses).
  const double *loss_scale = nullptr, *valid_tokens = nullptr;
};

// Sizes that a device wants shapes to have. The bits of results depend on these sizes, so a kind of device
// fixes them.
struct DeviceSizes {
  int64_t micro_batch_tokens = 2048;  // enough to keep the device busy; more only cost workspace
  int64_t logits = int64_t{1} << 25;  // the most logits that the loss holds at a time: 128 MiB in fp32
};

// The fp32 accumulators of a parameter group's gradient, one for each kind of the group's uses. They are
// added in this order.
struct Accumulators {
  Accumulators() = default;
  Accumulators(const float* only) : of{only}, count(1) {}  // implicit: most groups have one
  const float* of[kAccumulatorsMax] = {};
  uint32_t count = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceSizes sizes() const { return {}; }

  virtual void forward(const OpCall& call) = 0;
  // The backward of a loss (OpRule::is_loss) also adds the loss to outputs[0], as its forward does.
  virtual void backward(const OpCall& call) = 0;
  virtual uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const = 0;

  // Set-up, for devices that look up or load something per shape. prepare is called before the first step,
  // for every op and pass that is to run. warm_up is called once after the last prepare, with the device's
  // arena (aligned to 256 bytes), before anything lies in the arena. The arena is zeroed once the device has
  // carried out what warm_up enqueues.
  virtual void prepare(const OpShapes& /*shapes*/, Pass /*pass*/) {}
  virtual void warm_up(std::span<std::byte> /*arena*/) {}

  // Adds the fp32 accumulators, rounds the sum to the working precision (to nearest even) and, unless
  // block_sums is nullptr, emits for each block of kNormBlock elements the sum of the squares of what it
  // wrote, in double, in a fixed order. elements > 0.
  virtual void round(const Accumulators& accumulators, void* gradient, DType precision, uint64_t elements,
                     double* block_sums) = 0;

  // Does what sum_ranks of gpu/ranks/reduce.h does, with the same bits.
  virtual void sum(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
                   double* block_sums) = 0;

  // Does what update_range (cpu_optim/optimizer.h) does, with the same bits, for optimizer state that lies on
  // the device. The scalars lie in the device's memory too.
  virtual void update(OptimizerKind optimizer, UpdateForm form, const UpdateRange& range,
                      const UpdateScalars& scalars) = 0;

  virtual void zero(void* data, uint64_t bytes) = 0;

  // If this is not nullptr, operands lie in the device's own memory, and calls return when their work is
  // enqueued on the compute lane's stream.
  virtual Accelerator* accelerator() { return nullptr; }
};

std::unique_ptr<Device> make_reference_device();       // plain loops in double, to compare with
std::unique_ptr<Device> make_cpu_device(int threads);  // OpenBLAS, oneDNN, Highway
// make_cuda_device: gpu/cuda/device.h

// Whether this build and processor multiply bf16 matrices natively (AVX512-BF16 or AMX through oneDNN).
bool cpu_device_has_native_bf16();

}  // namespace sluice
