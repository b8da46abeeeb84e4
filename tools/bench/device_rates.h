// How fast the memory of a device is, and how much overhead its instructions and copies have. Callers give
// more elements than caches hold. One thread calls.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "tools/bench/rounds.h"

namespace sluice {

// Bytes a second that are read and written when a gradient accumulator is rounded to 16 bits.
TimedRate measure_round(Device& device, DType precision, uint64_t elements);

// The following are for a device with memory of its own.

// Bytes a second in the device's own memory. `update`: bytes that AdamW reads and writes, as the planner
// counts them. `zero`: bytes that zeroing writes.
struct DeviceMemoryRates {
  TimedRate update, zero;
};
// For `elements` parameters, whose gradients and weights have the 16-bit `precision`.
DeviceMemoryRates measure_device_memory(Device& device, DType precision, uint64_t elements);

// Seconds that an instruction of lane `compute`, and a copy to the device, take when many follow each other
// and have next to no work.
struct DeviceOverheads {
  double instruction = 0, copy = 0;
};
DeviceOverheads measure_overheads(Device& device);

// Bytes of device memory that measure_round() and measure_device_memory() need, with a mebibyte for sums and
// gaps.
constexpr uint64_t round_bytes(uint64_t elements) { return elements * 6 + (1 << 20); }
constexpr uint64_t update_bytes(uint64_t elements) { return elements * 16 + (1 << 20); }

}  // namespace sluice
