// What attention's forward and backward share: the problem, how it is cut, and moving tiles of one head's
// rows between global and shared memory. Included by attention_forward.cu and attention_backward.cu.
//
// A block of warps owns rows of one head (queries, or keys) in shared memory, kRowTiles times 16 for each
// warp, and passes over tiles of kOthers rows of the other side. Scores, probabilities and their gradients
// stay in registers. Numbers of rows are chosen so that no registers spill. How rows are divided among warps
// depends on the GPU's shared memory (64 KiB at least); results do not.
//
// A query sees the keys from a first key to its own. The first key is where the query's document begins, or
// where its window begins if that is later.
#pragma once

#include <optional>

#include "engine/graph/attention_operands.h"
#include "gpu/cuda/mma.h"

namespace sluice::cuda {

constexpr double kLog2E = 1.4426950408889634;

struct AttentionShape {
  int sequences, length, heads, kv_heads, size;
  float scale;             // of products q k
  float log2_scale;        // scale * log2(e): e^(scale x) = 2^(log2_scale x)
  float cap, inverse_cap;  // a product x becomes cap * tanh(x / cap); cap 0: x stays
  int window;              // the most keys that a query sees; `length` where the model has no window
  const int32_t* begins;   // [sequences, length]: position of each query's first key; nullptr: all are 0

  __host__ __device__ int group() const { return heads / kv_heads; }
  // Whether there are queries that do not see all keys up to their own.
  __device__ bool bounded() const { return begins != nullptr || window < length; }
  // The first key that a query sees. Queries beyond the sequence count as its last query. The first key never
  // decreases from one query to the next.
  __device__ int first_key(int sequence, int query) const {
    const int there = query < length ? query : length - 1;
    const int begin = begins == nullptr ? 0 : begins[static_cast<int64_t>(sequence) * length + there];
    return begin > there - window ? begin : there - window + 1;
  }
  // The query after the last one that sees the key.
  __device__ int queries_end(int sequence, int key) const {
    int seeing = key, end = length;  // query `seeing` sees the key, query `end` does not
    while (bounded() && end - seeing > 1) {
      const int middle = seeing + (end - seeing) / 2;
      (first_key(sequence, middle) <= key ? seeing : end) = middle;
    }
    return end;
  }
};

AttentionShape attention_shape(const OpCall& call);

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

// Finds q, k and v (or their gradients), which lie in separate tensors or one after the other in the columns
// of one tensor.
template <typename T>
AttentionTensors<T> attention_tensors(const AttentionShape& s, const OpShapes& shapes,
                                      std::span<const TensorView> views) {
  const int q_columns = s.heads * s.size, kv_columns = s.kv_heads * s.size;
  const auto part = [&](size_t i, int stride, int first) {
    const TensorView view = view_of(views, i);
    T* const data = static_cast<T*>(view.data);
    return HeadColumns<T>{data == nullptr ? nullptr : data + first, stride, view.addend != nullptr};
  };
  if (!attention_is_packed(shapes))
    return {part(0, q_columns, 0), part(1, kv_columns, 0), part(2, kv_columns, 0)};
  const int stride = q_columns + 2 * kv_columns;
  return {part(0, stride, 0), part(0, stride, q_columns), part(0, stride, q_columns + kv_columns)};
}

// ---- How a kernel cuts its work.

// What a kernel computes. `keys`: gradients of k and v, or of k alone; `values`: gradient of v alone;
// `queries`: gradient of q.
enum class AttentionPart { forward, keys, values, queries };

// Head sizes that kernels are made for. Other sizes are padded to the next of these.
constexpr int kHeadSizes[] = {32, 64, 128, kHeadSizeMax};

// Whether a head's gradients of k and v do not fit into a thread's registers together. Then each of the two
// has a kernel, which computes scores and probabilities anew.
template <int kSize>
constexpr bool kKeysApart = kSize > 128;

// A multiprocessor's four schedulers need two warps each to hide latencies.
constexpr int kResidentWarps = 8;

// Warps of the largest block: 4 with 32 rows each, or 8 with 16.
constexpr int warps_max(int row_tiles) { return row_tiles == 1 ? 8 : 4; }
// For __launch_bounds__: the number of blocks of warps_max() warps that have kResidentWarps warps together.
// Such bounds leave a thread 255 registers.
constexpr int blocks_at_once(int row_tiles) { return kResidentWarps / warps_max(row_tiles); }

// A thread holds its part of the warp's results in kRowTiles * kSize / 2 registers (twice that where keys
// have two results), and its part of a tile of scores in kRowTiles * kOthers / 2 (twice that in backward).
// These must leave some of its 255 registers free. For the largest heads, at least one warp must fit in 64
// KiB of shared memory in fp32, and two in 16 bits.
template <AttentionPart kPart, typename T, int kSize, int kTiles>
struct Tiling {
  static constexpr bool kTensorCores = sizeof(T) == 2, kLarge = kSize > 64, kLargest = kSize > 128;
  static constexpr bool kForward = kPart == AttentionPart::forward, kOfKeys = kPart == AttentionPart::keys;
  static constexpr int kRowTiles = kTiles;
  static constexpr int kRows = 16 * kRowTiles;  // of a warp
  static constexpr int kOthersOfSmaller = kTensorCores ? (kForward ? 64 : 32) : kLarge ? 16 : 32;
  static constexpr int kOthers = kLargest ? kOthersOfSmaller / 2 : kOthersOfSmaller;
  // Whether the warp's own rows stay in registers.
  static constexpr bool kHeld = kTensorCores && kRowTiles * kSize <= (kOfKeys ? 64 : 128);
  static constexpr int kStages = kForward || (kLargest && !kTensorCores) ? 1 : 2;
  // kOwnTiles: the number of tensors of which a block owns rows. kOtherTiles: the number of tiles of two
  // other tensors, in all stages.
  static constexpr int kOwnTiles = kForward || kPart == AttentionPart::values ? 1 : 2;
  static constexpr int kOtherTiles = 2 * kStages;
  static constexpr int kScratch = kTensorCores ? 0 : 16 * kOthers;  // elements of a warp, for its products

