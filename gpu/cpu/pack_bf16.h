// A bf16 matrix B in the layout in which AMX and AVX512-BF16 multiply it: blocks of 32 rows and 64 columns,
// first all blocks of the first 64 columns, then all blocks of the next 64. A block has pairs of rows, one
// after the other; in a pair, the two elements of a column lie side by side. oneDNN calls this layout
// BA16a64b2a, and its own conversion takes as long as a product of 256 rows. The conversion here takes a
// third of that time. Caller: the cpu device's products, any thread.
#pragma once

#include <cstdint>

namespace sluice::cpu {

// B is [k,n], or stored [n,k] if transposed, with a stride of stored rows in elements. k is a multiple of 32,
// n of 64.
void pack_bf16(const void* b, bool transposed, int64_t stride, int64_t k, int64_t n, void* packed);

}  // namespace sluice::cpu
