// What attention's forward and backward share: the problem, how it is cut, and moving tiles of one head's
// rows between global and shared memory. Included by attention_forward.cu and attention_backward.cu.
//
// A block of warps owns rows of one head (queries, or keys) in shared memory, kRowTiles times 16 for each
// warp, and passes over tiles of kOthers rows of the other side. Scores, probabilities and their gradients
// stay in registers. Numbers of rows are chosen so that no registers spill. The number of warps depends on
// the GPU's shared memory (64 KiB at least); results do not depend on it.
#pragma once

#include "gpu/cuda/mma.h"

namespace sluice::cuda {

constexpr double kLog2E = 1.4426950408889634;

struct AttentionShape {
  int sequences, length, heads, kv_heads, size;
  float scale;       // 1 / sqrt(size)
  float log2_scale;  // scale * log2(e): e^(scale x) = 2^(log2_scale x)

  __host__ __device__ int group() const { return heads / kv_heads; }
};

AttentionShape attention_shape(const OpShapes& shapes);

// Columns of all heads within a [rows, stride] tensor: element (row, d) of head h is at data[row * stride + h
// * size + d].
template <typename T>
struct HeadColumns {
  T* data;  // nullptr: not wanted
  int stride;
  bool accumulate;

  // The columns of one head and the rows of one sequence.
  __device__ HeadColumns of(const AttentionShape& s, int sequence, int head) const {
    return {data + static_cast<int64_t>(sequence) * s.length * stride + head * s.size, stride, accumulate};
  }
};

template <typename T>
struct AttentionTensors {
  HeadColumns<T> q, k, v;
};

// q, k and v (or their gradients) in separate tensors, or one after the other in the columns of one.
template <typename T>
AttentionTensors<T> attention_tensors(const AttentionShape& s, std::span<const TensorView> views) {
  const int q_columns = s.heads * s.size, kv_columns = s.kv_heads * s.size;
  const auto part = [&](size_t i, int stride, int first) {
    const TensorView view = view_of(views, i);
    T* const data = static_cast<T*>(view.data);
    return HeadColumns<T>{data == nullptr ? nullptr : data + first, stride, view.accumulate};
  };
  if (views.size() != 1) return {part(0, q_columns, 0), part(1, kv_columns, 0), part(2, kv_columns, 0)};
  const int stride = q_columns + 2 * kv_columns;
  return {part(0, stride, 0), part(0, stride, q_columns), part(0, stride, q_columns + kv_columns)};
}

// ---- How a kernel cuts its work.

enum class AttentionPart { forward, keys, queries };  // keys: gradients of k and v; queries: gradient of q

constexpr int kWarpsMax = 4;

// A thread holds its part of the warp's results in kRowTiles * kSize / 2 registers (twice that for keys,
// which have two results), and its part of a tile of scores in kRowTiles * kOthers / 2 (twice that in
// backward). These must leave some of its 255.
template <AttentionPart kPart, typename T, int kSize>
struct Tiling {
  static constexpr bool kTensorCores = sizeof(T) == 2, kLarge = kSize > 64;
  static constexpr bool kOfKeys = kPart == AttentionPart::keys;
  static constexpr int kRowTiles = kTensorCores && !(kOfKeys && kLarge) ? 2 : 1;
  static constexpr int kRows = 16 * kRowTiles;  // of a warp
  static constexpr int kOthers = kTensorCores || !kLarge ? 32 : 16;
  static constexpr int kOwnTiles = kPart == AttentionPart::forward ? 1 : 2;
  static constexpr int kScratch = kTensorCores ? 0 : 16 * kOthers;  // elements of a warp, for its products

