// The checksum of a checkpoint's sections. It is a sum over blocks, which may be added in any order. So it
// does not depend on how a plan cut a parameter group into shards. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

// Shards begin at multiples of 65,536 elements, which are one block in 16 bits and two blocks in 32 bits. If
// a plane has one byte an element, shards begin at multiples of 131,072 elements.
constexpr uint64_t kChecksumBlockBytes = 128 << 10;

// The sum modulo 2^64 of the blocks' XXH3-64, each with the block's number in its section as seed. `bytes`
// holds blocks from `first_block` on; a section's last block may be short.
uint64_t block_checksum(std::span<const std::byte> bytes, uint64_t first_block);

}  // namespace sluice
