// Random numbers of routers on the device: those of engine/graph/draws.h, with the same bits except in
// noise(). Included by .cu files only.
#pragma once

#include "engine/graph/draws.h"
#include "gpu/cuda/base.h"

namespace sluice::cuda {

// philox4x32() of engine/base/philox.h; key: two words.
struct PhiloxWords {
  uint32_t word[4];
};
__device__ inline PhiloxWords philox(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter.word[0],
                   product1 = uint64_t{0xCD9E8D57} * counter.word[2];
    counter = {
        {static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// The input `draws`, in the device's memory.
struct DeviceDraws {
  const int32_t* words;  // nullptr: the op has none

  __device__ uint32_t word(int which) const { return static_cast<uint32_t>(words[which]); }
  __device__ bool any() const { return words != nullptr && words[kDrawStep] != 0; }
  // `what`: the last word of the counter.
  __device__ PhiloxWords drawn(int row, uint32_t what, uint32_t block) const {
    const uint64_t token = (static_cast<uint64_t>(word(kDrawTokenHigh)) << 32 | word(kDrawTokenLow)) +
                           static_cast<uint64_t>(row);
    return philox({{static_cast<uint32_t>(token), static_cast<uint32_t>(token >> 32) | block << 16,
                    word(kDrawStep), what}},
                  word(kDrawSeedLow), word(kDrawSeedHigh));
  }
  __device__ static float uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }
  // The row's random number in [0, 1) for its second choice.
  __device__ float second(int row, uint32_t layer) const {
    return uniform(drawn(row, kDrawSecond | layer, 0).word[0]);
  }
  // Normal numbers of experts 4 block to 4 block + 3. They differ from the numbers of draw_noise() by
  // rounding only.
  __device__ void noise(int row, uint32_t layer, uint32_t block, float (&normal)[4]) const {
    const PhiloxWords made = drawn(row, kDrawNoise | layer, block);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float radius = sqrtf(-2.0f * logf(static_cast<float>(2 * (made.word[i] >> 9) + 1) * 0x1p-24f));
      const float angle = 6.283185307f * uniform(made.word[i + 1]);
      normal[i] = radius * cosf(angle), normal[i + 1] = radius * sinf(angle);
    }
  }
};

}  // namespace sluice::cuda
