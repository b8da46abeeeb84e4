#include "gpu/cpu/matmul.h"

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/simd/convert.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/rows.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kWidenedDepth = 1024;  // k of one widened panel; panels of 256 and 384 rows take 2.5 MiB
constexpr int64_t kPad = 16;             // floats that keep strides of panels and tiles off powers of two

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }
uint64_t float_bytes(int64_t floats) { return static_cast<uint64_t>(round_up(floats, 16)) * sizeof(float); }

struct Tiling {
  int64_t rows, columns, row_tiles, column_tiles;
};

// Tiles are about 256 x 384, equal in size, and multiples of the libraries' register blocks (8 to 16 rows, 48
// columns). For all shapes of GPT-2, their speed was measured to be within 5 % of the best. Larger tiles
// would be too few. A matrix that is large enough has at least kTilesMin tiles, so that a few threads end
// together.
Tiling tiling_of(int64_t m, int64_t n) {
  constexpr int64_t kRows = 256, kColumns = 384, kTilesMin = 4, kRowsMin = 32, kColumnsMin = 96;
  const auto nearest = [](int64_t size, int64_t tile) {
    return std::max<int64_t>(1, (size + tile / 2) / tile);
  };
  Tiling t;
  t.row_tiles = nearest(m, kRows);
  t.column_tiles = nearest(n, kColumns);
  for (;;) {
    t.rows = std::min(m, round_up(divide_up(m, t.row_tiles), 16));
    t.columns = std::min(n, round_up(divide_up(n, t.column_tiles), 48));
    if (t.row_tiles * t.column_tiles >= kTilesMin) break;
    const bool by_rows = t.rows >= t.columns && t.rows >= 2 * kRowsMin;
    if (!by_rows && t.columns < 2 * kColumnsMin) break;
    (by_rows ? t.row_tiles : t.column_tiles) *= 2;
  }
  t.row_tiles = divide_up(m, t.rows);  // rounding up may have left fewer tiles
  t.column_tiles = divide_up(n, t.columns);
  return t;
}

const void* element(const void* base, int64_t index, DType type) {
  return static_cast<const std::byte*>(base) + static_cast<uint64_t>(index) * dtype_bytes(type);
}

// The part of an operand that begins at (row, column) of op(X).
const void* part(const void* base, bool transposed, int64_t stride, int64_t row, int64_t column, DType type) {
  return element(base, transposed ? column * stride + row : row * stride + column, type);
}

}  // namespace

struct Multiplier::Method {
  Tiling tiling;
  bool native;                 // the library multiplies the operands' type
  bool direct;                 // C is fp32 and not scaled, so the library writes it
  uint64_t sum_bytes = 0;      // per thread: the fp32 tile, if not direct
  uint64_t panel_a_bytes = 0;  // per thread: widened panels, if not native
  uint64_t panel_b_bytes = 0;
  uint64_t library_bytes = 0;       // per thread: oneDNN's scratch
  const Bf16Tile* bf16[2][2] = {};  // [in the last row tile][in the last column tile]
  int64_t sum_stride() const { return tiling.columns + kPad; }
  uint64_t thread_bytes() const { return sum_bytes + panel_a_bytes + panel_b_bytes + library_bytes; }
};

struct Multiplier::Call {
  const ProductCall& operands;
  const Method& method;
  std::byte* workspace;
  uint64_t thread_bytes;  // a thread's part of the workspace: the most that a method of this run needs
};

Multiplier::Multiplier(int threads, Support support) : threads_(threads), support_(support) {
  set_up_openblas();
}

const Bf16Tile& Multiplier::tile(const TileShape& shape) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<const Bf16Tile>& made = tiles_[shape];
  if (made == nullptr) made = std::make_unique<const Bf16Tile>(shape, threads_);
  return *made;
}

