// Matrix products of the cuda device, through cuBLASLt.
//
// The algorithm is the first that the library's heuristic gives for the shape within kLibraryWorkspaceBytes,
// or one that was chosen by time. Sums over parts of k are only allowed in fp32 and in a fixed order. The
// library's epilogue adds a bias. Where the library has no algorithm with that epilogue, a kernel of Sluice
// writes the bias before the product. Sums are rounded once either way. So results depend on shape, values,
// GPU model and algorithm only. TF32 is never used, nor is fp32 emulated, whatever the library's environment
// variables say. prepare and warm_up are for set-up, after which nothing is looked up, loaded or allocated.
// Owner: the cuda device, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/cuda/algorithms.h"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/workspace.h"

namespace sluice::cuda {

class Multiplier {
 public:
  virtual ~Multiplier() = default;

  // Chooses the product's algorithm. Throws Error (bug, environment; usage, if algorithms were chosen by time
  // and none for this product).
  virtual void prepare(const Product& product) = 0;

  // For measurements: the part of a product that the library does, which is a product too, and up to `most`
  // algorithms that the library may use for it, in the order of the heuristic.
  struct Candidates {
    Product part;
    std::vector<Algorithm> algorithms;
  };
  virtual Candidates candidates(const Product& product, int most) = 0;
  // Makes run() compute the product with this algorithm. Throws Error (environment) if it cannot be used.
  virtual void prepare(const Product& product, const Algorithm& algorithm) = 0;

  // Enqueues every prepared product, with and without `accumulate` where both are allowed, so that the
  // library loads its kernels. `scratch` is device memory, aligned to 256; its contents are read as operands
  // and overwritten. Operands overlap there, so `scratch` needs the bytes of the largest operand, with whole
  // rows, and kMatmulWorkspaceBytes. Any arena in which the products run is large enough.
  virtual void warm_up(std::span<std::byte> scratch) = 0;

  // The product must have been prepared. Every operand begins at a whole row of a buffer that is aligned to
  // 64 bytes. workspace: kMatmulWorkspaceBytes, aligned to 64. Throws Error (bug or environment).
  virtual void run(const ProductCall& call, std::byte* workspace) = 0;
};

// Multiplies on the queue's stream of the current GPU; `chosen`: algorithms that were chosen by time, on this
// GPU. The device's own kernels must be loaded before the first product with a bias runs. Throws Error
// (environment) if cuBLASLt is missing or cannot be set up.
std::unique_ptr<Multiplier> make_multiplier(const Queue& queue,
                                            std::optional<ChosenAlgorithms> chosen = std::nullopt);

}  // namespace sluice::cuda
