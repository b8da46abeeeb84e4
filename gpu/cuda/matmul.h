// Matrix products of the cuda device, through cuBLASLt.
//
// The library's algorithm is its heuristic's first for the shape under kLibraryWorkspaceBytes; sums of parts
// of k are only allowed in fp32 and in a fixed order. A bias and gelu are the library's epilogues or, where
// it has no algorithm with them, kernels of our own around the product; sums are rounded once either way. So
// results depend on shape, values and GPU model only. TF32 is never used, nor is fp32 emulated, whatever the
// library's environment variables say. prepare and warm_up are for set-up, after which nothing is looked up,
// loaded or allocated. Owner: the cuda device, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "gpu/cuda/kernels.h"
#include "gpu/cuda/workspace.h"

namespace sluice::cuda {

class Multiplier {
 public:
  virtual ~Multiplier() = default;

  // Chooses the product's algorithm. Throws Error (bug or environment).
  virtual void prepare(const Product& product) = 0;

  // Runs every prepared product in the ways that it may be called, on whatever lies in `scratch`, so that the
  // library loads its kernels; returns when they have been enqueued. scratch: device memory, aligned to 256,
  // that is no smaller than the largest operand (every row of it, whole) and kMatmulWorkspaceBytes together:
  // operands overlap there. Any arena that the products then run in is large enough.
  virtual void warm_up(std::span<std::byte> scratch) = 0;

  // The product must have been prepared. Every operand begins where a multiple of its rows does within a
  // buffer aligned to 64 bytes. workspace: kMatmulWorkspaceBytes, aligned to 64. Throws Error (bug or
  // environment).
  virtual void run(const ProductCall& call, std::byte* workspace) = 0;
};

// Products on the queue's stream of the current device, whose kernels are loaded before the first is run.
// Throws Error (environment) if cuBLASLt is missing or cannot be set up.
std::unique_ptr<Multiplier> make_multiplier(const Queue& queue);

}  // namespace sluice::cuda
