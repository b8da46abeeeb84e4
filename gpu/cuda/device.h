// The cuda device: ops and memory of one NVIDIA GPU.
//
// It is built when the CUDA Toolkit is found, unless it is switched off. In builds without the device, the
// same functions say that it is missing. Every function may be called without a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/device.h"

namespace sluice {

struct CudaStatus {
  bool built = false;      // this build has the cuda device
  bool available = false;  // and the GPU can run it
  std::string reason;      // why not, a sentence; empty if available
  std::string remedy;      // a sentence; empty if available
  // These describe the GPU, where there is one.
  std::string name;
  int capability_major = 0, capability_minor = 0;  // compute capability
  int driver_version = 0;                          // CUDA version that the driver knows: 12040 is 12.4
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
  bool bf16 = false;  // compute capability 8.0 or later
};

// Never throws; asks the driver, and makes no context.
CudaStatus cuda_status(int ordinal);

// The PCI addresses, as numbers, of the GPUs that this process is shown, by ordinal. Processes of a machine
// compare them to know whether they are shown the same GPUs. Empty without a driver. Makes no context. Throws
// Error(environment).
std::vector<uint64_t> visible_gpus();

// Host memory is pinned in pieces that end where addresses are multiples of this number. For each piece a
// driver keeps a table with 16 bytes for each page of 4 KiB. Tables must be smaller than 2 GiB, so a driver
// refuses a piece of 512 GiB.
constexpr uint64_t kPinnedPieceBytes = uint64_t{64} << 30;

struct CudaOptions {
  // Algorithms of matrix products that were chosen by time, as cuda_time_algorithms() (rates.h) gives them.
  // They change the bits of results. Empty: the algorithms that cuBLASLt proposes first.
  std::string matmul_algorithms;
  uint64_t pinned_piece_bytes = kPinnedPieceBytes;
};

// A device on GPU `ordinal`, an accelerator; its ops go to the compute lane's stream. Throws
// Error(environment) with cuda_status's reason and remedy if the device is not available, and Error
// (environment, malformed_file) if the algorithms are not of this GPU and version of cuBLASLt, or cannot be
// read.
std::unique_ptr<Device> make_cuda_device(int ordinal, const CudaOptions& options = {});

// The device's sizes. A micro-batch of this many tokens fills a GPU of 132 multiprocessors even where
// products have 1600 columns, and spreads reads and writes of gradients over many tokens. The logits take 1
// GiB in fp32.
constexpr DeviceSizes kCudaSizes = {.micro_batch_tokens = 16384, .logits = int64_t{1} << 28};

// The device's workspace_bytes, a function of the shape alone. Works without a GPU and in builds without the
// device. Throws Error (usage) for an op that the device does not take.
uint64_t cuda_workspace_bytes(const OpShapes& shapes, Pass pass);

}  // namespace sluice