  static constexpr uint64_t shared_bytes(int warps) {
    return sizeof(T) * static_cast<uint64_t>(kOwnTiles * warps * kRows * kSize +
                                             kOtherTiles * kOthers * kSize + warps * kScratch);
  }
};

// The most row tiles of a warp. With two, each load of the other side serves twice as many products.
template <AttentionPart kPart, typename T, int kSize>
constexpr int kRowTilesMax = sizeof(T) == 2 && kSize <= (kPart == AttentionPart::keys ? 64 : 128) ? 2 : 1;

struct Cut {
  int row_tiles, warps;
  uint64_t shared_bytes;
  int threads() const { return warps * kWarp; }
  int64_t blocks(int64_t rows) const { return div_up(rows, int64_t{16} * row_tiles * warps); }
};

// The warps that run on a multiprocessor together, as far as shared memory allows.
inline int resident_warps(const Queue& queue, const Cut& cut) {
  return static_cast<int>(queue.shared_bytes_together / (cut.shared_bytes + queue.shared_bytes_reserved)) *
         cut.warps;
}

// The first of kWays with which kResidentWarps warps fit on a multiprocessor together. If there is none, the
// first with which a block fits at all. A block has no more warps than a sequence of `length` rows needs.
template <AttentionPart kPart, typename T, int kSize>
Cut cut_for(const Queue& queue, int64_t length = INT_MAX) {
  constexpr struct { int row_tiles, warps; } kWays[] = {{2, 4}, {1, 8}, {1, 4}, {1, 2}, {1, 1}};
  const auto cut_by = [](int row_tiles, int warps) {
    return Cut{row_tiles, warps,
               row_tiles == 2 ? Tiling<kPart, T, kSize, 2>::shared_bytes(warps)
                              : Tiling<kPart, T, kSize, 1>::shared_bytes(warps)};
  };
  std::optional<Cut> best;
  for (const auto [row_tiles, warps] : kWays) {
    const Cut cut = cut_by(row_tiles, warps);
    if (row_tiles > kRowTilesMax<kPart, T, kSize> || cut.shared_bytes > queue.shared_bytes_max) continue;
    const bool enough = resident_warps(queue, cut) >= kResidentWarps;
    if (enough || !best) best = cut;
    if (enough) break;
  }
  CHECK(best, "a GPU with less shared memory than compute capability 7.5");
  const int64_t needed = div_up(length, int64_t{16} * best->row_tiles);
  return cut_by(best->row_tiles, static_cast<int>(std::min<int64_t>(best->warps, needed)));
}

// Set-up: loads a kernel that runs with this cut.
template <typename... Parameters>
void load_cut(const Queue& queue, void (*kernel)(Parameters...), const Cut& cut) {
  load(kernel, cut.shared_bytes);
  CHECK(blocks_together(kernel, cut.threads(), cut.shared_bytes) * cut.warps >=
            std::min(kResidentWarps, resident_warps(queue, cut)),
        "fewer warps are resident than attention was cut for");
}

// Calls f(integral constant) with the cut's row tiles.
template <AttentionPart kPart, typename T, int kSize, typename F>
void with_row_tiles(const Cut& cut, F f) {
  if constexpr (kRowTilesMax<kPart, T, kSize> == 2)
    if (cut.row_tiles == 2) return f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, 1>());
}

