// Products of tiles of rows with one matrix B. The number of tiles is known only at run time.
//
// All tiles have the same height. Each library call multiplies one tile with one panel of columns, and all
// calls have one shape. So a row's result depends on its own values, its place in its tile and B only, never
// on the number of tiles or threads. A task is a panel and a range of tiles. Its thread brings the panel into
// the library's layout, unless the thread did so in its previous task, and multiplies the tiles with the
// panel. Where the library cannot multiply the type, panels and tiles are widened to fp32, chunk by chunk of
// k. Owner: the cpu device. prepare is for set-up; products that were not prepared are prepared when they
// first run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "engine/base/dtype.h"
#include "engine/base/parallel.h"
#include "gpu/cpu/blas.h"

namespace sluice::cpu {

// C [rows, n] = A [rows, k] op(B), in fp32; rows is any multiple of `height`. A is dense.
struct TiledProduct {
  int64_t height, n, k;
  bool transpose_b;  // B is stored [n,k]
  int64_t stride_b;
  DType precision;  // of A and B: f32, bf16 or f16
};

struct TiledCall {
  const TiledProduct& product;
  const void *a, *b;
  int64_t tiles;
  std::byte* workspace;  // as many bytes as prepare() returned, aligned to 64
};

class TileMultiplier {
 public:
  // threads: of the Workers that run() is given.
  TileMultiplier(int threads, Support support) : threads_(threads), support_(support) {}

  // Makes what the product needs; returns the bytes of workspace that run() needs.
  uint64_t prepare(const TiledProduct& product);

  // Calls finish(row, column, sums, n) for each row and panel of columns [column, column + n), with the
  // product's sums. `finish` may overwrite the sums and must not throw.
  template <class Finish>
  void run(const TiledCall& call, Workers& workers, const Finish& finish) {
    const Method method = method_of(call.product);
    begin(call, method, workers);
    const Division division = division_of(call, method, workers.threads());
    workers.parallel_for(method.panels * division.ranges, [&](int64_t index, int thread) {
      const int64_t panel = index / division.ranges, range = index % division.ranges;
      for (int64_t group = division.begin(range); group < division.begin(range + 1); ++group) {
        const Part part = multiply(call, method, {panel, group}, thread);
        for (int64_t r = 0; r < part.rows; ++r)
          finish(part.row + r, part.column, part.sums + r * part.columns, part.columns);
      }
    });
  }

 private:
  struct Method {
    int64_t columns = 0, panels = 0;  // of a panel; the last one may have fewer
    int64_t depth = 0, chunks = 0;    // of a chunk of k; the last one may have less
    bool native = false;              // the library multiplies the operands' type
    bool packed = false;              // by PackedTile
    uint64_t packed_bytes = 0, scratch_bytes = 0, sum_bytes = 0, widened_a_bytes = 0, widened_b_bytes = 0;
    const PackedTile* tiles[2][3] = {};  // by whether the panel is the last; by chunk: first, between, last
    uint64_t thread_bytes() const;
  };
  // How the groups of tiles are divided into ranges of about equal length. A task is a panel and a range.
  struct Division {
    int64_t groups, ranges;
    int64_t begin(int64_t range) const { return groups * range / ranges; }
  };
  // What is multiplied at a time.
  struct Place {
    int64_t panel, group;
  };
  // Rows of C, in the task's memory.
  struct Part {
    int64_t row, rows, column, columns;
    float* sums;
  };
  struct Task;

  Method method_of(const TiledProduct& product);
  const PackedTile& tile(const PackedShape& shape);
  void begin(const TiledCall& call, const Method& method, const Workers& workers) const;
  static Division division_of(const TiledCall& call, const Method& method, int threads);
  Part multiply(const TiledCall& call, const Method& method, Place place, int thread) const;
  void multiply_chunk(const TiledCall& call, const Task& task, int64_t chunk) const;

  int threads_;
  Support support_;
  std::mutex mutex_;  // guards tiles_
  std::map<PackedShape, std::unique_ptr<const PackedTile>> tiles_;
};

}  // namespace sluice::cpu
