// The emulation of kernels shows their faults.
#include "gpu/cuda/mma.h"
#include "gpu/cuda/toolkit.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/support/cuda_host_operands.h"

namespace sluice {
namespace {

const cuda::Queue kNullStream{nullptr, 1};

// The GPU has a thread, so the process that is to die begins anew instead of forking.
class KernelDeathTest : public ::testing::Test {
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
  cuda::load(from, cuda::Whole(), values);
  cuda::store(to, cuda::Whole(), values);
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

// Does what hand_over does by copies in the background.
void copy_over(bool wait, bool barrier, const int* from, int* out) {
  const unsigned thread = threadIdx.x;
  auto* shared = reinterpret_cast<int*>(cuda::shared_memory());
  cuda::copy_async(shared + 4 * thread, from + 4 * thread, true);
  if (wait) cuda::wait_copies();
  if (barrier) __syncthreads();
  out[thread] = shared[4 * ((thread + 1) % blockDim.x)];
  cuda::wait_copies();
}

TEST(Kernel, CopiesThatAreNotWaitedForShow) {
  constexpr int kThreads = 64, kBytes = kThreads * 16;
  std::vector<int> from(kThreads * 4), out(kThreads), wanted;
  for (int i = 0; i < kThreads * 4; ++i) from[static_cast<size_t>(i)] = i;
  for (int thread = 0; thread < kThreads; ++thread) wanted.push_back(4 * ((thread + 1) % kThreads));
  cuda::load(copy_over, kBytes);
  const auto run = [&](bool wait, bool barrier) {
    const GpuCopy gpu_from(from.data(), kBytes), gpu_out(out.data(), kThreads * sizeof(int));
    cuda::launch(kNullStream, copy_over, 1, kThreads, kBytes, wait, barrier,
                 static_cast<const int*>(gpu_from.data()), static_cast<int*>(gpu_out.data()));
  };
  for (const uint32_t seed : {0u, 1u, 2u}) {
    emulation::set_up({.seed = seed});
    run(true, true);
    EXPECT_EQ(out, wanted) << seed;
    run(true, false);
    EXPECT_NE(out, wanted) << seed;
    run(false, true);
    EXPECT_NE(out, wanted) << seed;
  }
}

// Begins two groups of copies, and reads both when all but the last kLeft are there.
template <int kLeft>
void copy_groups(const int* from, int* out) {
  const unsigned thread = threadIdx.x;
  auto* shared = reinterpret_cast<int*>(cuda::shared_memory());
  for (unsigned group = 0; group < 2; ++group) {
    const unsigned at = 4 * (thread + group * blockDim.x);
    cuda::copy_async(shared + at, from + at, true);
    cuda::commit_copies();
  }
  cuda::wait_groups<kLeft>();
  __syncthreads();
  for (unsigned group = 0; group < 2; ++group)
    out[thread + group * blockDim.x] = shared[4 * (thread + group * blockDim.x)];
  cuda::wait_copies();
}

TEST(Kernel, AllButTheLastGroupsOfCopiesAreThere) {
  constexpr int kThreads = 32, kNumbers = 2 * kThreads * 4;
  std::vector<int> from(kNumbers), out(2 * kThreads);
  for (int i = 0; i < kNumbers; ++i) from[static_cast<size_t>(i)] = i;
  const auto groups_there = [&](void (*kernel)(const int*, int*)) {
    cuda::load(kernel, kNumbers * sizeof(int));
    {
      const GpuCopy gpu_from(from.data(), kNumbers * sizeof(int)),
          gpu_out(out.data(), out.size() * sizeof(int));
      cuda::launch(kNullStream, kernel, 1, kThreads, kNumbers * sizeof(int),
                   static_cast<const int*>(gpu_from.data()), static_cast<int*>(gpu_out.data()));
    }
    int groups = 0;
    for (size_t group = 0; group < 2; ++group)
      groups += out[group * kThreads + 1] == static_cast<int>(4 * (group * kThreads + 1)) ? 1 : 0;
    return groups;
  };
  EXPECT_EQ(groups_there(copy_groups<0>), 2);
  EXPECT_EQ(groups_there(copy_groups<1>), 1);
  EXPECT_EQ(groups_there(copy_groups<2>), 0);
}

void copy_and_leave(const int* from) { cuda::copy_async(cuda::shared_memory(), from, false); }

TEST_F(KernelDeathTest, CopiesThatNobodyWaitsForShow) {
  const auto leave = [] {
    cuda::load(copy_and_leave, 16);
    cuda::launch(kNullStream, copy_and_leave, 1, 32, 16, static_cast<const int*>(nullptr));
    return cudaDeviceSynchronize();
  };
  EXPECT_DEATH(leave(), "before its copies were there");
}

// Both products of gpu/cuda/mma.h against plain loops: a b^T, and (a b^T) b. The numbers are small integers,
// so that sums are exact.
constexpr int kRows = 32, kSide = 32;

template <bool kHeld>
void multiply_tiles(const F16* a, const F16* b, float* product, float* second) {
  const cuda::Tile<F16, kSide> tile_a{const_cast<F16*>(a)}, tile_b{const_cast<F16*>(b)};
  cuda::Sums<2, kSide> sums = {}, more = {};
  cuda::OwnRows<F16, 2, kSide, kHeld> rows(tile_a);
  rows.load();
  cuda::multiply_rows<2, kSide, kSide>(sums, rows, tile_b);
  cuda::Operand<F16, 2, kSide> left;
  left.set(sums);
  cuda::multiply_result<2, kSide, kSide>(more, left, tile_b, tile_a);
  for (int m = 0; m < 2; ++m)
    for (int j = 0; j < kSide / 8; ++j)
      for (int i = 0; i < 4; ++i) {
        const int at = (16 * m + cuda::sum_row(i)) * kSide + cuda::sum_column(j, i);
        product[at] = sums[m][j][i];
        second[at] = more[m][j][i];
      }
}

// `kernel` is multiply_tiles, with rows that stay in registers or not.
void expect_products(void (*kernel)(const F16*, const F16*, float*, float*)) {
  std::vector<F16> a(kRows * kSide), b(kSide * kSide);
  const auto a_at = [](int row, int k) { return (row + 2 * k) % 5 - 2; };
  const auto b_at = [](int row, int k) { return row * k % 7 - 3; };
  for (int row = 0; row < kSide; ++row)
    for (int k = 0; k < kSide; ++k) {
      *cuda::Tile<F16, kSide>{a.data()}.at(row, k) = to_f16(static_cast<float>(a_at(row, k)));
      *cuda::Tile<F16, kSide>{b.data()}.at(row, k) = to_f16(static_cast<float>(b_at(row, k)));
    }
  std::vector<float> product(kRows * kSide), second(product);
  cuda::load(kernel);
  {
    const GpuCopy gpu_a(a.data(), a.size() * sizeof(F16)), gpu_b(b.data(), b.size() * sizeof(F16));
    const GpuCopy gpu_product(product.data(), product.size() * sizeof(float));
    const GpuCopy gpu_second(second.data(), second.size() * sizeof(float));
    cuda::launch(kNullStream, kernel, 1, 32, 0, static_cast<const F16*>(gpu_a.data()),
                 static_cast<const F16*>(gpu_b.data()), static_cast<float*>(gpu_product.data()),
                 static_cast<float*>(gpu_second.data()));
  }
  for (int row = 0; row < kRows; ++row)
    for (int column = 0; column < kSide; ++column) {
      int sum = 0, more = 0;
      for (int k = 0; k < kSide; ++k) {
        sum += a_at(row, k) * b_at(column, k);
        more += static_cast<int>(product[static_cast<size_t>(row * kSide + k)]) * b_at(k, column);
      }
      const auto at = static_cast<size_t>(row * kSide + column);
      EXPECT_EQ(product[at], static_cast<float>(sum)) << row << ' ' << column;
      EXPECT_EQ(second[at], static_cast<float>(more)) << row << ' ' << column;
    }
}

TEST(Kernel, MmaMultipliesTiles) {
  expect_products(multiply_tiles<true>);
  expect_products(multiply_tiles<false>);
}

// The shuffles for compute capability 7.0 give the results of the other GPUs' instructions. The numbers are
// small integers, so that sums are exact in any order.
void both_ways(const uint16_t* numbers, float* difference) {
  const auto lane = static_cast<int>(threadIdx.x);
  auto* rows = reinterpret_cast<uint16_t*>(cuda::shared_memory());
  for (int i = 0; i < 8; ++i) rows[lane * 8 + i] = numbers[lane * 8 + i];
  __syncwarp();
  uint32_t a[4], a_by_shuffles[4], b[4], b_by_shuffles[4];
  cuda::load_matrices(a, rows + lane * 8);
  cuda::load_matrices_by_shuffles(a_by_shuffles, rows + lane * 8);
  cuda::load_transposed(b, rows + lane * 8);
  cuda::load_transposed_by_shuffles(b_by_shuffles, rows + lane * 8);
  float most = 0;
  for (int i = 0; i < 4; ++i)
    if (a[i] != a_by_shuffles[i] || b[i] != b_by_shuffles[i]) most = 1;
  float sums[4] = {1, 2, 3, 4}, sums_by_shuffles[4] = {1, 2, 3, 4};
  cuda::mma_half(sums, a, {b[0], b[1]});
  cuda::mma_half_by_shuffles(sums_by_shuffles, a, {b[0], b[1]});
  for (int i = 0; i < 4; ++i) most = std::max(most, std::abs(sums[i] - sums_by_shuffles[i]));
  difference[lane] = sums[0] == 1 ? -1 : most;
}

TEST(Kernel, ShufflesMultiplyAsTensorCoresDo) {
  std::vector<uint16_t> numbers(256);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = to_f16(static_cast<float>(i * 7 % 23) + 1).bits;
  std::vector<float> difference(32, -1);
  cuda::load(both_ways, 512);
  {
    const GpuCopy gpu_numbers(numbers.data(), numbers.size() * sizeof(uint16_t));
    const GpuCopy gpu_difference(difference.data(), difference.size() * sizeof(float));
    cuda::launch(kNullStream, both_ways, 1, 32, 512, static_cast<const uint16_t*>(gpu_numbers.data()),
                 static_cast<float*>(gpu_difference.data()));
  }
  EXPECT_EQ(difference, std::vector<float>(32, 0.0f));
}

}  // namespace
}  // namespace sluice
