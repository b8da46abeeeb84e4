// The checksum of a checkpoint's sections: it can be summed up from blocks in any order, so it does not
// depend on how a plan cut the weights into shards, and needs no table. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

// The finest shard boundary, 65,536 elements, in 16-bit weights; in fp32 it is two of them.
constexpr uint64_t kChecksumBlockBytes = 128 << 10;

// Sum modulo 2^64, over the blocks of a section (the last may be short), of each one's XXH3-64 with the
// block's number for a seed; here of the blocks from `first_block` on that `bytes` holds.
uint64_t block_checksum(std::span<const std::byte> bytes, uint64_t first_block);

}  // namespace sluice
