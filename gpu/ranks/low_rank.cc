#include "gpu/ranks/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "engine/base/simd/convert.h"
#include "engine/base/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/ranks/low_rank.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/base/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::HWY_NAMESPACE {

template <class T>
HWY_INLINE void add_row(const T* HWY_RESTRICT gradient, float* HWY_RESTRICT row, size_t n) {
  for_each_vector(n, [&](size_t i, auto lanes) SLUICE_KERNEL {
    lanes.store(hn::Add(lanes.load(row + i), lanes.load(gradient + i)), row + i);
  });
}

// row += gradient.
void add_gradient(DType precision, const void* gradient, float* row, size_t n) {
  with_precision(precision,
                 [&](auto type) HWY_ATTR { add_row(static_cast<const decltype(type)*>(gradient), row, n); });
}

// out[k] = row . q[k], k < rank.
void multiply_row(const float* HWY_RESTRICT row, size_t n, const float* q, uint32_t rank, float* out) {
  const Floats d;
  for (uint32_t k = 0; k < rank; ++k) {
    const float* HWY_RESTRICT column = q + k * n;
    FloatVector sum = hn::Zero(d);
    for_each_vector(n, [&](size_t i, auto lanes)
                           SLUICE_KERNEL { sum = fma(lanes.load(row + i), lanes.load(column + i), sum); });
    out[k] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

// q[k] += p[k] * row, rows of q `stride` apart.
void accumulate_row(const float* HWY_RESTRICT row, size_t n, const float* p, uint32_t rank, float* q,
                    size_t stride) {
  for (uint32_t k = 0; k < rank; ++k) {
    const FloatVector factor = hn::Set(Floats(), p[k]);
    float* HWY_RESTRICT to = q + k * stride;
    for_each_vector(n, [&](size_t i, auto lanes) SLUICE_KERNEL {
      lanes.store(fma(factor, lanes.load(row + i), lanes.load(to + i)), to + i);
    });
  }
}

// row += sign * sum of p[k] q[k] over k ascending, rows of q `stride` apart.
void add_product(float sign, const float* p, uint32_t rank, const float* q, size_t stride,
                 float* HWY_RESTRICT row, size_t n) {
  for_each_vector(n, [&](size_t i, auto lanes) SLUICE_KERNEL {
    FloatVector sum = lanes.load(row + i);
    for (uint32_t k = 0; k < rank; ++k)
      sum = fma(hn::Set(Floats(), sign * p[k]), lanes.load(q + k * stride + i), sum);
    lanes.store(sum, row + i);
  });
}

}  // namespace sluice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {
namespace {

HWY_EXPORT(add_gradient);
HWY_EXPORT(multiply_row);
HWY_EXPORT(accumulate_row);
HWY_EXPORT(add_product);

constexpr uint64_t kColumns = 512;  // of a task, whose part of the right factor then stays in the cache

// A number in [-1, 1), from the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
double pseudo_random(uint64_t row, uint64_t column) {
  uint64_t z = (row << 16) + column + 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-52 - 1;
}

// Makes columns orthonormal by modified Gram-Schmidt, in double and in order.
class Columns {
 public:
  Columns(float* values, uint64_t rows, uint32_t rank) : values_(values), rows_(rows), rank_(rank) {}

  void orthonormalise() {
    for (uint32_t k = 0; k < rank_; ++k) {
      const double before = norm(k);
      remove_earlier(k);
      // Below this, what is left of a column is only the rounding error of what was taken away.
      if (!(norm(k) > 1e-5 * before)) {
        for (uint64_t i = 0; i < rows_; ++i) at(i, k) = static_cast<float>(pseudo_random(i, k));
        remove_earlier(k);
      }
      const double scale = 1 / norm(k);
      for (uint64_t i = 0; i < rows_; ++i) at(i, k) = static_cast<float>(at(i, k) * scale);
    }
  }

 private:
  float& at(uint64_t row, uint32_t k) { return values_[row * rank_ + k]; }
  double dot(uint32_t a, uint32_t b) {
    double sum = 0;
    for (uint64_t i = 0; i < rows_; ++i) sum += static_cast<double>(at(i, a)) * static_cast<double>(at(i, b));
    return sum;
  }
  double norm(uint32_t k) { return std::sqrt(dot(k, k)); }
  void remove_earlier(uint32_t k) {
    for (uint32_t j = 0; j < k; ++j) {
      const double along = dot(j, k);
      for (uint64_t i = 0; i < rows_; ++i) at(i, k) = static_cast<float>(at(i, k) - along * at(i, j));
    }
  }

  float* values_;
  uint64_t rows_;
  uint32_t rank_;
};

// Calls work(first row, one past the last) in parallel, for about 64 Ki elements at a time.
template <class Work>
void for_rows(const LowRankMatrix& m, Workers& workers, const Work& work) {
  const uint64_t rows = std::max<uint64_t>(1, (64ull << 10) / m.columns);
  workers.parallel_for(static_cast<int64_t>((m.rows + rows - 1) / rows), [&](int64_t task, int) {
    const uint64_t first = static_cast<uint64_t>(task) * rows;
    work(first, std::min(m.rows, first + rows));
  });
}

constexpr uint64_t kRoundChunk = 2048;  // elements, which fit a thread's stack and its first-level cache

// fill(first, count, values) computes elements [first, first + count), at most kRoundChunk, in fp32. They are
// rounded to `precision` in `out`; block_sums, unless nullptr, gets the sum of the squares of each block of
// kNormBlock elements, in double, in a fixed order.
template <class Fill>
void round_blocks(DType precision, uint64_t elements, void* out, double* block_sums, Workers& workers,
                  const Fill& fill) {
  constexpr size_t kLanes = 8;  // partial sums, added in order at the end of a block
  const uint64_t width = dtype_bytes(precision);
  const auto blocks = static_cast<int64_t>((elements + kNormBlock - 1) / kNormBlock);
  workers.parallel_for(blocks, [&](int64_t block, int) {
    const uint64_t begin = static_cast<uint64_t>(block) * kNormBlock;
    const uint64_t end = std::min(begin + kNormBlock, elements);
    std::array<double, kLanes> squares{};
    for (uint64_t at = begin; at < end; at += kRoundChunk) {
      const uint64_t count = std::min(kRoundChunk, end - at);
      std::array<float, kRoundChunk> values;
      fill(at, count, values.data());
      std::byte* const to = static_cast<std::byte*>(out) + at * width;
      round_to(precision, values.data(), to, count);
      if (!block_sums) continue;
      widen(precision, to, values.data(), count);
      for (uint64_t i = 0; i < count; ++i)
        squares[i % kLanes] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    if (!block_sums) return;
    double sum = 0;
    for (const double s : squares) sum += s;
    block_sums[block] = sum;
  });
}

}  // namespace

void compress_gradient(const LowRankLayout& layout, DType precision, const void* gradient, float* error,
                       const float* right, float* left, Workers& workers) {
  const uint64_t width = dtype_bytes(precision);
  const auto* from = static_cast<const std::byte*>(gradient);
  const auto add = HWY_DYNAMIC_DISPATCH(add_gradient);
  const auto multiply = HWY_DYNAMIC_DISPATCH(multiply_row);
  for (const LowRankMatrix& m : layout.matrices)
    for_rows(m, workers, [&](uint64_t first, uint64_t last) {
      for (uint64_t i = first; i < last; ++i) {
        const uint64_t at = m.offset + i * m.columns;
        add(precision, from + at * width, error + at, m.columns);
        multiply(error + at, m.columns, right + m.right, m.rank, left + m.left + i * m.rank);
      }
    });
  for (const PlainRange& r : layout.plain)
    widen(precision, from + r.offset * width, left + r.left, r.elements);
}

void project_error(const LowRankLayout& layout, float* left, float* error, float* right, Workers& workers) {
  const auto accumulate = HWY_DYNAMIC_DISPATCH(accumulate_row);
  const auto add = HWY_DYNAMIC_DISPATCH(add_product);
  for (const LowRankMatrix& m : layout.matrices) {
    float* const p = left + m.left;
    float* const q = right + m.right;
    Columns(p, m.rows, m.rank).orthonormalise();
    const auto tasks = static_cast<int64_t>((m.columns + kColumns - 1) / kColumns);
    workers.parallel_for(tasks, [&](int64_t task, int) {
      const uint64_t first = static_cast<uint64_t>(task) * kColumns,
                     count = std::min(kColumns, m.columns - first);
      for (uint32_t k = 0; k < m.rank; ++k) std::fill_n(q + k * m.columns + first, count, 0.0f);
      for (uint64_t i = 0; i < m.rows; ++i)
        accumulate(error + m.offset + i * m.columns + first, count, p + i * m.rank, m.rank, q + first,
                   m.columns);
    });
    for_rows(m, workers, [&](uint64_t first, uint64_t last) {
      for (uint64_t i = first; i < last; ++i)
        add(-1, p + i * m.rank, m.rank, q, m.columns, error + m.offset + i * m.columns, m.columns);
    });
  }
}

void expand_gradient(const LowRankLayout& layout, const float* left, const float* right, uint64_t first,
                     uint64_t elements, DType precision, void* out, double* block_sums, Workers& workers) {
  const auto add = HWY_DYNAMIC_DISPATCH(add_product);
  const auto fill = [&](uint64_t at, uint64_t count, float* values) {
    const uint64_t begin = first + at, end = begin + count;
    std::fill_n(values, count, 0.0f);
    for (const PlainRange& r : layout.plain) {
      const uint64_t from = std::max(begin, r.offset), to = std::min(end, r.offset + r.elements);
      if (from < to) std::memcpy(values + (from - begin), left + r.left + (from - r.offset), (to - from) * 4);
    }
    for (const LowRankMatrix& m : layout.matrices) {
      const uint64_t from = std::max(begin, m.offset), to = std::min(end, m.offset + m.elements());
      for (uint64_t e = from, next; e < to; e = next) {
        const uint64_t row = (e - m.offset) / m.columns, column = (e - m.offset) % m.columns;
        next = std::min(to, e + m.columns - column);
        add(1, left + m.left + row * m.rank, m.rank, right + m.right + column, m.columns,
            values + (e - begin), next - e);
      }
    }
  };
  round_blocks(precision, elements, out, block_sums, workers, fill);
}

}  // namespace sluice
#endif