// A block's shared memory: stages with a tile of each of two other tensors; the block's own rows of kOwnTiles
// tensors; the warps' scratch(). The tiles come first, so that their addresses do not depend on the number of
// warps.
template <typename T, int kSize, typename Tiling>
struct BlockMemory {
  using Tiles = Tiling;
  int own, own_row;  // rows of the block, and which is the warp's first
  T *others, *data;

  __device__ BlockMemory()
      : own(static_cast<int>(blockDim.x) / kWarp * Tiles::kRows),
        own_row(unhoisted(static_cast<int>(threadIdx.x)) / kWarp * Tiles::kRows),
        others(reinterpret_cast<T*>(shared_memory())),
        data(others + Tiles::kOtherTiles * Tiles::kOthers * kSize) {}
  __device__ Tile<T, kSize> own_tile(int i) const { return {data + i * own * kSize}; }
  __device__ Tile<T, kSize> warp_tile(int i) const { return {data + (i * own + own_row) * kSize}; }
  __device__ Tile<T, kSize> other_tile(int i, int stage = 0) const {
    return {others + (2 * stage + i) * Tiles::kOthers * kSize};
  }
  __device__ Tile<T, Tiles::kOthers> scratch() const {
    return {own_tile(Tiles::kOwnTiles).data + own_row / Tiles::kRows * Tiles::kScratch};
  }
};

// ---- Tiles of one head and sequence.

// Waits until the copies of all warps are there, and all warps have finished with what they read before.
__device__ inline void await_copies() {
  wait_copies();
  __syncthreads();
}