  static constexpr uint64_t shared_bytes(int warps) {
    return sizeof(T) *
           static_cast<uint64_t>(kOwnTiles * warps * kRows * kSize + 4 * kOthers * kSize + warps * kScratch);
  }
};

struct Cut {
  int warps;
  uint64_t shared_bytes;
  int threads() const { return warps * kWarp; }
};

// The most warps that the GPU's shared memory allows.
template <AttentionPart kPart, typename T, int kSize>
Cut cut_for(const Queue& queue) {
  using Tiles = Tiling<kPart, T, kSize>;
  static_assert(Tiles::shared_bytes(1) <= 64 << 10, "more than compute capability 7.5 has");
  for (int warps = kWarpsMax; warps > 0; warps /= 2)
    if (Tiles::shared_bytes(warps) <= queue.shared_bytes_max) return {warps, Tiles::shared_bytes(warps)};
  CHECK(false, "a GPU with less shared memory than compute capability 7.5");
  return {};
}

// A block's shared memory: its own rows of kOwnTiles tensors, two stages with a tile of each of two other
// tensors, and the warps' scratch().
template <AttentionPart kPart, typename T, int kSize>
struct BlockMemory {
  using Tiles = Tiling<kPart, T, kSize>;
  int own, own_row;  // rows of the block, and which is the warp's first
  T *data, *others;

  __device__ BlockMemory()
      : own(static_cast<int>(blockDim.x) / kWarp * Tiles::kRows),
        own_row(static_cast<int>(threadIdx.x) / kWarp * Tiles::kRows),
        data(reinterpret_cast<T*>(shared_memory())),
        others(data + Tiles::kOwnTiles * own * kSize) {}
  __device__ Tile<T, kSize> own_tile(int i) const { return {data + i * own * kSize}; }
  __device__ Tile<T, kSize> warp_tile(int i) const { return {data + (i * own + own_row) * kSize}; }
  __device__ Tile<T, kSize> other_tile(int i, int stage) const {
    return {others + (2 * stage + i) * Tiles::kOthers * kSize};
  }
  __device__ Tile<T, Tiles::kOthers> scratch() const {
    return {other_tile(0, 2).data + own_row / Tiles::kRows * Tiles::kScratch};
  }
};

// ---- Tiles of one head and sequence.

// Begins to copy rows [row, row + rows) into a tile, with zeros beyond the sequence and the head. The copies
// are complete after wait_copies and a barrier.
template <typename T, int kSize>
__device__ void load_tile(const Tile<T, kSize>& tile, int rows, const HeadColumns<T>& from, int row,
                          const AttentionShape& s) {
  constexpr int kWords = Tile<T, kSize>::kWords, kPerWord = Tile<T, kSize>::kPerWord;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  if (s.size % kPerWord == 0) {  // then every row begins at a multiple of 16 bytes
    // A thread copies this word and every fourth after it. So a warp copies 64 bytes of 8 rows at a time.
    const int word = thread % 4;
#pragma unroll 1
    for (int r = thread / 4; r < rows; r += threads / 4) {
      const T* begin = from.data + static_cast<int64_t>(row + r) * from.stride + word * kPerWord;
      const int columns = row + r < s.length ? s.size - word * kPerWord : 0;
#pragma unroll
      for (int w = 0; w < kWords; w += 4)
        copy_async(tile.at(r, (w + word) * kPerWord), begin + w * kPerWord, columns > w * kPerWord);
    }
    return;
  }
#pragma unroll 1
  for (int i = thread; i < rows * kSize; i += threads) {
    const int r = i / kSize, column = i % kSize;
    const bool there = row + r < s.length && column < s.size;
    *tile.at(r, column) =
        there ? from.data[static_cast<int64_t>(row + r) * from.stride + column] : narrow<T>(0.0f);
  }
}

// Works on `count` tiles: load(i, stage) begins to load tile i, work(i, stage) is called when it is loaded.
// Work on the tile of one stage overlaps the load of the next tile into the other.
template <typename Load, typename Work>
__device__ void for_tiles(int count, Load load, Work work) {
  load(0, 0);
  for (int i = 0; i < count; ++i) {
    wait_copies();
    __syncthreads();  // all warps' copies are there, and all have finished the tile before
    if (i + 1 < count) load(i + 1, (i + 1) % 2);
    work(i, i % 2);
  }
}

// What a block that owns `own` queries works on. Blocks with the most keys come first among those of a head.
// Kernels make it anew after their loop, so that it holds no registers during the loop.
struct QueryBlock {
  int pair, sequence, head, kv_head;  // pair: of sequence and head
  int first;                          // of its queries
  int keys_end;                       // beyond the last key that one of its queries sees

