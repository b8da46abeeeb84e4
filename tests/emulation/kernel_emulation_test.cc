// What the emulation of kernels is for: it shows what is wrong with one.
#include "gpu/cuda_mma.h"
#include "gpu/cuda_toolkit.h"
#include "tests/cuda_host_operands.h"
#include "tests/emulation/emulated_gpu.h"

namespace sluice {
namespace {

const cuda::Queue kNullStream{nullptr, 1};

// The GPU has a thread, so the process that is to die begins anew instead of forking.
class KernelDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Hands each thread's value to its neighbour in shared memory, with or without the barrier in between.
void hand_over(bool barrier, int* out) {
  auto* shared = reinterpret_cast<int*>(cuda::shared_memory());
  const unsigned thread = threadIdx.x;
  shared[thread] = static_cast<int>(thread);
  if (barrier) __syncthreads();
  out[thread] = shared[(thread + 1) % blockDim.x];
}

void hand_over_in_order(bool barrier, uint32_t seed, std::vector<int>& out) {
  emulation::set_up({.seed = seed});
  cuda::load(hand_over, out.size() * sizeof(int));
  const int threads = static_cast<int>(out.size());
  const GpuCopy gpu(out.data(), out.size() * sizeof(int));
  cuda::launch(kNullStream, hand_over, 1, threads, out.size() * sizeof(int), barrier,
               static_cast<int*>(gpu.data()));
}

TEST(Kernel, AMissingBarrierShows) {
  std::vector<int> wanted, out(64);
  for (int thread = 0; thread < 64; ++thread) wanted.push_back((thread + 1) % 64);
  for (const uint32_t seed : {0u, 1u, 2u}) {
    hand_over_in_order(true, seed, out);
    EXPECT_EQ(out, wanted) << seed;
    hand_over_in_order(false, seed, out);
    EXPECT_NE(out, wanted) << seed;
  }
}

void write_at(int index) { cuda::shared_memory()[index] = std::byte{1}; }

cudaError_t write_shared(int index) {
  cuda::load(write_at, 16);
  cuda::launch(kNullStream, write_at, 1, 32, 16, index);
  return cudaDeviceSynchronize();
}

TEST_F(KernelDeathTest, WritesOutsideOfSharedMemoryShow) {
  EXPECT_EQ(write_shared(15), cudaSuccess);
  EXPECT_DEATH(write_shared(16), "outside of its shared memory");
  EXPECT_DEATH(write_shared(-1), "outside of its shared memory");
}

void meet_some(bool block) {
  if (threadIdx.x % 2 == 0) return block ? __syncthreads() : __syncwarp();
  return block ? __syncwarp() : __syncthreads();
}

TEST_F(KernelDeathTest, DifferentMeetingsShow) {
  const auto meet = [] {
    cuda::load(meet_some);
    cuda::launch(kNullStream, meet_some, 1, 32, 0, true);
    return cudaDeviceSynchronize();
  };
  EXPECT_DEATH(meet(), "different meetings");
}

void read_wide(const float* from, float* to) {
  float values[cuda::kWide];
  cuda::load(from, cuda::kWide, true, values);
  cuda::store(to, cuda::kWide, true, values);
}

TEST_F(KernelDeathTest, MisalignedAccessesShow) {
  std::vector<float> values(cuda::kWide + 1, 1.0f), out(cuda::kWide);
  const auto read_from = [&](int first) {
    const GpuCopy from(values.data(), values.size() * sizeof(float));
    const GpuCopy to(out.data(), out.size() * sizeof(float));
    cuda::load(read_wide);
    cuda::launch(kNullStream, read_wide, 1, 32, 0, static_cast<const float*>(from.data()) + first,
                 static_cast<float*>(to.data()));
    return cudaDeviceSynchronize();
  };
  EXPECT_EQ(read_from(0), cudaSuccess);
  EXPECT_EQ(out, std::vector<float>(cuda::kWide, 1.0f));
  EXPECT_DEATH(read_from(1), "");
}

void do_nothing() {}

TEST_F(KernelDeathTest, KernelsThatWereNotLoadedShow) {
  EXPECT_DEATH(cuda::launch(kNullStream, do_nothing, 1, 32, 0), "had not been loaded");
  cuda::load(do_nothing, 16);
  cuda::launch(kNullStream, do_nothing, 1, 32, 16);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_DEATH(cuda::launch(kNullStream, do_nothing, 1, 32, 17), "less shared memory");
}

// One product of the tensor cores' layout against plain loops, through the kernels' own wrapper.
template <typename T>
void multiply_tile(const T* a, const T* b, float* product) {
  float sums[1][4] = {};
  cuda::multiply_rows<8, 16>(sums, a, b);
  for (int i = 0; i < 4; ++i) product[cuda::sum_row(i) * 8 + cuda::sum_column(0, i)] = sums[0][i];
}

TEST(Kernel, MmaMultipliesTiles) {
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
  {
    const GpuCopy gpu_a(a.data(), a.size() * sizeof(F16)), gpu_b(b.data(), b.size() * sizeof(F16));
    const GpuCopy gpu_product(product.data(), product.size() * sizeof(float));
    cuda::launch(kNullStream, multiply_tile<F16>, 1, 32, 0, static_cast<const F16*>(gpu_a.data()),
                 static_cast<const F16*>(gpu_b.data()), static_cast<float*>(gpu_product.data()));
  }
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      int sum = 0;
      for (int k = 0; k < 16; ++k) sum += (row - k) * (column * k % 5);
      EXPECT_EQ(product[static_cast<size_t>(row * 8 + column)], static_cast<float>(sum))
          << row << ' ' << column;
    }
}

// What compute capability 7.0 does by shuffles is what the others' instructions do. The numbers are small
// integers, so that sums are exact in any order.
void both_ways(const uint16_t* numbers, float* difference) {
  const auto lane = static_cast<int>(threadIdx.x);
  auto* rows = reinterpret_cast<uint16_t*>(cuda::shared_memory());
  for (int i = 0; i < 4; ++i) rows[lane * 4 + i] = numbers[lane * 4 + i];
  __syncwarp();
  uint32_t b[2], b_by_shuffles[2], a[4];
  cuda::load_transposed(b, rows + lane % 16 * 8);
  cuda::load_transposed_by_shuffles(b_by_shuffles, rows + lane % 16 * 8);
  for (int i = 0; i < 4; ++i) a[i] = rows[(lane * 5 + i) % 128] | static_cast<uint32_t>(rows[lane + i]) << 16;
  float sums[4] = {1, 2, 3, 4}, sums_by_shuffles[4] = {1, 2, 3, 4};
  cuda::mma_half(sums, a, b);
  cuda::mma_half_by_shuffles(sums_by_shuffles, a, b_by_shuffles);
  float most = b[0] == b_by_shuffles[0] && b[1] == b_by_shuffles[1] ? 0.0f : 1.0f;
  for (int i = 0; i < 4; ++i) most = std::max(most, std::abs(sums[i] - sums_by_shuffles[i]));
  difference[lane] = sums[0] == 1 ? -1 : most;
}

TEST(Kernel, ShufflesMultiplyAsTensorCoresDo) {
  std::vector<uint16_t> numbers(128);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = to_f16(static_cast<float>(i * 7 % 23) + 1).bits;
  std::vector<float> difference(32, -1);
  cuda::load(both_ways, 256);
  {
    const GpuCopy gpu_numbers(numbers.data(), numbers.size() * sizeof(uint16_t));
    const GpuCopy gpu_difference(difference.data(), difference.size() * sizeof(float));
    cuda::launch(kNullStream, both_ways, 1, 32, 256, static_cast<const uint16_t*>(gpu_numbers.data()),
                 static_cast<float*>(gpu_difference.data()));
  }
  EXPECT_EQ(difference, std::vector<float>(32, 0.0f));
}

}  // namespace
}  // namespace sluice
