// Times single ops on a device, on operands of its own memory. No segment and no training step is run.
//
// Operands lie one behind the other in memory that the caller gives and are filled with numbers of size one;
// token ids and labels are spread over the vocabulary. Called by `sluice bench`, from one thread, which
// no other work of the device may disturb.
#pragma once

#include <vector>

#include "tools/bench/bench_memory.h"

namespace sluice {

class OpTimer {
 public:
  OpTimer(Device& device, BenchMemory& memory) : device_(device), memory_(memory) {}

  // Of one pass, as BenchMemory times it.
  double seconds(const OpShapes& shapes, Pass pass, const Repeats& repeats);

  // What the op's operands and workspaces need of the memory.
  static uint64_t bytes_needed(const Device& device, const OpShapes& shapes);

 private:
  struct Operands {
    std::vector<TensorView> inputs, outputs, parameters;
    std::vector<TensorView> output_gradients, input_gradients, parameter_gradients;
    std::byte *scalars = nullptr, *workspace = nullptr;
  };
  Operands lay_out(const OpShapes& shapes, Pass pass);
  std::byte* take(uint64_t bytes);
  TensorView tensor(const Shape& shape, DType type, int64_t ids);

  Device& device_;
  BenchMemory& memory_;
  uint64_t taken_ = 0;
};

}  // namespace sluice
