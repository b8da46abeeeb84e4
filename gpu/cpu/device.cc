// The cpu device: runs ops by the table in kernels.h. It owns the threads and the prepared matrix products;
// asking for an op's workspace is what prepares its products.
#include <algorithm>
#include <cstring>

#include "engine/base/parallel.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/matmul.h"
#include "gpu/cpu/tile_matmul.h"
#include "gpu/ranks/reduce.h"

namespace sluice {
namespace {

constexpr uint64_t kZeroBytes = uint64_t{1} << 20;  // of one task

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads)
      : workers_(threads),
        multiplier_(threads, cpu::native_support()),
        tiles_(threads, cpu::native_support()) {}

  void forward(const OpCall& call) override {
    kernels_of(cpu::kKernels, call.shapes->kind).forward(call, resources_);
  }
  void backward(const OpCall& call) override {
    kernels_of(cpu::kKernels, call.shapes->kind).backward(call, resources_);
  }
  uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const override {
    return workspace_bytes_of(cpu::kKernels, shapes, pass, resources_);
  }

  void round(const Accumulators& accumulators, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    cpu::round_gradient(accumulators, gradient, precision, elements, block_sums, workers_);
  }

  void sum(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
           double* block_sums) override {
    sum_ranks(from, parts, ranks, elements, to, out, block_sums, workers_);
  }

  void update(OptimizerKind optimizer, UpdateForm form, const UpdateRange& range,
              const UpdateScalars& scalars) override {
    update_range(optimizer_of(optimizer), form, range, scalars, workers_);
  }

  void zero(void* data, uint64_t bytes) override {
    const auto parts = static_cast<int64_t>((bytes + kZeroBytes - 1) / kZeroBytes);
    workers_.parallel_for(parts, [&](int64_t index, int) {
      const uint64_t begin = static_cast<uint64_t>(index) * kZeroBytes;
      std::memset(static_cast<std::byte*>(data) + begin, 0, std::min(kZeroBytes, bytes - begin));
    });
  }

 private:
  Workers workers_;
  cpu::Multiplier multiplier_;
  cpu::TileMultiplier tiles_;
  const cpu::Resources resources_{workers_, multiplier_, tiles_};
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) { return std::make_unique<CpuDevice>(threads); }

bool cpu_device_has_native_bf16() { return cpu::native_support().bf16; }

}  // namespace sluice
