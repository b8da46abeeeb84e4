// The cuda device's kernels and its calls of cuBLASLt, compiled as plain C++, against the reference device:
// in order and with threads and blocks shuffled.
#include "gpu/cuda_matmul.h"
#include "gpu/cuda_mma.h"
#include "gpu/cuda_ops.h"
#include "gpu/cuda_toolkit.h"
#include "tests/op_conformance.h"

namespace sluice {
namespace {

// The number of threads becomes the number of multiprocessors and the seed of the order of threads and
// blocks, so that the suite's "threads do not change bits" holds both against the results.
class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(int threads)
      : seed_(static_cast<uint32_t>(threads - 1)),
        multiplier_(cuda::make_multiplier(nullptr)),
        device_(cuda::make_ops_device({nullptr, threads}, *multiplier_)) {}
  void forward(const OpCall& call) override { ordered().forward(call); }
  void backward(const OpCall& call) override { ordered().backward(call); }
  uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const override {
    return device_->workspace_bytes(shapes, pass);
  }
  void prepare(const OpShapes& shapes, Pass pass) override { device_->prepare(shapes, pass); }
  void warm_up(std::span<std::byte> arena) override { ordered().warm_up(arena); }
  void round(const float* accumulator, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    ordered().round(accumulator, gradient, precision, elements, block_sums);
  }
  void optimize(const AdamWRange& range, const StepScalars::Update* update) override {
    ordered().optimize(range, update);
  }
  void zero(void* data, uint64_t bytes) override { ordered().zero(data, bytes); }

 private:
  Device& ordered() {
    emulation::set_order(seed_);
    return *device_;
  }

  uint32_t seed_;
  std::unique_ptr<cuda::Multiplier> multiplier_;
  std::unique_ptr<Device> device_;
};

// ---- What the emulation is for: it shows what is wrong.

// Hands each thread's value to its neighbour in shared memory, with or without the barrier in between.
void hand_over(bool barrier, int* out) {
  auto* shared = reinterpret_cast<int*>(cuda::shared_memory());
  const unsigned thread = threadIdx.x;
  shared[thread] = static_cast<int>(thread);
  if (barrier) __syncthreads();
  out[thread] = shared[(thread + 1) % blockDim.x];
}

std::vector<int> handed_over(bool barrier, uint32_t order) {
  constexpr int kThreads = 64;
  std::vector<int> out(kThreads);
  emulation::set_order(order);
  cuda::load(hand_over, kThreads * sizeof(int));
  cuda::launch({nullptr, 1}, hand_over, 1, kThreads, kThreads * sizeof(int), barrier, out.data());
  return out;
}

TEST(Emulation, AMissingBarrierShows) {
  std::vector<int> wanted;
  for (int thread = 0; thread < 64; ++thread) wanted.push_back((thread + 1) % 64);
  for (const uint32_t order : {0u, 1u, 2u}) {
    EXPECT_EQ(handed_over(true, order), wanted) << order;
    EXPECT_NE(handed_over(false, order), wanted) << order;
  }
}

void write_at(int index) { cuda::shared_memory()[index] = std::byte{1}; }

TEST(EmulationDeathTest, WritesOutsideOfSharedMemoryShow) {
  cuda::load(write_at, 16);
  cuda::launch({nullptr, 1}, write_at, 1, 32, 16, 15);
  EXPECT_DEATH(cuda::launch({nullptr, 1}, write_at, 1, 32, 16, 16), "outside of its shared memory");
  EXPECT_DEATH(cuda::launch({nullptr, 1}, write_at, 1, 32, 16, -1), "outside of its shared memory");
}

void meet_some(bool block) {
  if (threadIdx.x % 2 == 0) return block ? __syncthreads() : __syncwarp();
  return block ? __syncwarp() : __syncthreads();
}

TEST(EmulationDeathTest, DifferentMeetingsShow) {
  cuda::load(meet_some);
  EXPECT_DEATH(cuda::launch({nullptr, 1}, meet_some, 1, 32, 0, true), "different meetings");
}

void do_nothing() {}

TEST(EmulationDeathTest, KernelsThatWereNotLoadedShow) {
  EXPECT_DEATH(cuda::launch({nullptr, 1}, do_nothing, 1, 32, 0), "had not been loaded");
  cuda::load(do_nothing, 16);
  cuda::launch({nullptr, 1}, do_nothing, 1, 32, 16);
  EXPECT_DEATH(cuda::launch({nullptr, 1}, do_nothing, 1, 32, 17), "less shared memory");
}

// One product of the tensor cores' layout against plain loops, through the kernels' own wrapper.
template <typename T>
void multiply_tile(const T* a, const T* b, float* product) {
  float sums[1][4] = {};
  cuda::multiply_rows<8, 16>(sums, a, b);
  for (int i = 0; i < 4; ++i) product[cuda::sum_row(i) * 8 + cuda::sum_column(0, i)] = sums[0][i];
}

TEST(Emulation, MmaMultipliesTiles) {
  constexpr int kStride = cuda::kStride<F16, 16>;
  std::vector<F16> a(16 * kStride), b(8 * kStride);
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      a[static_cast<size_t>(row * kStride + k)] = to_f16(static_cast<float>(row - k));
  for (int column = 0; column < 8; ++column)
    for (int k = 0; k < 16; ++k)
      b[static_cast<size_t>(column * kStride + k)] = to_f16(static_cast<float>(column * k % 5));
  std::vector<float> product(16 * 8);
  cuda::load(multiply_tile<F16>);
  cuda::launch({nullptr, 1}, multiply_tile<F16>, 1, 32, 0, a.data(), b.data(), product.data());
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      int sum = 0;
      for (int k = 0; k < 16; ++k) sum += (row - k) * (column * k % 5);
      EXPECT_EQ(product[static_cast<size_t>(row * 8 + column)], static_cast<float>(sum))
          << row << ' ' << column;
    }
}

// ---- The conformance suite.

std::vector<DeviceEntry> devices_to_judge() {
  return {{"cuda, emulated", [](int threads) { return std::make_unique<EmulatedDevice>(threads); }}};
}

bool judged(const OpCase&) { return true; }
std::string skip_reason() { return ""; }

}  // namespace
}  // namespace sluice
