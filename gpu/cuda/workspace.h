// What the cuda device's ops keep in their workspaces: what kernels lay out, and cuda_workspace_bytes
// (device.h) adds up. Plain C++, so that plans are made in builds without the device, too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::cuda {

// What a matrix product's library may use: what cuBLAS recommends for Hopper, at least as much as other GPUs
// want. It asks for more alignment than arenas give, hence what a product is given.
constexpr uint64_t kLibraryWorkspaceBytes = 32ull << 20, kLibraryWorkspaceAlignment = 256;
constexpr uint64_t kMatmulWorkspaceBytes = kLibraryWorkspaceBytes + kLibraryWorkspaceAlignment - 64;

// Sums over rows: chunks of rows, each with a float for every column.
constexpr int64_t column_sum_chunks(int64_t rows) { return std::min<int64_t>(128, (rows + 31) / 32); }

// Of attention backward: two floats for every query that has statistics, those of the last tile too, wherever
// it begins.
constexpr uint64_t kStatisticsBytes = 8;
constexpr int64_t padded_queries(int64_t length) { return ((length + 63) / 64 + 1) * 64; }
constexpr int64_t kHeadSizeMax = 128;

// Of rope: a sine and a cosine for every position and pair.
constexpr uint64_t kTurnBytes = 8;

}  // namespace sluice::cuda
