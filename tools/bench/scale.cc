#include "tools/bench/scale.h"

#include <algorithm>

#include "tools/bench/device_rates.h"

namespace sluice {

namespace {

// The smallest sizes whose figures mean something: a whole shard of parameters, or more than the caches of
// one core hold.
constexpr uint64_t kParametersLeast = 4ull << 20, kElementsLeast = 8ull << 20, kBytesLeast = 32ull << 20;
constexpr int64_t kSideLeast = 256, kVocabularyLeast = 4096;

// Each parameter has three fp32 values of optimizer state, a 16-bit gradient and a 16-bit weight.
uint64_t optimizer_bytes(const BenchScale& s) { return s.parameters * 16; }
uint64_t rounding_bytes(const BenchScale& s) { return round_bytes(s.round_elements); }
uint64_t copies_bytes(const BenchScale& s) { return 2 * s.copy_bytes; }
// One lane reads while another writes.
uint64_t lanes_bytes(const BenchScale& s) { return 2 * std::min(s.lane_bytes, s.drive_bytes); }

// Halves `sizes` until the ops need at most `bytes`, or the least sizes are reached.
OpSizes ops_within(OpSizes sizes, uint64_t bytes, const OpBytes& op_bytes) {
  while (op_bytes(sizes) > bytes && sizes.rows > kSideLeast && sizes.width > kSideLeast) {
    sizes.rows /= 2;
    sizes.width /= 2;
    sizes.vocabulary = std::max(std::min(sizes.vocabulary, kVocabularyLeast), sizes.vocabulary / 2);
  }
  return sizes;
}

}  // namespace

uint64_t host_bytes(const BenchScale& scale, uint64_t op_bytes) {
  return std::max(
      {optimizer_bytes(scale), rounding_bytes(scale), copies_bytes(scale), lanes_bytes(scale), op_bytes});
}

GpuScale gpu_scale_within(GpuScale scale, uint64_t bytes, const OpBytes& op_bytes) {
  while (update_bytes(scale.elements) > bytes && scale.elements > kElementsLeast) scale.elements /= 2;
  scale.ops = ops_within(scale.ops, bytes, op_bytes);
  return scale;
}

BenchScale scale_within(BenchScale scale, uint64_t bytes, const OpBytes& op_bytes) {
  const auto halve = [&](uint64_t& amount, uint64_t least, uint64_t (*needed)(const BenchScale&)) {
    while (needed(scale) > bytes && amount > least) amount /= 2;
  };
  halve(scale.parameters, kParametersLeast, optimizer_bytes);
  halve(scale.round_elements, kElementsLeast, rounding_bytes);
  halve(scale.copy_bytes, kBytesLeast, copies_bytes);
  halve(scale.lane_bytes, kBytesLeast, lanes_bytes);
  scale.ops = ops_within(scale.ops, bytes, op_bytes);
  return scale;
}

}  // namespace sluice
