// Fibers and tensor-core operations of the kernels' emulation.
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cpu_optim/half.h"
#include "gpu/cuda_toolkit.h"

namespace sluice::emulation {
namespace {

constexpr int kLanes = 32;
constexpr size_t kStackBytes = 128 << 10, kBandBytes = 256;
constexpr std::byte kBand{0xA5}, kPoison{0xFF};

enum class Waiting : uint8_t { nothing, warp, block, returned };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<std::byte[]> stack{new std::byte[kStackBytes]};
  Waiting waiting = Waiting::nothing;
  int exchanges = 0;
};

struct Warp {
  // Two sets of slots: a lane may hand over for the next exchange while another still reads this one's.
  alignas(8) std::array<std::byte, kLanes * kSlotBytes> slots[2];
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<std::byte> shared;
  const std::function<void()>* thread = nullptr;
  ucontext_t scheduler;
  int current = 0;
};

Block block;  // of the emulated GPU's only thread

void fiber_main() {
  (*block.thread)();
  block.fibers[static_cast<size_t>(block.current)].waiting = Waiting::returned;
}

void wait(Waiting what) {
  Fiber& fiber = block.fibers[static_cast<size_t>(block.current)];
  fiber.waiting = what;
  swapcontext(&fiber.context, &block.scheduler);
}

// Lets fibers [begin, end) go on if none of them runs still.
bool release(size_t begin, size_t end, Waiting at) {
  bool any = false;
  for (size_t i = begin; i < end; ++i) {
    const Waiting waiting = block.fibers[i].waiting;
    if (waiting != at && waiting != Waiting::returned) return false;
    any = any || waiting == at;
  }
  for (size_t i = begin; any && i < end; ++i)
    if (block.fibers[i].waiting == at) block.fibers[i].waiting = Waiting::nothing;
  return any;
}

void resume(int thread) {
  Fiber& fiber = block.fibers[static_cast<size_t>(thread)];
  block.current = thread;
  threadIdx.x = static_cast<unsigned>(thread);
  swapcontext(&block.scheduler, &fiber.context);
}

void run_block(int threads, bool shuffled, std::mt19937& generator) {
  for (Fiber& fiber : block.fibers) {
    fiber.waiting = Waiting::nothing;
    fiber.exchanges = 0;
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.get(), 0, kStackBytes};
    fiber.context.uc_link = &block.scheduler;
    makecontext(&fiber.context, fiber_main, 0);
  }
  std::vector<int> ready(static_cast<size_t>(threads));
  std::iota(ready.begin(), ready.end(), 0);
  while (!ready.empty()) {
    if (shuffled) std::shuffle(ready.begin(), ready.end(), generator);
    for (const int thread : ready) resume(thread);
    for (size_t warp = 0; warp < block.warps.size(); ++warp)
      release(warp * kLanes, (warp + 1) * kLanes, Waiting::warp);
    release(0, block.fibers.size(), Waiting::block);
    ready.clear();
    bool returned = true;
    for (int i = 0; i < threads; ++i) {
      const Waiting waiting = block.fibers[static_cast<size_t>(i)].waiting;
      if (waiting == Waiting::nothing) ready.push_back(i);
      returned = returned && waiting == Waiting::returned;
    }
    CHECK(!ready.empty() || returned, "threads of a block wait for different meetings");
  }
}

bool bands_intact() {
  const auto is_band = [](std::byte b) { return b == kBand; };
  return std::all_of(block.shared.begin(), block.shared.begin() + kBandBytes, is_band) &&
         std::all_of(block.shared.end() - kBandBytes, block.shared.end(), is_band);
}

}  // namespace

int thread_in_block() { return block.current; }
void meet_block() { wait(Waiting::block); }

// The storage of a vector is aligned to 16 bytes, as are bands.
std::byte* shared_memory() { return block.shared.data() + kBandBytes; }

const std::byte* exchange(const void* value, size_t bytes) {
  CHECK(bytes <= kSlotBytes, "a lane hands over too much");
  Fiber& fiber = block.fibers[static_cast<size_t>(block.current)];
  Warp& warp = block.warps[static_cast<size_t>(block.current / kLanes)];
  auto& slots = warp.slots[fiber.exchanges++ % 2];
  std::memcpy(slots.data() + block.current % kLanes * kSlotBytes, value, bytes);
  wait(Waiting::warp);
  return slots.data();
}

