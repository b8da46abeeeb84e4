// A bf16 matrix B in the layout in which AMX and AVX512-BF16 multiply it: blocks of 32 rows and 64 columns,
// the blocks of 64 columns one after the other; within a block, pairs of rows, and of each pair the two
// elements of a column side by side. oneDNN calls it BA16a64b2a. Its own conversion takes as long as a
// product of 256 rows; this one a third of that. Caller: the cpu device's products, any thread.
#pragma once

#include <cstdint>

namespace sluice::cpu {

// B is [k,n], or stored [n,k] if transposed, with a stride of stored rows in elements. k is a multiple of 32,
// n of 64.
void pack_bf16(const void* b, bool transposed, int64_t stride, int64_t k, int64_t n, void* packed);

}  // namespace sluice::cpu