// Begins to copy rows [row, row + rows) into a tile, with zeros beyond the sequence and the head. The copies
// are complete after wait_copies and a barrier.
template <typename T, int kSize>
__device__ void load_tile(const Tile<T, kSize>& tile, int rows, const HeadColumns<T>& from, int row,
                          const AttentionShape& s) {
  constexpr int kWords = Tile<T, kSize>::kWords, kPerWord = Tile<T, kSize>::kPerWord;
  [[maybe_unused]] constexpr int kCopiesAtOnce =
      kBackgroundCopies ? kWords / 4 : 1;  // else copies pass through registers
  const int threads = static_cast<int>(blockDim.x), thread = unhoisted(static_cast<int>(threadIdx.x));
  if (s.size % kPerWord == 0) {  // then every row begins at a multiple of 16 bytes
    // A thread copies this word and every fourth after it. So a warp copies 64 bytes of 8 rows at a time.
    const int word = thread % 4;
#pragma unroll 1
    for (int r = thread / 4; r < rows; r += threads / 4) {
      const T* begin = from.data + static_cast<int64_t>(row + r) * from.stride + word * kPerWord;
      const int columns = row + r < s.length ? s.size - word * kPerWord : 0;
#pragma unroll kCopiesAtOnce
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
// With two stages, work on the tile of one stage overlaps the load of the next tile into the other stage.
// ready() is called once, when the first tile and all earlier loads are there.
template <int kStages, typename Load, typename Ready, typename Work>
__device__ void for_tiles(int count, Load load, Ready ready, Work work) {
  load(0, 0);
  await_copies();
  ready();
  for (int i = 0; i < count; ++i) {
    if (kStages == 2 && i + 1 < count) load(i + 1, (i + 1) % 2);
    work(i, i % kStages);
    if (kStages == 1) {
      __syncthreads();
      if (i + 1 < count) load(i + 1, 0);
    }
    await_copies();
  }
}

// The `own` queries of a block, and their head. Among the blocks of a head, those with the most keys come
// first. Kernels make a QueryBlock anew after their loop, so that it holds no registers during the loop.
struct QueryBlock {
  int pair, sequence, head, kv_head;  // pair: of sequence and head
  int first;                          // its first query

  __device__ QueryBlock(const AttentionShape& s, int own) {
    const int blocks = (s.length + own - 1) / own, index = unhoisted(static_cast<int>(blockIdx.x));
    pair = index / blocks;
    sequence = pair / s.heads;
    head = pair % s.heads;
    kv_head = head / s.group();
    first = (blocks - 1 - index % blocks) * own;
  }
};

// The keys that a block's queries see, from the start of the first key's tile.
template <int kKeys>
struct KeyRange {
  int begin, end;

  __device__ KeyRange(const AttentionShape& s, const QueryBlock& block, int own)
      : begin(s.bounded() ? s.first_key(block.sequence, block.first) / kKeys * kKeys : 0),
        end(block.first + own < s.length ? block.first + own : s.length) {}
};

// Whether one of `rows` queries from `query` on sees a key of the tile that begins with `key`.
template <int kKeys>
__device__ bool sees(const AttentionShape& s, int sequence, int query, int rows, int key) {
  return query + rows > key &&
         !(s.bounded() && key + kKeys <= s.first_key(unhoisted(sequence), unhoisted(query)));
}

// Sets a score to `value` if its query does not see its key. `first_query` is the first query of the warp,
// `key` the first key of the tile.
template <int kRowTiles, int kKeys>
__device__ void mask_keys(Sums<kRowTiles, kKeys>& sums, const AttentionShape& s, int sequence,
                          int first_query, int key, float value) {
  const int query = unhoisted(first_query);
  struct Columns {
    int from, to;
  };
  const auto mask = [&](auto seen) {  // seen(query): the columns of keys that it sees
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto [from, to] = seen(query + 16 * m + sum_row(2 * half));
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i)
            if (sum_column(j, i) < from || sum_column(j, i) > to) sums[m][j][i] = value;
      }
  };
  if (s.bounded() && key < s.first_key(unhoisted(sequence), query + 16 * kRowTiles - 1))
    mask([&](int row) { return Columns{s.first_key(unhoisted(sequence), row) - key, row - key}; });
  else if (query - key < kKeys - 1)
    mask([&](int row) { return Columns{0, row - key}; });
}

// Caps products q k, if the model caps them. An infinite product becomes NaN, because 0 * u is added, which
// is NaN if u is infinite, else 0.
template <int kRowTiles, int kColumns>
__device__ void cap_products(Sums<kRowTiles, kColumns>& sums, const AttentionShape& s) {
  if (s.cap == 0) return;
  const float factor = -2 * static_cast<float>(kLog2E) * s.inverse_cap;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // tanh y = 2 / (1 + e^-2y) - 1 with e^-2y = 2^u; near 0, where digits would cancel, y - y^3 / 3.
        const float u = factor * sums[m][j][i], y = u * (-0.5f / static_cast<float>(kLog2E));
        const float full = __fmaf_rn(u, 0, 2 * fast_reciprocal(1 + fast_exp2(u)) - 1);
        sums[m][j][i] = s.cap * (fabsf(y) < 0.01f ? y - y * y * y * (1 / 3.0f) : full);
      }
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
    if (size <= 128) return f(type, HeadSize<128>());
    CHECK(size <= kHeadSizeMax, "a head size that workspace_bytes has refused");
    f(type, HeadSize<kHeadSizeMax>());
  });
}
// Calls f(type, size) for all precisions and padded head sizes.
template <typename F>
void for_each_head_size(F f) {
  for (const DType precision : {DType::f32, DType::bf16, DType::f16})
    for (const int size : kHeadSizes) for_head_size(precision, size, f);
}

}  // namespace sluice::cuda
