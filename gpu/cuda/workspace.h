// Sizes of what the cuda device's ops keep in their workspaces: kernels lay it out, and cuda_workspace_bytes
// (device.h) adds it up. Plain C++, so that plans can also be made in builds without the device.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::cuda {

// What cuBLASLt may use for a product: the size that cuBLAS recommends for Hopper, which is no less than for
// other GPUs. cuBLASLt asks for a larger alignment than the 64 bytes of arenas, so a product is given some
// bytes more.
constexpr uint64_t kLibraryWorkspaceBytes = 32ull << 20, kLibraryWorkspaceAlignment = 256;
constexpr uint64_t kMatmulWorkspaceBytes = kLibraryWorkspaceBytes + kLibraryWorkspaceAlignment - 64;

// The number of chunks in which rows are summed. Each chunk has a float for every column.
constexpr int64_t column_sum_chunks(int64_t rows) { return std::min<int64_t>(128, (rows + 31) / 32); }
// Chunks of rows in a norm's backward, which has one block a chunk: up to two for each multiprocessor of
// large GPUs. A chunk's sums are written and read: 8 bytes for each column and parameter. Its x, dy and dx in
// 16 bits are 6 bytes for each column and row. So with 8 rows for each parameter, the sums are 8 / (6 x 8), a
// sixth, of these bytes.
constexpr int64_t norm_chunks(int64_t rows, int64_t parameters) {
  const int64_t rows_of_chunk = 8 * parameters;
  return std::min<int64_t>(256, (rows + rows_of_chunk - 1) / rows_of_chunk);
}

// Attention backward keeps two floats for every query. The last tile may reach beyond the sequence, so there
// is room for one tile more.
constexpr uint64_t kStatisticsBytes = 8;
constexpr int64_t padded_queries(int64_t length) { return ((length + 63) / 64 + 1) * 64; }

// The most columns of a head in attention and cached attention: 8 for each lane of a warp.
constexpr int kHeadSizeMax = 256;

// Rope keeps a sine and a cosine for every position and pair.
constexpr uint64_t kTurnBytes = 8;

// router_statistics: a row's softmax, and a float for each sum of each chunk of rows.
constexpr uint64_t kRouterRowBytes = 8;
constexpr int64_t statistics_chunks(int64_t rows) { return std::min<int64_t>(128, (rows + 31) / 32); }
// route: for each chunk of choices and expert a count; for each row and group a key, and whether the group is
// open; for each choice, if choices can be dropped, the expert that takes it.
constexpr int kRouteChunk = 256;
constexpr int64_t route_chunks(int64_t choices) { return (choices + kRouteChunk - 1) / kRouteChunk; }

}  // namespace sluice::cuda
