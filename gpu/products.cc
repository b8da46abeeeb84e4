#include "gpu/products.h"

#include <algorithm>

#include "engine/base/error.h"

namespace sluice {
namespace {

// Either all products of an op are scaled, or none.
template <typename Products>
Products scaled(const OpShapes& s, Products products) {
  auto& [first, dx, dw] = products;
  first.scaled = dx.scaled = dw.scaled = s.attributes.factor() != 1;
  return products;
}
float factor_of(const OpShapes& s) { return static_cast<float>(s.attributes.factor()); }

struct LinearProducts {
  Product y, dx, dw;
};

LinearProducts linear_products(const OpShapes& s) {
  const bool out_in = s.attributes.weight_out_in;
  const int64_t rows = s.inputs[0][0], in = s.inputs[0][1], out = s.parameters[0][out_in ? 0 : 1];
  const int64_t stride_w = out_in ? in : out;
  const DType t = s.precision;
  const Product dw = out_in ? Product{out, in, rows, true, false, out, in, in, t, DType::f32, true}
                            : Product{in, out, rows, true, false, in, out, out, t, DType::f32, true};
  const bool bias = s.parameters.size() == 2;
  return scaled(s, LinearProducts{{rows, out, in, false, out_in, in, stride_w, out, t, t, false, bias},
                                  {rows, in, out, false, !out_in, out, stride_w, in, t, t},
                                  dw});
}

struct LossProducts {
  Product logits, dx, dw;
};

LossProducts loss_products(const OpShapes& s, const LossLayout& l, int64_t rows) {
  const DType t = s.precision;
  const int64_t c = l.columns, v = l.vocabulary;
  const int64_t stride = l.stride * static_cast<int64_t>(sizeof(float) / dtype_bytes(t));
  return scaled(s, LossProducts{{rows, v, c, false, true, c, c, l.stride, t, DType::f32},
                                {rows, c, v, false, false, stride, c, c, t, t},
                                {v, c, rows, true, false, stride, c, c, t, DType::f32, true}});
}

ProductCall gradient(Product product, float factor, const void* a, const void* b, const TensorView& c) {
  product.accumulate = c.addend != nullptr;
  return {product, a, b, c.data, c.addend, nullptr, factor};
}

// The tensor from byte `offset` on.
TensorView part_of(TensorView view, uint64_t offset) {
  if (view.data != nullptr) view.data = static_cast<std::byte*>(view.data) + offset;
  if (view.addend != nullptr) view.addend = static_cast<const std::byte*>(view.addend) + offset;
  return view;
}

}  // namespace

std::vector<Product> products_of(const OpShapes& shapes, Pass pass) {
  const bool forward = pass == Pass::forward;
  std::vector<Product> out;
  if (shapes.kind == OpKind::linear) {
    const LinearProducts p = linear_products(shapes);
    if (forward) return {p.y};
    return {p.dx, p.dw};
  }
  if (shapes.kind != OpKind::linear_cross_entropy) return {};
  const LossLayout l = loss_layout(shapes);
  for (const int64_t rows : {l.chunk, l.rows % l.chunk}) {
    if (rows == 0) continue;
    const LossProducts p = loss_products(shapes, l, rows);
    out.push_back(p.logits);
    if (!forward) out.insert(out.end(), {p.dx, p.dw});
  }
  return out;
}

ProductCall linear_output(const OpCall& call) {
  return {.product = linear_products(*call.shapes).y,
          .a = call.inputs[0].data,
          .b = call.parameters[0].data,
          .c = call.outputs[0].data,
          .bias = view_of(call.parameters, 1).data,
          .factor = factor_of(*call.shapes)};
}

std::array<ProductCall, 2> linear_gradients(const OpCall& call) {
  const void *x = call.inputs[0].data, *dy = call.output_gradients[0].data;
  CHECK(dy != nullptr, "linear's backward without a gradient of its output");
  const LinearProducts p = linear_products(*call.shapes);
  const TensorView dx = view_of(call.input_gradients, 0), dw = view_of(call.parameter_gradients, 0);
  const bool out_in = call.shapes->attributes.weight_out_in;
  const float factor = factor_of(*call.shapes);
  return {gradient(p.dx, factor, dy, call.parameters[0].data, dx),
          gradient(p.dw, factor, out_in ? dy : x, out_in ? x : dy, dw)};
}

LossLayout loss_layout(const OpShapes& s) {
  constexpr int64_t kLine = 128 / sizeof(float);
  LossLayout l;
  l.rows = s.inputs[0][0];
  l.columns = s.inputs[0][1];
  l.vocabulary = s.parameters[0][0];
  l.chunk = rows_at_a_time(s);
  l.stride = (l.vocabulary + kLine - 1) / kLine * kLine + kLine;
  l.logits_bytes = static_cast<uint64_t>(l.chunk * l.stride) * sizeof(float);
  l.losses_bytes = static_cast<uint64_t>((l.chunk + 7) / 8 * 8) * sizeof(double);
  l.rights_bytes = s.attributes.counts_right ? l.losses_bytes : 0;
  return l;
}

LossChunk loss_chunk(const OpCall& call, Pass pass, const LossLayout& l, int64_t begin) {
  const DType t = call.shapes->precision;
  const int64_t rows = std::min(l.chunk, l.rows - begin);
  const bool backward = pass == Pass::backward;
  const TensorView dx = backward ? view_of(call.input_gradients, 0) : TensorView{};
  TensorView dw = backward ? view_of(call.parameter_gradients, 0) : TensorView{};
  if (begin > 0) dw.addend = dw.data;
  const auto offset = static_cast<uint64_t>(begin * l.columns) * dtype_bytes(t);
  const LossProducts p = loss_products(*call.shapes, l, rows);
  const float factor = factor_of(*call.shapes);
  std::byte *logits = call.workspace, *losses = logits + l.logits_bytes;
  auto* const rights = reinterpret_cast<double*>(losses + l.losses_bytes);
  const void *x = part_of(call.inputs[0], offset).data, *weight = call.parameters[0].data;
  return {{reinterpret_cast<float*>(logits), reinterpret_cast<double*>(losses),
           l.rights_bytes > 0 ? rights : nullptr, static_cast<const int32_t*>(call.inputs[1].data) + begin,
           rows, l.vocabulary, l.stride, static_cast<float>(call.shapes->attributes.soft_cap)},
          {p.logits, x, weight, logits, nullptr, nullptr, factor},
          gradient(p.dx, factor, logits, weight, part_of(dx, offset)),
          gradient(p.dw, factor, logits, x, dw)};
}

}  // namespace sluice