Multiplier::Method Multiplier::method_of(const Product& p) {
  CHECK(p.m > 0 && p.n > 0 && p.k > 0, "an empty product");
  CHECK(p.result == p.precision || p.result == DType::f32, "a product in a foreign type");
  Method method;
  method.tiling = tiling_of(p.m, p.n);
  const Tiling& t = method.tiling;
  const bool bf16 = p.precision == DType::bf16 && support_.bf16;
  method.native = p.precision == DType::f32 || bf16;
  method.direct = p.result == DType::f32 && !p.scaled;
  if (!method.direct) method.sum_bytes = float_bytes(t.rows * method.sum_stride());
  if (!method.native) {
    // A panel is stored as its operand is: rows x depth, or transposed.
    const int64_t depth = std::min(p.k, kWidenedDepth);
    method.panel_a_bytes = float_bytes(std::max(t.rows, depth) * kPad + t.rows * depth);
    method.panel_b_bytes = float_bytes(std::max(t.columns, depth) * kPad + t.columns * depth);
  }
  if (!bf16) return method;
  for (const bool last_row : {false, true})
    for (const bool last_column : {false, true}) {
      const int64_t m = last_row ? p.m - (t.row_tiles - 1) * t.rows : t.rows;
      const int64_t n = last_column ? p.n - (t.column_tiles - 1) * t.columns : t.columns;
      const Bf16Tile& made =
          tile({m, n, p.k, p.transpose_a, p.transpose_b, p.stride_a, p.stride_b,
                method.direct ? p.stride_c : method.sum_stride(), method.direct && p.accumulate});
      method.bf16[last_row][last_column] = &made;
      method.library_bytes = std::max(method.library_bytes, (made.scratch_bytes() + 63) / 64 * 64);
    }
  return method;
}

uint64_t Multiplier::prepare(std::span<const Product> products) {
  uint64_t bytes = 0;
  for (Product product : products)
    for (const bool accumulate : {false, true}) {
      product.accumulate = accumulate;
      bytes = std::max(bytes, method_of(product).thread_bytes());
    }
  return bytes * static_cast<uint64_t>(threads_);
}

void Multiplier::run(const ProductCall& operands, std::byte* workspace, Workers& workers) {
  if (operands.c == nullptr) return;
  const Product& p = operands.product;
  CHECK(workers.threads() <= threads_, "more threads than the workspace was sized for");
  const Method made = method_of(p);
  const Call call{operands, made, workspace, made.thread_bytes()};
  workers.parallel_for(made.tiling.row_tiles * made.tiling.column_tiles,
                       [this, &call](int64_t index, int thread) { run_tile(call, index, thread); });
}

void Multiplier::run_chunks(const ProductCall& operands, int64_t height, std::byte* workspace,
                            Workers& workers) {
  if (operands.c == nullptr) return;
  CHECK(workers.threads() <= threads_, "more threads than the workspace was sized for");
  const Product& p = operands.product;
  const auto part_of = [&](int64_t begin) {
    ProductCall part = operands;
    part.product.k = std::min(height, p.k - begin);
    part.a = element(operands.a, begin * p.stride_a, p.precision);
    part.b = element(operands.b, begin * p.stride_b, p.precision);
    if (begin > 0) part.product.accumulate = true, part.addend = operands.c;
    return part;
  };
  const int64_t last = (p.k - 1) / height * height;
  const Method of_first = method_of(part_of(0).product), of_last = method_of(part_of(last).product);
  const Method between = last > height ? method_of(part_of(height).product) : Method{};
  const Tiling& tiling = of_first.tiling;  // depends on m and n only
  const uint64_t thread_bytes =
      std::max({of_first.thread_bytes(), between.thread_bytes(), of_last.thread_bytes()});
  workers.parallel_for(tiling.row_tiles * tiling.column_tiles, [&](int64_t index, int thread) {
    for (int64_t begin = 0; begin < p.k; begin += height) {
      const ProductCall part = part_of(begin);
      const Method& method = begin == 0 ? of_first : begin == last ? of_last : between;
      run_tile({part, method, workspace, thread_bytes}, index, thread);
    }
  });
}

