#include "cpu_optim/reduce.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "cpu_optim/optimizer.h"

namespace sluice {

namespace {

constexpr uint64_t kChunk = 2048;  // elements: on a thread's stack, in its first-level cache
constexpr size_t kLanes = 8;       // partial sums of squares, added in order at the end of a block

void add(const float* values, uint64_t count, float* sums) {
  for (uint64_t i = 0; i < count; ++i) sums[i] += values[i];
}

void add_squares(const float* values, uint64_t count, std::array<double, kLanes>& sums) {
  for (uint64_t i = 0; i < count; ++i)
    sums[i % kLanes] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
}

}  // namespace

void sum_ranks(DType precision, const void* parts, uint32_t ranks, uint64_t elements, void* out,
               double* block_sums, Workers& workers) {
  const uint64_t width = dtype_bytes(precision);
  const auto* from = static_cast<const std::byte*>(parts);
  const auto blocks = static_cast<int64_t>((elements + kNormBlock - 1) / kNormBlock);
  workers.parallel_for(blocks, [&](int64_t block, int) {
    const uint64_t begin = static_cast<uint64_t>(block) * kNormBlock;
    const uint64_t end = std::min(begin + kNormBlock, elements);
    std::array<double, kLanes> squares{};
    for (uint64_t at = begin; at < end; at += kChunk) {
      const uint64_t count = std::min(kChunk, end - at);
      std::array<float, kChunk> sums, values;
      widen(precision, from + at * width, sums.data(), count);
      for (uint32_t rank = 1; rank < ranks; ++rank) {
        widen(precision, from + (rank * elements + at) * width, values.data(), count);
        add(values.data(), count, sums.data());
      }
      std::byte* const to = static_cast<std::byte*>(out) + at * width;
      round_to(precision, sums.data(), to, count);
      widen(precision, to, values.data(), count);
      add_squares(values.data(), count, squares);
    }
    double sum = 0;
    for (const double s : squares) sum += s;
    block_sums[block] = sum;
  });
}

}  // namespace sluice
