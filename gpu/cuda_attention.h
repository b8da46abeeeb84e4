// What attention's forward and backward share: the problem, tile sizes, and moving tiles of one head's rows
// between global and shared memory. Included by gpu/cuda_attention_*.cu.
#pragma once

#include "gpu/cuda_mma.h"

namespace sluice::cuda {

// One head's columns within a [rows, stride] tensor: element (row, d) of head h is at
// data[row * stride + first + h * size + d].
template <typename T>
struct HeadColumns {
  T* data;  // nullptr: not wanted
  int64_t stride, first;
  bool accumulate;
};

struct AttentionShape {
  int64_t sequences, length, heads, kv_heads, size;
  float scale;       // 1 / sqrt(size)
  float log2_scale;  // scale * log2(e): e^(scale x) = 2^(log2_scale x)

  __host__ __device__ int64_t group() const { return heads / kv_heads; }
};

AttentionShape attention_shape(const OpShapes& shapes);

template <typename T>
struct AttentionTensors {
  HeadColumns<T> q, k, v;
};

// q, k and v (or their gradients) in separate tensors, or one after the other in the columns of one.
template <typename T>
AttentionTensors<T> attention_tensors(const AttentionShape& s, std::span<const TensorView> views) {
  const int64_t q_columns = s.heads * s.size, kv_columns = s.kv_heads * s.size;
  const auto part = [&](size_t i, int64_t stride, int64_t first) {
    const TensorView view = view_of(views, i);
    return HeadColumns<T>{static_cast<T*>(view.data), stride, first, view.accumulate};
  };
  if (views.size() != 1) return {part(0, q_columns, 0), part(1, kv_columns, 0), part(2, kv_columns, 0)};
  const int64_t stride = q_columns + 2 * kv_columns;
  return {part(0, stride, 0), part(0, stride, q_columns), part(0, stride, q_columns + kv_columns)};
}

// A block of kWarps warps owns 16 * kWarps rows and passes over tiles of kOthers rows. Chosen so that a block
// needs at most 64 KiB of shared memory, which compute capability 7.5 has, and accumulators stay in
// registers.
template <typename T, int kSize>
struct Tiling {
  static constexpr bool kTensorCores = sizeof(T) == 2;
  static constexpr int kWarps = kTensorCores || kSize <= 64 ? 4 : 2;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kOwn = kWarps * 16;
  static constexpr int kOthersForward = kTensorCores ? 64 : kSize <= 64 ? 32 : 16;
  static constexpr int kOthersBackward = kSize <= 64 ? 32 : kTensorCores ? 32 : 16;
  // Elements of a warp's scratch for products of a result.
  template <int kOthers>
  static constexpr int kScratch = kTensorCores ? 0 : 16 * kStride<T, kOthers>;
};

// Rows [row, row + kRows) of a head into a tile; zero from row `rows_end` and column `size` on. The block
// meets before it reads the tile.
template <typename T, int kRows, int kSize>
__device__ void load_tile(T* tile, const HeadColumns<T>& from, int64_t head, int64_t row, int64_t rows_end,
                          int64_t size) {
  constexpr int kWords = 16 / static_cast<int>(sizeof(T)), kColumns = kSize / kWords;
  const bool wide = size % kWords == 0;  // then every row begins at a multiple of 16 bytes
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kColumns; i += static_cast<int>(blockDim.x)) {
    const int r = i / kColumns, column = i % kColumns * kWords;
    T* to = tile + r * kStride<T, kSize> + column;
    const T* begin = from.data + (row + r) * from.stride + from.first + head * size + column;
    const bool there = row + r < rows_end;
    if (wide) {
      Words words = {};
      if (there && column < size) words = *reinterpret_cast<const Words*>(begin);
      *reinterpret_cast<Words*>(to) = words;
      continue;
    }
    for (int d = 0; d < kWords; ++d) to[d] = there && column + d < size ? begin[d] : narrow<T>(0.0f);
  }
}

// A warp's 16 rows from `row` on, as far as rows_end, times factor[upper or lower row].
template <typename T, int kSize>
__device__ void store_result(const float (&sums)[kSize / 8][4], const float (&factor)[2],
                             const HeadColumns<T>& to, int64_t head, int64_t row, int64_t rows_end,
                             int64_t size) {
  if (to.data == nullptr) return;
#pragma unroll
  for (int j = 0; j < kSize / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t r = row + sum_row(i), column = sum_column(j, i);
      if (r >= rows_end || column >= size) continue;
      T& element = to.data[r * to.stride + to.first + head * size + column];
      const float value = sums[j][i] * factor[i / 2];
      element = narrow<T>(to.accumulate ? widen(element) + value : value);
    }
}

template <int kSize>
using HeadSize = std::integral_constant<int, kSize>;

// Calls f(type, size) with the least padded head size that a kernel is made for.
template <typename F>
void for_head_size(DType precision, int64_t size, F f) {
  with_precision(precision, [&]<typename T>(T type) {
    if (size <= 32) return f(type, HeadSize<32>());
    if (size <= 64) return f(type, HeadSize<64>());
    CHECK(size <= kHeadSizeMax, "a head size that workspace_bytes has refused");
    f(type, HeadSize<kHeadSizeMax>());
  });
}
// And for all of them.
template <typename F>
void for_each_head_size(F f) {
  for (const DType precision : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t size : {int64_t{32}, int64_t{64}, kHeadSizeMax}) for_head_size(precision, size, f);
}

}  // namespace sluice::cuda
