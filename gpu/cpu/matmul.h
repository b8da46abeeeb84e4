// Matrix products of the cpu device.
//
// A product is cut into tiles by its shape alone. A tile is one single-threaded library call over the full k.
// Where the library cannot multiply the type, a tile takes one call for each chunk of k, on panels widened to
// fp32, and the chunks' products are added in order. So on one kind of processor, results depend on shape and
// values only, never on the number of threads. A result that is not fp32 is rounded once, from the fp32 sum.
// Owner: the cpu device. prepare is for set-up; products that were not prepared are prepared when they first
// run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "engine/base/parallel.h"
#include "gpu/cpu/blas.h"
#include "gpu/products.h"

namespace sluice::cpu {

class Multiplier {
 public:
  // threads: of the Workers that run() is given. Throws Error (environment) for an unusable OpenBLAS.
  Multiplier(int threads, Support support);

  // Makes what the products need, with and without `accumulate`; returns the bytes of workspace that run()
  // needs for any of them.
  uint64_t prepare(std::span<const Product> products);

  // workspace: as many bytes as prepare() returned, aligned to 64.
  void run(const ProductCall& operands, std::byte* workspace, Workers& workers);

  // op(A) op(B), with A stored [k,m] and B stored [k,n], for any k. k is cut into chunks of `height`; the
  // last chunk has what is left. The chunks' products are added in order; all of them must have been
  // prepared.
  void run_chunks(const ProductCall& operands, int64_t height, std::byte* workspace, Workers& workers);

  // One small fp32 product on the calling thread, for kernels that cut their own work.
  void multiply(const TileShape& shape, float alpha, const float* a, const float* b, float* c) const {
    multiply_f32(support_.f32, shape, alpha, a, b, c);
  }

 private:
  struct Method;
  struct Call;
  Method method_of(const Product& product);
  const Bf16Tile& tile(const TileShape& shape);
  void run_tile(const Call& call, int64_t index, int thread) const;
  void multiply_widened(const Call& call, const TileShape& shape, int64_t row, int64_t column, float* to,
                        std::byte* scratch) const;

  int threads_;
  Support support_;
  std::mutex mutex_;  // guards tiles_
  std::map<TileShape, std::unique_ptr<const Bf16Tile>> tiles_;
};

}  // namespace sluice::cpu
