// Sums of the columns of a matrix: gradients of biases. Caller: the cpu device's kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/base/parallel.h"
#include "gpu/cpu/rows.h"

namespace sluice::cpu {

// to [columns] += the sum of the rows of dy [rows, columns], each times factor_of(row). The rows of each
// block are summed in order, then the sums of blocks are added in order. Two levels keep the rounding error
// small when there are many rows.
template <class FactorOf>
void add_column_sums(DType precision, const void* dy, int64_t rows, int64_t columns, float* to,
                     const FactorOf& factor_of, Workers& workers) {
  constexpr int64_t kColumns = 128, kRows = 64;
  workers.parallel_for((columns + kColumns - 1) / kColumns, [&](int64_t index, int) {
    const int64_t column = index * kColumns, n = std::min(kColumns, columns - column);
    float total[kColumns] = {};
    for (int64_t begin = 0; begin < rows; begin += kRows) {
      float block[kColumns] = {};
      for (int64_t r = begin; r < std::min(rows, begin + kRows); ++r) {
        const auto offset = static_cast<uint64_t>(r * columns + column) * dtype_bytes(precision);
        add_scaled_row(precision, static_cast<const std::byte*>(dy) + offset, factor_of(r), block, n);
      }
      add_row(DType::f32, block, total, n);
    }
    add_row(DType::f32, total, to + column, n);
  });
}

}  // namespace sluice::cpu
