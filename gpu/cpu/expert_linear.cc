// expert_linear: products of tiles of kExpertTile rows, as many as the expert's rows fill.
//
// A tile has the same height however many rows the expert has, so a row's results do not depend on that. The
// weight's gradient is a sum over the rows: chunks of the largest heights that fit are added in order.
#include <algorithm>
#include <array>
#include <cstring>

#include "gpu/cpu/column_sums.h"
#include "gpu/cpu/expert_rows.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/matmul.h"
#include "gpu/cpu/rows.h"

namespace sluice::cpu {
namespace {

constexpr std::array<int64_t, 4> kChunks = {512, 256, 128, kExpertTile};  // each a multiple of the next

struct Products {
  explicit Products(const OpShapes& s)
      : out_in(s.attributes.weight_out_in),
        in(s.inputs[1][1]),
        out(s.outputs[0][1]),
        precision(s.precision),
        factor(static_cast<float>(s.attributes.factor())) {}

  // Of one tile, before its bias.
  Product y() const {
    return {kExpertTile, out, in, false, out_in, in, out_in ? in : out, out, precision, DType::f32};
  }
  Product dx() const {
    Product p{kExpertTile, in, out, false, !out_in, out, out_in ? in : out, in, precision, precision};
    p.scaled = factor != 1;
    return p;
  }
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
std::byte* row_of(void* matrix, int64_t row, int64_t columns, DType type) {
  return static_cast<std::byte*>(matrix) + static_cast<uint64_t>(row * columns) * dtype_bytes(type);
}

// A tile of fp32 sums, before the products' workspace.
uint64_t sums_bytes(const Products& p) { return static_cast<uint64_t>(kExpertTile * p.out) * sizeof(float); }

void input_gradient(const OpCall& call, const ExpertRows& rows, const Resources& resources) {
  const TensorView dx = call.input_gradients[1];
  if (dx.data == nullptr) return;
  const Products p(*call.shapes);
  Product product = p.dx();
  product.accumulate = dx.addend != nullptr;
  for (int64_t begin = 0; begin < rows.with_zeros(); begin += kExpertTile)
    resources.multiplier.run(
        {.product = product,
         .a = row_of(call.output_gradients[0].data, begin, p.out, p.precision),
         .b = call.parameters[0].data,
         .c = row_of(dx.data, begin, p.in, p.precision),
         .addend = dx.addend == nullptr ? nullptr : row_of(dx.addend, begin, p.in, p.precision),
         .factor = p.factor},
        call.workspace, resources.workers);
  std::memset(row_of(dx.data, rows.count, p.in, p.precision), 0,
              static_cast<uint64_t>((rows.with_zeros() - rows.count) * p.in) * dtype_bytes(p.precision));
}

void weight_gradient(const OpCall& call, const ExpertRows& rows, const Resources& resources) {
  const TensorView dw = call.parameter_gradients[0];
  if (dw.data == nullptr) return;
  const Products p(*call.shapes);
  bool accumulate = dw.addend != nullptr;
  if (!accumulate && rows.count == 0)
    std::memset(dw.data, 0, static_cast<uint64_t>(p.in * p.out) * sizeof(float));
  for (int64_t begin = 0; begin < rows.with_zeros();) {
    const int64_t height =
        *std::ranges::find_if(kChunks, [&](int64_t chunk) { return begin + chunk <= rows.with_zeros(); });
    Product product = p.dw(height);
    product.accumulate = accumulate;
    const void* const x = row_of(call.inputs[1].data, begin, p.in, p.precision);
    const void* const dy = row_of(call.output_gradients[0].data, begin, p.out, p.precision);
    resources.multiplier.run({.product = product,
                              .a = p.out_in ? dy : x,
                              .b = p.out_in ? x : dy,
                              .c = dw.data,
                              .addend = dw.data,
                              .factor = p.factor},
                             call.workspace, resources.workers);
    accumulate = true;
    begin += height;
  }
}

// Sums over the columns of dy times the bias.
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
  resources.workers.parallel_for(rows.with_zeros() / kExpertTile, [&](int64_t tile, int) {
    for (int64_t i = tile * kExpertTile; i < std::min(rows.count, (tile + 1) * kExpertTile); ++i)
      gradient[rows.choice(i)] +=
          dot_row(p.precision, row_of(call.output_gradients[0].data, i, p.out, p.precision),
                  call.parameters[1].data, p.out);
  });
}

}  // namespace

uint64_t expert_linear_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources) {
  const Products p(shapes);
  if (pass == Pass::forward) {
    const Product y = p.y();
    return sums_bytes(p) + resources.multiplier.prepare({&y, 1});
  }
  std::array<Product, kChunks.size() + 1> products{p.dx()};
  for (size_t i = 0; i < kChunks.size(); ++i) products[i + 1] = p.dw(kChunks[i]);
  return resources.multiplier.prepare(products);
}

void expert_linear_forward(const OpCall& call, const Resources& resources) {
  const ExpertRows rows(call);
  const Products p(*call.shapes);
  auto* const sums = reinterpret_cast<float*>(call.workspace);
  const void* const bias = view_of(call.parameters, 1).data;
  for (int64_t begin = 0; begin < rows.with_zeros(); begin += kExpertTile) {
    resources.multiplier.run({.product = p.y(),
                              .a = row_of(call.inputs[1].data, begin, p.in, p.precision),
                              .b = call.parameters[0].data,
                              .c = sums},
                             call.workspace + sums_bytes(p), resources.workers);
    resources.workers.parallel_for(kExpertTile, [&](int64_t r, int) {
      float* const sum = sums + r * p.out;
      std::byte* const y = row_of(call.outputs[0].data, begin + r, p.out, p.precision);
      if (begin + r >= rows.count) {
        std::memset(y, 0, static_cast<uint64_t>(p.out) * dtype_bytes(p.precision));
        return;
      }
      if (p.factor != 1) scale_row(sum, p.factor, p.out);
      if (rows.weights != nullptr) add_scaled_row(p.precision, bias, rows.weight(begin + r), sum, p.out);
      finish_row(p.precision, sum, rows.weights == nullptr ? bias : nullptr, nullptr, y, p.out);
    });
  }
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
