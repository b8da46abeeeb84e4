// expert_linear: products of tiles of kExpertTile rows. The expert's rows decide the number of tiles.
//
// All tiles have the same height, so a row's results do not depend on how many rows the expert has. The
// weight's gradient is a sum over the rows, in chunks.
#include <algorithm>
#include <array>
#include <cstring>

#include "gpu/cpu/column_sums.h"
#include "gpu/cpu/expert_rows.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/matmul.h"
#include "gpu/cpu/rows.h"
#include "gpu/cpu/tile_matmul.h"

namespace sluice::cpu {
namespace {

// Rows of a chunk. Longer chunks would only add products to be prepared, one for each number of tiles.
constexpr int64_t kChunk = 1024;

struct Products {
  explicit Products(const OpShapes& s)
      : out_in(s.attributes.weight_out_in),
        in(s.inputs[1][1]),
        out(s.outputs[0][1]),
        precision(s.precision),
        factor(static_cast<float>(s.attributes.factor())) {}

  TiledProduct y() const { return {kExpertTile, out, in, out_in, out_in ? in : out, precision}; }
  TiledProduct dx() const { return {kExpertTile, in, out, !out_in, out_in ? in : out, precision}; }
  Product dw(int64_t rows) const {
    Product p = out_in ? Product{out, in, rows, true, false, out, in, in, precision, DType::f32, true}
                       : Product{in, out, rows, true, false, in, out, out, precision, DType::f32, true};
    p.scaled = factor != 1;
    return p;
  }

  bool out_in;
  int64_t in, out;
  DType precision;
  float factor;
};

const std::byte* row_of(const void* matrix, int64_t row, int64_t columns, DType type) {
  return static_cast<const std::byte*>(matrix) + static_cast<uint64_t>(row * columns) * dtype_bytes(type);
}
void zero(DType type, void* to, int64_t n) {
  std::memset(to, 0, static_cast<uint64_t>(n) * dtype_bytes(type));
}

void input_gradient(const OpCall& call, const ExpertRows& rows, const Resources& resources) {
  const TensorView dx = call.input_gradients[1];
  if (dx.data == nullptr) return;
  const Products p(*call.shapes);
  resources.tiles.run(
      {p.dx(), call.output_gradients[0].data, call.parameters[0].data, rows.tiles(), call.workspace},
      resources.workers, [&](int64_t row, int64_t column, float* sums, int64_t n) {
        const uint64_t at = static_cast<uint64_t>(row * p.in + column) * dtype_bytes(p.precision);
        std::byte* const to = static_cast<std::byte*>(dx.data) + at;
        const auto* const addend = static_cast<const std::byte*>(dx.addend);
        if (row >= rows.count) return zero(p.precision, to, n);
        if (p.factor != 1) scale_row(sums, p.factor, n);
        finish_row(p.precision, sums, nullptr, addend == nullptr ? nullptr : addend + at, to, n);
      });
}

void weight_gradient(const OpCall& call, const ExpertRows& rows, const Resources& resources) {
  const TensorView dw = call.parameter_gradients[0];
  if (dw.data == nullptr) return;
  const Products p(*call.shapes);
  const bool accumulate = dw.addend != nullptr;
  if (rows.count == 0) {
    if (!accumulate) std::memset(dw.data, 0, static_cast<uint64_t>(p.in * p.out) * sizeof(float));
    return;
  }
  const void *const x = call.inputs[1].data, *const dy = call.output_gradients[0].data;
  Product product = p.dw(rows.with_zeros());
  product.accumulate = accumulate;
  resources.multiplier.run_chunks({.product = product,
                                   .a = p.out_in ? dy : x,
                                   .b = p.out_in ? x : dy,
                                   .c = dw.data,
                                   .addend = dw.addend,
                                   .factor = p.factor},
                                  kChunk, call.workspace, resources.workers);
}

// The gradient of a row's weight: the sum over the columns of dy times the bias.
void row_weight_gradient(const OpCall& call, const ExpertRows& rows, const Resources& resources) {
  if (rows.weights == nullptr || call.input_gradients.back().data == nullptr) return;
  const Products p(*call.shapes);
  const TensorView to = call.input_gradients.back();
  auto* const gradient = static_cast<float*>(to.data);
  const auto bytes = static_cast<uint64_t>(rows.layout.choices()) * sizeof(float);
  if (to.addend == nullptr)
    std::memset(gradient, 0, bytes);
  else if (to.addend != to.data)
    std::memcpy(gradient, to.addend, bytes);
  resources.workers.parallel_for(rows.tiles(), [&](int64_t tile, int) {
    for (int64_t i = tile * kExpertTile; i < std::min(rows.count, (tile + 1) * kExpertTile); ++i)
      gradient[rows.choice(i)] +=
          dot_row(p.precision, row_of(call.output_gradients[0].data, i, p.out, p.precision),
                  call.parameters[1].data, p.out);
  });
}

}  // namespace

uint64_t expert_linear_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources) {
  const Products p(shapes);
  if (pass == Pass::forward) return resources.tiles.prepare(p.y());
  std::array<Product, kChunk / kExpertTile> dw;
  for (size_t i = 0; i < dw.size(); ++i) dw[i] = p.dw(static_cast<int64_t>(i + 1) * kExpertTile);
  return std::max(resources.tiles.prepare(p.dx()), resources.multiplier.prepare(dw));
}

void expert_linear_forward(const OpCall& call, const Resources& resources) {
  const ExpertRows rows(call);
  const Products p(*call.shapes);
  const auto* const bias = static_cast<const std::byte*>(view_of(call.parameters, 1).data);
  resources.tiles.run({p.y(), call.inputs[1].data, call.parameters[0].data, rows.tiles(), call.workspace},
                      resources.workers, [&](int64_t row, int64_t column, float* sums, int64_t n) {
                        const uint64_t size = dtype_bytes(p.precision);
                        std::byte* const y = static_cast<std::byte*>(call.outputs[0].data) +
                                             static_cast<uint64_t>(row * p.out + column) * size;
                        if (row >= rows.count) return zero(p.precision, y, n);
                        const void* const of_columns =
                            bias == nullptr ? nullptr : bias + static_cast<uint64_t>(column) * size;
                        const bool weighted = rows.weights != nullptr;
                        if (p.factor != 1) scale_row(sums, p.factor, n);
                        if (weighted) add_scaled_row(p.precision, of_columns, rows.weight(row), sums, n);
                        finish_row(p.precision, sums, weighted ? nullptr : of_columns, nullptr, y, n);
                      });
}

void expert_linear_backward(const OpCall& call, const Resources& resources) {
  const ExpertRows rows(call);
  const Products p(*call.shapes);
  input_gradient(call, rows, resources);
  weight_gradient(call, rows, resources);
  row_weight_gradient(call, rows, resources);
  if (void* db = view_of(call.parameter_gradients, 1).data)
    add_column_sums(
        p.precision, call.output_gradients[0].data, rows.count, p.out, static_cast<float*>(db),
        [&](int64_t i) { return rows.weight(i); }, resources.workers);
}

}  // namespace sluice::cpu
