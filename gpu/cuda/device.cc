#include "gpu/cuda/device.h"

#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "gpu/cuda/cublaslt.h"
#include "gpu/cuda/error.h"
#include "gpu/cuda/gpu.h"
#include "gpu/cuda/matmul.h"
#include "gpu/cuda/nccl_communicator.h"
#include "gpu/cuda/nvml.h"
#include "gpu/cuda/ops.h"
#include "gpu/cuda/streams.h"

namespace sluice {
namespace {

// Returns nothing if the text is empty, which says that no algorithms were chosen.
std::optional<cuda::ChosenAlgorithms> chosen_algorithms(const std::string& text, const CudaStatus& gpu) {
  if (text.empty()) return std::nullopt;
  cuda::ChosenAlgorithms chosen = cuda::parse_algorithms(text);
  cuda::check_place(chosen.place, cuda::timing_place(gpu, cuda::open_cublaslt().get_version()));
  return chosen;
}

// What the GPU cannot do is refused when workspaces are asked for, before the first step.
class CudaDevice final : public Device, public Accelerator {
 public:
  CudaDevice(int ordinal, const CudaStatus& status, const CudaOptions& options)
      : pinned_piece_bytes_(options.pinned_piece_bytes),
        pci_bus_id_(cuda::pci_bus_id(ordinal)),
        nvml_(open_nvml(), pci_bus_id_),
        used_by_others_(nvml_.memory().value),
        ordinal_(cuda::choose_gpu(ordinal)),
        bf16_(status.bf16),
        multiplier_(cuda::make_multiplier({compute_stream(), status.multiprocessors},
                                          chosen_algorithms(options.matmul_algorithms, status))),
        ops_(cuda::make_ops_device({compute_stream(), status.multiprocessors}, *multiplier_)) {}

  DeviceSizes sizes() const override { return kCudaSizes; }
  void forward(const OpCall& call) override { ops_->forward(call); }
  void backward(const OpCall& call) override { ops_->backward(call); }
  uint64_t workspace_bytes(const OpShapes& shapes, Pass pass) const override {
    if (shapes.precision == DType::bf16 && !bf16_)
      throw Error(ExitCode::environment, "The GPU has no bf16: that begins with compute capability 8.0.",
                  "Give --precision fp16, or go on with a run in bf16 on a GPU that has it.");
    return ops_->workspace_bytes(shapes, pass);
  }
  void prepare(const OpShapes& shapes, Pass pass) override { ops_->prepare(shapes, pass); }
  void warm_up(std::span<std::byte> arena) override {
    warm_up_copies(arena.data());
    ops_->warm_up(arena);
  }
  void round(const Accumulators& accumulators, void* gradient, DType precision, uint64_t elements,
             double* block_sums) override {
    ops_->round(accumulators, gradient, precision, elements, block_sums);
  }
  void sum(DType from, const void* parts, uint32_t ranks, uint64_t elements, DType to, void* out,
           double* block_sums) override {
    ops_->sum(from, parts, ranks, elements, to, out, block_sums);
  }
  void update(OptimizerKind optimizer, UpdateForm form, const UpdateRange& range,
              const UpdateScalars& scalars) override {
    ops_->update(optimizer, form, range, scalars);
  }
  void zero(void* data, uint64_t bytes) override { ops_->zero(data, bytes); }
  Accelerator* accelerator() override { return this; }

  const std::string& pci_bus_id() const override { return pci_bus_id_; }
  AcceleratorMemory memory() override {
    const auto [total, used, free] = cuda::runtime_memory();
    if (const std::optional<uint64_t> held = nvml_.process_bytes()) return {free, *held};
    const std::optional<NvmlMemory> now = nvml_.memory().value;
    if (now && used_by_others_) return {free, now->used - std::min(now->used, used_by_others_->used)};
    return {free, used};  // includes other processes' memory
  }