  __device__ QueryBlock(const AttentionShape& s, int own) {
    const int blocks = (s.length + own - 1) / own, index = unhoisted(static_cast<int>(blockIdx.x));
    pair = index / blocks;
    sequence = pair / s.heads;
    head = pair % s.heads;
    kv_head = head / s.group();
    first = (blocks - 1 - index % blocks) * own;
    keys_end = first + own < s.length ? first + own : s.length;
  }
};

// Passes over tiles of keys and values: work(first key, k, v).
template <typename Memory, typename T, typename Work>
__device__ void for_key_tiles(const Memory& memory, int keys_end, const HeadColumns<T>& keys,
                              const HeadColumns<T>& values, const AttentionShape& s, Work work) {
  constexpr int kKeys = Memory::Tiles::kOthers;
  const auto load = [&](int i, int stage) {
    load_tile(memory.other_tile(0, stage), kKeys, keys, i * kKeys, s);
    load_tile(memory.other_tile(1, stage), kKeys, values, i * kKeys, s);
  };
  for_tiles((keys_end + kKeys - 1) / kKeys, load, [&](int i, int stage) {
    work(i * kKeys, memory.other_tile(0, stage), memory.other_tile(1, stage));
  });
}

// Sets scores of keys that come after the query to `value`. ahead: the warp's first query, counted from the
// first key.
template <int kRowTiles, int kKeys>
__device__ void mask_keys(Sums<kRowTiles, kKeys>& sums, int ahead, float value) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (sum_column(j, i) > ahead + 16 * m + sum_row(i)) sums[m][j][i] = value;
}

template <int kRowTiles, int kSize>
__device__ void scale_row(Sums<kRowTiles, kSize>& sums, int m, int half, float factor) {
#pragma unroll
  for (int j = 0; j < kSize / 8; ++j)
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) sums[m][j][i] *= factor;
}
template <int kRowTiles, int kSize>
__device__ void scale_rows(Sums<kRowTiles, kSize>& sums, float factor) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) scale_row<kRowTiles, kSize>(sums, m, half, factor);
}

// Writes a warp's rows from `row` on, up to the end of the sequence.
template <int kRowTiles, int kSize, typename T>
__device__ void store_result(const Sums<kRowTiles, kSize>& sums, const HeadColumns<T>& to, int row,
                             const AttentionShape& s) {
  const bool pairs = sizeof(T) == 2 && s.size % 2 == 0 && !to.accumulate;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 16 * m + sum_row(2 * half), first = sum_column(0, 0);
      if (r >= s.length) continue;
      T* const begin = to.data + static_cast<int64_t>(r) * to.stride + first;
#pragma unroll
      for (int j = 0; j < kSize / 8; ++j) {
        const float x = sums[m][j][2 * half], y = sums[m][j][2 * half + 1];
        T* const p = begin + 8 * j;
        const int count = s.size - first - 8 * j;  // columns from there on
        if (pairs) {
          if (count > 0) *reinterpret_cast<uint32_t*>(p) = pack(x, y, T{});
        } else {
          if (count > 0) p[0] = narrow<T>(to.accumulate ? widen(p[0]) + x : x);
          if (count > 1) p[1] = narrow<T>(to.accumulate ? widen(p[1]) + y : y);
        }
      }
    }
}

// ---- On the host.

template <int kSize>
using HeadSize = std::integral_constant<int, kSize>;

// Calls f(type, size), with `size` padded to the next head size that kernels are made for.
template <typename F>
void for_head_size(DType precision, int64_t size, F f) {
  with_precision(precision, [&]<typename T>(T type) {
    if (size <= 32) return f(type, HeadSize<32>());
    if (size <= 64) return f(type, HeadSize<64>());
    CHECK(size <= kHeadSizeMax, "a head size that workspace_bytes has refused");
    f(type, HeadSize<kHeadSizeMax>());
  });
}
// The same for all precisions and padded head sizes.
template <typename F>
void for_each_head_size(F f) {
  for (const DType precision : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t size : {int64_t{32}, int64_t{64}, kHeadSizeMax}) for_head_size(precision, size, f);
}

}  // namespace sluice::cuda