void Multiplier::run_tile(const Call& call, int64_t index, int thread) const {
  const Product& p = call.operands.product;
  const Method& method = call.method;
  const Tiling& t = method.tiling;
  const int64_t row_tile = index % t.row_tiles,
                column_tile = index / t.row_tiles;  // neighbours share B's columns
  const int64_t row = row_tile * t.rows, column = column_tile * t.columns;
  std::byte* scratch = call.workspace + static_cast<uint64_t>(thread) * call.thread_bytes;
  auto* sum = reinterpret_cast<float*>(scratch);
  const uint64_t first = static_cast<uint64_t>(row * p.stride_c + column) * dtype_bytes(p.result);
  const uint64_t stride_c = static_cast<uint64_t>(p.stride_c) * dtype_bytes(p.result);
  auto* c = static_cast<std::byte*>(call.operands.c) + first;
  const auto* addend = p.accumulate ? static_cast<const std::byte*>(call.operands.addend) + first : nullptr;
  float* to = method.direct ? reinterpret_cast<float*>(c) : sum;
  const TileShape shape{std::min(t.rows, p.m - row),
                        std::min(t.columns, p.n - column),
                        p.k,
                        p.transpose_a,
                        p.transpose_b,
                        p.stride_a,
                        p.stride_b,
                        method.direct ? p.stride_c : method.sum_stride(),
                        method.direct && p.accumulate};
  const void* a = part(call.operands.a, p.transpose_a, p.stride_a, row, 0, p.precision);
  const void* b = part(call.operands.b, p.transpose_b, p.stride_b, 0, column, p.precision);
  if (method.direct && shape.accumulate && addend != c)
    for (int64_t r = 0; r < shape.m; ++r)
      std::memcpy(c + static_cast<uint64_t>(r) * stride_c, addend + static_cast<uint64_t>(r) * stride_c,
                  static_cast<uint64_t>(shape.n) * sizeof(float));
  if (!method.native) {
    multiply_widened(call, shape, row, column, to, scratch + method.sum_bytes);
  } else if (p.precision == DType::f32) {
    multiply(shape, 1.0f, static_cast<const float*>(a), static_cast<const float*>(b), to);
  } else {
    method.bf16[row_tile + 1 == t.row_tiles][column_tile + 1 == t.column_tiles]->run(
        thread, a, b, to, scratch + method.sum_bytes);
  }
  const void* bias = call.operands.bias;
  if (bias != nullptr) bias = element(bias, column, p.precision);
  for (int64_t r = 0; r < shape.m; ++r) {
    if (!method.direct) {
      const uint64_t at = static_cast<uint64_t>(r) * stride_c;
      if (p.scaled) scale_row(sum + r * method.sum_stride(), call.operands.factor, shape.n);
      finish_row(p.result, sum + r * method.sum_stride(), bias, addend == nullptr ? nullptr : addend + at,
                 c + at, shape.n);
    } else if (bias != nullptr) {
      add_row(p.precision, bias, to + r * p.stride_c, shape.n);
    }
  }
}

void Multiplier::multiply_widened(const Call& call, const TileShape& tile, int64_t row, int64_t column,
                                  float* to, std::byte* scratch) const {
  const Product& p = call.operands.product;
  auto* panel_a = reinterpret_cast<float*>(scratch);
  auto* panel_b = reinterpret_cast<float*>(scratch + call.method.panel_a_bytes);
  const auto widen_panel = [&p](const void* from, int64_t stride, float* panel, int64_t rows,
                                int64_t columns) {
    for (int64_t r = 0; r < rows; ++r)
      widen(p.precision, element(from, r * stride, p.precision), panel + r * (columns + kPad),
            static_cast<uint64_t>(columns));
    return columns + kPad;
  };
  for (int64_t begin = 0; begin < p.k; begin += kWidenedDepth) {
    TileShape chunk = tile;
    chunk.k = std::min(kWidenedDepth, p.k - begin);
    chunk.accumulate = tile.accumulate || begin > 0;
    const void* a = part(call.operands.a, p.transpose_a, p.stride_a, row, begin, p.precision);
    const void* b = part(call.operands.b, p.transpose_b, p.stride_b, begin, column, p.precision);
    chunk.stride_a = p.transpose_a ? widen_panel(a, p.stride_a, panel_a, chunk.k, tile.m)
                                   : widen_panel(a, p.stride_a, panel_a, tile.m, chunk.k);
    chunk.stride_b = p.transpose_b ? widen_panel(b, p.stride_b, panel_b, tile.n, chunk.k)
                                   : widen_panel(b, p.stride_b, panel_b, chunk.k, tile.n);
    multiply(chunk, 1.0f, panel_a, panel_b, to);
  }
}

}  // namespace sluice::cpu