  std::shared_ptr<std::byte> allocate(uint64_t bytes) override {
    void* data = nullptr;
    const cudaError_t result = cudaMalloc(&data, std::max<uint64_t>(bytes, 1));
    if (result == cudaErrorMemoryAllocation)
      throw Error(
          ExitCode::environment,
          "The GPU has no " + in_mib(bytes) + " in one piece; " + in_mib(memory().free) + " are free.",
          "Give a smaller --gpu-mem, or end what else holds its memory (nvidia-smi shows who).");
    cuda::check_setup(result, "Allocating GPU memory");
    return {static_cast<std::byte*>(data), [](std::byte* arena) { (void)cudaFree(arena); }};
  }

  std::shared_ptr<void> pin(std::span<std::byte> memory) override {
    auto pieces = std::make_shared<std::vector<std::shared_ptr<void>>>();
    for (uint64_t done = 0; done < memory.size();) {
      std::byte* const begin = memory.data() + done;
      const uint64_t bytes = cuda::bytes_in_piece(begin, memory.size() - done, pinned_piece_bytes_);
      const cudaError_t result = cudaHostRegister(begin, bytes, cudaHostRegisterDefault);
      if (result != cudaSuccess)
        throw Error(ExitCode::environment,
                    "Cannot pin more than " + in_mib(done) + " of " + in_mib(memory.size()) +
                        " of host memory: " + cudaGetErrorString(result) + ".",
                    "See the kernel's log for what the driver ran out of, raise the container's memory, or "
                    "give a smaller --host-mem; `sluice doctor` shows the limits.");
      pieces->emplace_back(begin, [](void* piece) { (void)cudaHostUnregister(piece); });
      done += bytes;
    }
    return pieces;
  }

  std::unique_ptr<Streams> make_streams(std::span<const uint32_t> instructions_max) override {
    return cuda::make_streams(ordinal_, streams_, pinned_piece_bytes_, instructions_max);
  }
  AcceleratorRanks connect(Communicator& host) override {
    return cuda::connect_by_nccl(open_nccl(), ordinal_, stream_of(kCollectiveLane), host);
  }
  void finish() override {
    for (const cuda::Stream& stream : streams_)
      cuda::check_setup(cudaStreamSynchronize(stream.get()), "Preparing the GPU");
  }

 private:
  const cuda::Stream& stream_of(LaneId lane) const { return streams_[cuda::stream_index(lane)]; }
  cudaStream_t compute_stream() const { return stream_of(kComputeLane).get(); }

  // The first copy on a stream may take memory of the GPU.
  void warm_up_copies(std::byte* arena) {
    struct alignas(4096) Page {
      std::byte bytes[4096];
    };
    constexpr uint64_t kBytes = 64;
    const auto page = std::make_unique<Page>();
    const std::shared_ptr<void> pinned = pin(page->bytes);
    const auto copy = [](void* to, const void* from, cudaMemcpyKind kind, const cuda::Stream& stream) {
      cuda::check_setup(cudaMemcpyAsync(to, from, kBytes, kind, stream.get()), "A first copy");
      cuda::check_setup(cudaStreamSynchronize(stream.get()), "A first copy");
    };
    copy(arena, page->bytes, cudaMemcpyHostToDevice, stream_of(kH2dLane));
    copy(page->bytes, arena, cudaMemcpyDeviceToHost, stream_of(kD2hLane));
  }

  uint64_t pinned_piece_bytes_;
  std::string pci_bus_id_;
  NvmlGpu nvml_;
  std::optional<NvmlMemory> used_by_others_;  // before this process held anything
  int ordinal_;
  bool bf16_;
  cuda::LaneStreams streams_;
  std::unique_ptr<cuda::Multiplier> multiplier_;
  std::unique_ptr<Device> ops_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(int ordinal, const CudaOptions& options) {
  const CudaStatus status = cuda_status(ordinal);
  if (!status.available) throw Error(ExitCode::environment, status.reason, status.remedy);
  return std::make_unique<CudaDevice>(ordinal, status, options);
}

}  // namespace sluice
