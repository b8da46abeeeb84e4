#include "gpu/cuda/rates.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "engine/base/simd/convert.h"
#include "gpu/cuda/gpu.h"
#include "gpu/cuda/matmul.h"
#include "gpu/cuda/owned.h"

namespace sluice {
namespace {

using cuda::check_setup;

constexpr int kTimings = 7;

// Uniform in [-1, 1), from the upper bits of a linear congruential generator modulo 2^64.
std::vector<std::byte> random_matrix(DType type, int64_t elements, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(elements));
  uint64_t word = 2 * seed + 1;
  for (float& value : values) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<int32_t>(word >> 32)) * 0x1p-31f;
  }
  std::vector<std::byte> bytes(values.size() * dtype_bytes(type));
  round_to(type, values.data(), bytes.data(), values.size());
  return bytes;
}

void upload(const std::vector<std::byte>& from, void* to) {
  check_setup(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice), "A copy");
}

}  // namespace

double cuda_matmul_rate(const MatmulMeasurement& m) {
  cuda::choose_gpu(m.ordinal);
  const int64_t n = m.size;
  const Product product{n, n, n, false, false, n, n, n, m.precision, m.precision};
  const uint64_t bytes = static_cast<uint64_t>(n * n) * dtype_bytes(m.precision);
  const uint64_t scratch_bytes = cuda::kMatmulWorkspaceBytes + bytes;  // as warm_up needs
  const cuda::GpuBytes a(bytes), b(bytes), c(bytes), scratch(scratch_bytes);
  upload(random_matrix(m.precision, n * n, 1), a.data);
  upload(random_matrix(m.precision, n * n, 2), b.data);
  const cuda::Stream stream;
  const auto multiplier = cuda::make_multiplier({stream.get(), 1});  // none of Sluice's own kernels runs
  auto* workspace = static_cast<std::byte*>(scratch.data);
  multiplier->prepare(product);
  multiplier->warm_up({workspace, scratch_bytes});
  const auto run = [&] {
    for (int i = 0; i < m.products; ++i) multiplier->run({product, a.data, b.data, c.data}, workspace);
    check_setup(cudaStreamSynchronize(stream.get()), "A matrix product");
  };
  run();
  std::array<double, kTimings> seconds;
  for (double& s : seconds) {
    const double begin = m.clock();
    run();
    s = m.clock() - begin;
  }
  std::nth_element(seconds.begin(), seconds.begin() + kTimings / 2, seconds.end());
  const auto size = static_cast<double>(n);
  return 2 * size * size * size * m.products / seconds[kTimings / 2];
}

}  // namespace sluice
