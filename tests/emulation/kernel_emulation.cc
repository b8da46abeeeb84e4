// Fibers and tensor-core operations of the kernels' emulation.
#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <deque>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "engine/base/simd/half.h"
#include "gpu/cuda/toolkit.h"
#include "tests/emulation/traffic.h"

namespace sluice::emulation {
namespace {

namespace context = boost::context;

constexpr int kLanes = 32;
constexpr size_t kStackBytes = 128 << 10, kBandBytes = 256, kCopyBytes = 16;
constexpr std::byte kBand{0xA5}, kPoison{0xFF};

// A stack that serves one fiber after another.
class Stack {
 public:
  Stack() : stack_(context::protected_fixedsize_stack(kStackBytes).allocate()) {}
  ~Stack() { context::protected_fixedsize_stack(kStackBytes).deallocate(stack_); }
  Stack(const Stack&) = delete;
  template <typename Main>
  context::fiber start(Main main) const {
    struct Keep {
      void deallocate(context::stack_context&) {}
    };
    const context::preallocated all(stack_.sp, stack_.size, stack_);
    return context::fiber(std::allocator_arg, all, Keep(), main);
  }

 private:
  context::stack_context stack_;
};

enum class Waiting : uint8_t { nothing, warp, block, returned };

struct Copy {
  void* to;
  const void* from;  // nullptr: zeros
};

struct Fiber {
  context::fiber context;
  Waiting waiting = Waiting::nothing;
  int exchanges = 0;
  std::vector<Copy> copies;    // begun and not waited for
  std::vector<size_t> groups;  // numbers of copies in the groups, the oldest group first
};

struct Warp {
  // Two sets of slots: a lane may fill its slot for the next exchange while others still read this one's.
  alignas(8) std::array<std::byte, kLanes * kSlotBytes> slots[2];
  // Runs on the slots when all lanes have handed over.
  Combine combine = nullptr;
  std::byte* combined = nullptr;
};

struct Block {
  std::deque<Stack> stacks;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<std::byte> shared;
  const std::function<void()>* thread = nullptr;
  context::fiber scheduler;
  int current = 0;
};

Block block;  // of the emulated GPU's only thread

context::fiber fiber_main(context::fiber&& scheduler) {
  block.scheduler = std::move(scheduler);
  (*block.thread)();
  Fiber& fiber = block.fibers[static_cast<size_t>(block.current)];
  CHECK(fiber.copies.empty(), "a thread returned before its copies were there");
  fiber.waiting = Waiting::returned;
  return std::move(block.scheduler);
}

void wait(Waiting what) {
  block.fibers[static_cast<size_t>(block.current)].waiting = what;
  block.scheduler = std::move(block.scheduler).resume();
}

// If all fibers [begin, end) wait for `at` or have returned, lets the waiting fibers go on. Returns whether
// there were any.
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

// Once all lanes of the warp wait or have returned, combines what they handed over and lets them go on.
void release_warp(size_t index) {
  if (!release(index * kLanes, (index + 1) * kLanes, Waiting::warp)) return;
  Warp& warp = block.warps[index];
  if (warp.combine == nullptr) return;
  for (size_t i = index * kLanes; i < (index + 1) * kLanes; ++i)
    CHECK(block.fibers[i].waiting == Waiting::nothing, "lanes of a warp are missing");
  std::exchange(warp.combine, nullptr)(warp.combined);
}

void resume(int thread) {
  Fiber& fiber = block.fibers[static_cast<size_t>(thread)];
  block.current = thread;
  threadIdx.x = static_cast<unsigned>(thread);
  fiber.context = std::move(fiber.context).resume();
}

void run_block(int threads, bool shuffled, std::mt19937& generator) {
  for (size_t i = 0; i < block.fibers.size(); ++i)
    block.fibers[i] = {block.stacks[i].start(fiber_main), Waiting::nothing, 0, {}, {}};
  std::vector<int> ready(static_cast<size_t>(threads));
  std::iota(ready.begin(), ready.end(), 0);
  while (!ready.empty()) {
    if (shuffled) std::shuffle(ready.begin(), ready.end(), generator);
    for (const int thread : ready) resume(thread);
    for (size_t warp = 0; warp < block.warps.size(); ++warp) release_warp(warp);
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

// Aligned to 16 bytes, since the vector's storage is, and the band at its start has a multiple of 16 bytes.
std::byte* shared_memory() { return block.shared.data() + kBandBytes; }

const std::byte* exchange(const void* value, size_t bytes, Combine combine) {
  CHECK(bytes <= kSlotBytes, "a lane hands over too much");
  Fiber& fiber = block.fibers[static_cast<size_t>(block.current)];
  Warp& warp = block.warps[static_cast<size_t>(block.current / kLanes)];
  auto& slots = warp.slots[fiber.exchanges++ % 2];
  std::memcpy(slots.data() + block.current % kLanes * kSlotBytes, value, bytes);
  warp.combine = combine;
  warp.combined = slots.data();
  wait(Waiting::warp);
  return slots.data();
}

void begin_copy(void* to, const void* from) {
  CHECK(reinterpret_cast<uintptr_t>(to) % kCopyBytes == 0 &&
            reinterpret_cast<uintptr_t>(from) % kCopyBytes == 0,
        "a copy that is not aligned");
  std::memset(to, static_cast<int>(kPoison), kCopyBytes);
  if (from != nullptr && traffic_of_thread != nullptr) traffic_of_thread->read(from, kCopyBytes);
  block.fibers[static_cast<size_t>(block.current)].copies.push_back({to, from});
}

void commit_copies() {
  Fiber& fiber = block.fibers[static_cast<size_t>(block.current)];
  size_t earlier = 0;
  for (const size_t count : fiber.groups) earlier += count;
  fiber.groups.push_back(fiber.copies.size() - earlier);
}

void finish_copies(size_t groups) {
  Fiber& fiber = block.fibers[static_cast<size_t>(block.current)];
  size_t count = 0;
  if (groups == 0) count = fiber.copies.size(), fiber.groups.clear();
  while (fiber.groups.size() > groups) {
    count += fiber.groups.front();
    fiber.groups.erase(fiber.groups.begin());
  }
  const auto end = fiber.copies.begin() + static_cast<std::ptrdiff_t>(count);
  for (auto copy = fiber.copies.begin(); copy != end; ++copy) {
    if (copy->from == nullptr)
      std::memset(copy->to, 0, kCopyBytes);
    else
      std::memcpy(copy->to, copy->from, kCopyBytes);
  }
  fiber.copies.erase(fiber.copies.begin(), end);
}

void check_launch(int64_t blocks, int threads, uint64_t shared_bytes) {
  CHECK(blocks > 0 && blocks <= INT32_MAX && threads > 0 && threads <= 1024 && threads % kLanes == 0,
        "a launch of whole warps");
  CHECK(shared_bytes <= current().shared_bytes_max, "more shared memory than a block may have");
}

int blocks_together(uint64_t shared_bytes) {
  const EmulatedGpu& gpu = current();
  return static_cast<int>(gpu.shared_bytes_together / (shared_bytes + gpu.shared_bytes_reserved));
}

void run(const std::string& source, int64_t blocks, int threads, uint64_t shared_bytes,
         const std::function<void()>& thread) {
  const EmulatedGpu gpu = current();
  traffic_of_thread = gpu.traffic;
  if (gpu.traffic != nullptr) gpu.traffic->begin_launch(source, false);
  while (block.stacks.size() < static_cast<size_t>(threads)) block.stacks.emplace_back();
  block.fibers.resize(static_cast<size_t>(threads));
  block.warps.resize(static_cast<size_t>(threads / kLanes));
  block.thread = &thread;
  blockDim.x = static_cast<unsigned>(threads);
  gridDim.x = static_cast<unsigned>(blocks);
  std::mt19937 generator(gpu.seed);
  std::vector<unsigned> blocks_in_order(static_cast<size_t>(blocks));
  std::iota(blocks_in_order.begin(), blocks_in_order.end(), 0u);
  if (gpu.seed != 0) std::shuffle(blocks_in_order.begin(), blocks_in_order.end(), generator);
  for (const unsigned index : blocks_in_order) {
    blockIdx.x = index;
    if (gpu.traffic != nullptr) gpu.traffic->begin_block();
    block.shared.assign(shared_bytes + 2 * kBandBytes, kPoison);
    std::fill_n(block.shared.begin(), kBandBytes, kBand);
    std::fill_n(block.shared.end() - kBandBytes, kBandBytes, kBand);
    run_block(threads, gpu.seed != 0, generator);
    CHECK(bands_intact(), "a kernel wrote outside of its shared memory");
  }
  traffic_of_thread = nullptr;
}

}  // namespace sluice::emulation

namespace sluice::cuda {
namespace {

struct Fragments {
  uint32_t a[4], b[2];
};

float of_half(uint32_t bits) { return to_float(F16{static_cast<uint16_t>(bits)}); }
float of_bf16(uint32_t bits) { return to_float(Bf16{static_cast<uint16_t>(bits)}); }

// The product D = A B of what the lanes hold. Lane 4 g + t holds rows g and g + 8 of A, and column g of B, at
// k = 2t, 2t + 1, 2t + 8 and 2t + 9. Of D it gets rows g and g + 8, columns 2t and 2t + 1.
template <float (*kValue)(uint32_t)>
void multiply(std::byte* slots) {
  float a[16][16], b[16][8], sums[16][8] = {};
  for (int lane = 0; lane < 32; ++lane) {
    const auto from = emulation::from_lane<Fragments>(slots, lane);
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 2; ++i) {
      for (int part = 0; part < 4; ++part)
        a[group + part % 2 * 8][pair + part / 2 * 8 + i] = kValue(from.a[part] >> (16 * i) & 0xFFFFu);
      for (int part = 0; part < 2; ++part)
        b[pair + part * 8 + i][group] = kValue(from.b[part] >> (16 * i) & 0xFFFFu);
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
  std::memcpy(slots, sums, sizeof(sums));
}

void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], emulation::Combine combine) {
  Fragments mine;
  std::copy(a, a + 4, mine.a);
  std::copy(b, b + 2, mine.b);
  const std::byte* tile = emulation::exchange(&mine, sizeof(mine), combine);
  const int lane = emulation::thread_in_block() % 32;
  for (int i = 0; i < 4; ++i) {
    const int at = (lane / 4 + i / 2 * 8) * 8 + 2 * (lane % 4) + i % 2;
    float sum;
    std::memcpy(&sum, tile + at * static_cast<int>(sizeof(sum)), sizeof(sum));
    d[i] += sum;
  }
}

}  // namespace

float half_to_float(uint16_t bits) { return of_half(bits); }
uint32_t pack_half(float low, float high) {
  return static_cast<uint32_t>(to_f16(low).bits) | static_cast<uint32_t>(to_f16(high).bits) << 16;
}
uint32_t pack_bf16(float low, float high) {
  return static_cast<uint32_t>(to_bf16(low).bits) | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}

void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma(d, a, b, multiply<of_bf16>);
}
void mma_half(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma(d, a, b, multiply<of_half>);
}

void load_matrices(uint32_t (&to)[4], const void* row) {
  CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0, "a row that ldmatrix cannot take");
  const std::byte* slots = emulation::exchange(&row, sizeof(row));
  const int lane = emulation::thread_in_block() % 32;
  for (int matrix = 0; matrix < 4; ++matrix)
    to[matrix] = emulation::from_lane<const uint32_t*>(slots, matrix * 8 + lane / 4)[lane % 4];
}

void load_transposed(uint32_t (&to)[4], const void* row) {
  CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0, "a row that ldmatrix cannot take");
  const std::byte* slots = emulation::exchange(&row, sizeof(row));
  const int lane = emulation::thread_in_block() % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    to[matrix] = 0;
    for (int i = 0; i < 2; ++i) {
      const auto* from = emulation::from_lane<const uint16_t*>(slots, matrix * 8 + 2 * (lane % 4) + i);
      to[matrix] |= static_cast<uint32_t>(from[lane / 4]) << (16 * i);
    }
  }
}

void copy_async(void* shared, const void* global, bool there) {
  emulation::begin_copy(shared, there ? global : nullptr);
}
void wait_copies() { emulation::finish_copies(); }
void commit_copies() { emulation::commit_copies(); }

}  // namespace sluice::cuda
