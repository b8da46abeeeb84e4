// Times single ops on a device. No segment and no training step is run.
//
// Operands lie one behind the other in memory that the caller gives. They are filled with numbers of at most
// 1/2; token ids and labels are spread over the vocabulary, rows evenly over experts. Caller: `sluice bench`,
// on one thread, while the device has no other work.
#pragma once

#include <vector>

#include "tools/bench/bench_memory.h"

namespace sluice {

// Multiples of 1/256 from -1/2 to 1/2, which BenchMemory::fill() repeats. For f64 the numbers are zeros: f64
// tensors are sums, which begin at zero.
std::vector<std::byte> spread_numbers(DType type);

class OpTimer {
 public:
  OpTimer(Device& device, BenchMemory& memory) : device_(device), memory_(memory) {}

  // Median seconds of one pass, as BenchMemory::rounds_of_call times it.
  double seconds(const OpShapes& shapes, Pass pass, const Repeats& repeats);

  // Bytes that the op's operands and workspaces need.
  static uint64_t bytes_needed(const Device& device, const OpShapes& shapes);

 private:
  struct Operands {
    std::vector<TensorView> inputs, outputs, parameters;
    std::vector<TensorView> output_gradients, input_gradients, parameter_gradients;
    std::byte *scalars = nullptr, *workspace = nullptr;
  };
  Operands lay_out(const OpShapes& shapes, Pass pass);
  std::byte* take(uint64_t bytes);
  TensorView tensor(const Shape& shape, DType type, int64_t ids, int32_t first = 0);

  Device& device_;
  BenchMemory& memory_;
  uint64_t taken_ = 0;
};

}  // namespace sluice
