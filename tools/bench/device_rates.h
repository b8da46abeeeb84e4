// How fast the memory is that a device computes in, and what its instructions and copies cost beside their
// work. Tensors are larger than caches. One thread calls.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace sluice {

// Bytes a second that rounding a gradient accumulator to 16 bits reads and writes.
double measure_round(Device& device, DType precision, uint64_t elements);

// Of a device with memory of its own:

// Bytes a second that AdamW reads and writes there, counted as the planner counts them, and that zeroing
// writes. `elements` with gradients and weights in `precision`, of 16 bits.
struct DeviceMemoryRates {
  double update = 0, zero = 0;
};
DeviceMemoryRates measure_device_memory(Device& device, DType precision, uint64_t elements);

// Seconds of an instruction with next to no work, one of many behind each other: on the compute lane, and of
// a copy to the device.
struct DeviceOverheads {
  double instruction = 0, copy = 0;
};
DeviceOverheads measure_overheads(Device& device);

// What these need of the device's memory: a mebibyte for sums and gaps.
constexpr uint64_t round_bytes(uint64_t elements) { return elements * 6 + (1 << 20); }
constexpr uint64_t update_bytes(uint64_t elements) { return elements * 16 + (1 << 20); }

}  // namespace sluice
