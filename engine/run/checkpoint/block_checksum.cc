#include "engine/run/checkpoint/block_checksum.h"

#include <xxhash.h>

#include <algorithm>

namespace sluice {

uint64_t block_checksum(std::span<const std::byte> bytes, uint64_t first_block) {
  uint64_t sum = 0;
  for (uint64_t block = first_block; !bytes.empty(); ++block) {
    const uint64_t n = std::min<uint64_t>(kChecksumBlockBytes, bytes.size());
    sum += XXH3_64bits_withSeed(bytes.data(), n, block);
    bytes = bytes.subspan(n);
  }
  return sum;
}

}  // namespace sluice
