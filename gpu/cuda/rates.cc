#include "gpu/cuda/rates.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/simd/convert.h"
#include "gpu/cuda/cublaslt.h"
#include "gpu/cuda/device.h"
#include "gpu/cuda/gpu.h"
#include "gpu/cuda/matmul.h"
#include "gpu/cuda/owned.h"

namespace sluice {
namespace {

using cuda::check_setup;

constexpr int kTimings = 7;
// Another algorithm is chosen only if it is faster than the first by this share. Medians are assumed to vary
// by less. A choice by a smaller difference would vary from call to call and gain nothing, and a run's bits
// would vary with it.
constexpr double kSpread = 0.02;

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

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Memory of the GPU that is filled with copies of one part of random values.
class RandomOperand {
 public:
  RandomOperand(DType type, uint64_t bytes, uint64_t seed) : memory_(bytes) {
    constexpr uint64_t kPart = 1 << 20;  // elements
    const std::vector<std::byte> part =
        random_matrix(type, static_cast<int64_t>(std::min(kPart, bytes / dtype_bytes(type))), seed);
    for (uint64_t done = 0; done < bytes; done += part.size())
      check_setup(cudaMemcpy(static_cast<std::byte*>(memory_.data) + done, part.data(),
                             std::min<uint64_t>(part.size(), bytes - done), cudaMemcpyHostToDevice),
                  "A copy");
  }
  void* data() const { return memory_.data; }

 private:
  cuda::GpuBytes memory_;
};

uint64_t largest(const std::vector<Product>& products, uint64_t (*bytes)(const Product&)) {
  uint64_t most = 0;
  for (const Product& product : products) most = std::max(most, bytes(product));
  return most;
}

uint64_t matrix_bytes(int64_t rows, int64_t stride, DType type) {
  return static_cast<uint64_t>(rows * stride) * dtype_bytes(type);
}

// Times products by several algorithms in memory that suffices for each of `products`.
class AlgorithmTimer {
 public:
  explicit AlgorithmTimer(const AlgorithmMeasurement& m)
      : measurement_(m),
        a_(m.products.front().precision,
           largest(m.products,
                   [](const Product& p) {
                     return matrix_bytes(p.transpose_a ? p.k : p.m, p.stride_a, p.precision);
                   }),
           1),
        b_(m.products.front().precision,
           largest(m.products,
                   [](const Product& p) {
                     return matrix_bytes(p.transpose_b ? p.n : p.k, p.stride_b, p.precision);
                   }),
           2),
        bias_(m.products.front().precision,
              largest(m.products, [](const Product& p) { return matrix_bytes(1, p.n, p.precision); }), 3),
        c_(m.products.front().precision,
           largest(m.products, [](const Product& p) { return matrix_bytes(p.m, p.stride_c, p.result); }), 4),
        workspace_(cuda::kMatmulWorkspaceBytes),
        first_(cuda::make_multiplier({stream_.get(), 1})),
        tried_(cuda::make_multiplier({stream_.get(), 1})) {}

  cuda::Multiplier::Candidates candidates(const Product& product) {
    return tried_->candidates(product, measurement_.candidates);
  }

  // Median seconds of one product: by the first algorithm that the library proposes, and by each of
  // `candidates`. Every round times all of them, so that what slows the GPU for a while slows all alike.
  std::vector<double> seconds(const Product& part, const std::vector<cuda::Algorithm>& candidates) {
    first_->prepare(part);
    time(*first_, part, 1);  // loads the algorithm's kernels
    const double once = time(*first_, part, 1);
    constexpr double kMost = 1000;
    const int count = static_cast<int>(std::clamp(measurement_.seconds_least / once, 1.0, kMost));
    std::vector<std::vector<double>> all(1 + candidates.size());
    for (int round = -1; round < measurement_.timings; ++round)
      for (size_t i = 0; i < all.size(); ++i) {
        if (i > 0) tried_->prepare(part, candidates[i - 1]);
        const double seconds = time(i == 0 ? *first_ : *tried_, part, round < 0 ? 1 : count);
        if (round >= 0) all[i].push_back(seconds);
      }
    std::vector<double> medians;
    for (std::vector<double>& of_one : all) medians.push_back(median(std::move(of_one)));
    return medians;
  }

 private:
  double time(cuda::Multiplier& multiplier, const Product& part, int count) {
    const double begin = measurement_.clock();
    for (int i = 0; i < count; ++i)
      multiplier.run({part, a_.data(), b_.data(), c_.data(), c_.data(), bias_.data()},
                     static_cast<std::byte*>(workspace_.data));
    check_setup(cudaStreamSynchronize(stream_.get()), "A matrix product");
    return (measurement_.clock() - begin) / count;
  }

  const AlgorithmMeasurement& measurement_;
  const cuda::Stream stream_;
  RandomOperand a_, b_, bias_, c_;
  cuda::GpuBytes workspace_;
  std::unique_ptr<cuda::Multiplier> first_, tried_;  // no product needs Sluice's own kernels
};

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
  std::vector<double> seconds;
  for (int i = 0; i < kTimings; ++i) {
    const double begin = m.clock();
    run();
    seconds.push_back(m.clock() - begin);
  }
  const auto size = static_cast<double>(n);
  return 2 * size * size * size * m.products / median(seconds);
}

TimedAlgorithms cuda_time_algorithms(const AlgorithmMeasurement& m) {
  cuda::choose_gpu(m.ordinal);
  cuda::ChosenAlgorithms chosen;
  chosen.place = cuda::timing_place(cuda_status(m.ordinal), cuda::open_cublaslt().get_version());
  TimedAlgorithms all;
  AlgorithmTimer timer(m);
  for (const Product& product : m.products) {
    auto [part, candidates] = timer.candidates(product);
    const std::string name = cuda::product_text(part);
    if (chosen.products.contains(name)) continue;
    if (candidates.empty())
      throw Error(ExitCode::environment,
                  "cuBLASLt takes back no algorithm that it proposes for the product " + name + ".",
                  "Run bench without --model, and report this with the names of the GPU and of the library.");
    part.accumulate = product.accumulate;  // an algorithm serves with and without it; training mostly adds
    const std::vector<double> seconds = timer.seconds(part, candidates);
    const double first = seconds.front();
    const auto fastest = std::min_element(seconds.begin() + 1, seconds.end());
    const bool stays = *fastest > (1 - kSpread) * first;
    chosen.products[name] = stays ? candidates.front() : candidates[fastest - seconds.begin() - 1];
    const double flops =
        2 * static_cast<double>(part.m) * static_cast<double>(part.n) * static_cast<double>(part.k);
    all.products.push_back({name, flops, flops / first, flops / (stays ? first : *fastest),
                            static_cast<int>(candidates.size())});
    m.timed(all.products.back());
  }
  all.text = cuda::algorithms_text(chosen);
  return all;
}

}  // namespace sluice