void check_launch(int64_t blocks, int threads, uint64_t shared_bytes) {
  CHECK(blocks > 0 && threads > 0 && threads <= 1024 && threads % kLanes == 0, "a launch of whole warps");
  CHECK(shared_bytes <= 64 << 10, "shared memory that compute capability 7.5 has");
}

void run(int64_t blocks, int threads, uint64_t shared_bytes, uint32_t seed,
         const std::function<void()>& thread) {
  if (block.fibers.size() != static_cast<size_t>(threads)) {
    block.fibers = std::vector<Fiber>(static_cast<size_t>(threads));
    block.warps = std::vector<Warp>(static_cast<size_t>(threads / kLanes));
  }
  block.thread = &thread;
  blockDim.x = static_cast<unsigned>(threads);
  gridDim.x = static_cast<unsigned>(blocks);
  std::mt19937 generator(seed);
  std::vector<unsigned> blocks_in_order(static_cast<size_t>(blocks));
  std::iota(blocks_in_order.begin(), blocks_in_order.end(), 0u);
  if (seed != 0) std::shuffle(blocks_in_order.begin(), blocks_in_order.end(), generator);
  for (const unsigned index : blocks_in_order) {
    blockIdx.x = index;
    block.shared.assign(shared_bytes + 2 * kBandBytes, kPoison);
    std::fill_n(block.shared.begin(), kBandBytes, kBand);
    std::fill_n(block.shared.end() - kBandBytes, kBandBytes, kBand);
    run_block(threads, seed != 0, generator);
    CHECK(bands_intact(), "a kernel wrote outside of its shared memory");
  }
}

}  // namespace sluice::emulation

namespace sluice::cuda {
namespace {

struct Fragments {
  uint32_t a[4], b[2];
};

float of_half(uint32_t bits) { return to_float(F16{static_cast<uint16_t>(bits)}); }
float of_bf16(uint32_t bits) { return to_float(Bf16{static_cast<uint16_t>(bits)}); }

// Lane 4 g + t holds A(g or g + 8, 2t, 2t + 1, and 8 more), B(2t, 2t + 1, and 8 more; g), D(g or g + 8; 2t,
// 2t + 1).
void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], float (*value)(uint32_t)) {
  Fragments mine;
  std::copy(a, a + 4, mine.a);
  std::copy(b, b + 2, mine.b);
  const std::byte* slots = emulation::exchange(&mine, sizeof(mine));
  const int lane = emulation::thread_in_block() % 32, group = lane / 4, pair = lane % 4;
  const auto a_at = [&](int row, int k) {
    const auto from = emulation::from_lane<Fragments>(slots, row % 8 * 4 + k % 8 / 2);
    return value(from.a[row / 8 + k / 8 * 2] >> (k % 2 * 16) & 0xFFFFu);
  };
  const auto b_at = [&](int k, int column) {
    const auto from = emulation::from_lane<Fragments>(slots, column * 4 + k % 8 / 2);
    return value(from.b[k / 8] >> (k % 2 * 16) & 0xFFFFu);
  };
  for (int i = 0; i < 4; ++i) {
    const int row = group + i / 2 * 8, column = 2 * pair + i % 2;
    for (int k = 0; k < 16; ++k) d[i] += a_at(row, k) * b_at(k, column);
  }
}

}  // namespace

float half_to_float(uint16_t bits) { return of_half(bits); }
uint16_t float_to_half(float x) { return to_f16(x).bits; }
uint32_t pack_half(float low, float high) {
  return static_cast<uint32_t>(to_f16(low).bits) | static_cast<uint32_t>(to_f16(high).bits) << 16;
}
uint32_t pack_bf16(float low, float high) {
  return static_cast<uint32_t>(to_bf16(low).bits) | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}

void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma(d, a, b, of_bf16); }
void mma_half(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma(d, a, b, of_half); }

void load_transposed(uint32_t (&b)[2], const void* row) {
  CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0, "a row that ldmatrix cannot take");
  const std::byte* slots = emulation::exchange(&row, sizeof(row));
  const int lane = emulation::thread_in_block() % 32;
  for (int matrix = 0; matrix < 2; ++matrix) {
    b[matrix] = 0;
    for (int i = 0; i < 2; ++i) {
      const auto* from = emulation::from_lane<const uint16_t*>(slots, matrix * 8 + 2 * (lane % 4) + i);
      b[matrix] |= static_cast<uint32_t>(from[lane / 4]) << (16 * i);
    }
  }
}

}  // namespace sluice::cuda
