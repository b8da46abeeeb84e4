// linear_cross_entropy: logits = x W^T in chunks of rows, the rows' losses, and dx = dlogits W, dW +=
// dlogits^T x.
//
// The logits of a chunk are fp32 in the workspace; their gradient is rounded to the working precision in
// place (a row of it begins where the row of logits does). A row with a logit that is not finite has the
// loss NaN and the gradient NaN.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/error.h"
#include "gpu/cpu_kernels.h"
#include "gpu/cpu_matmul.h"
#include "gpu/cpu_rows.h"

namespace sluice::cpu {
namespace {

struct Layout {
  int64_t rows, columns, vocabulary;
  int64_t chunk;   // rows of one chunk
  int64_t stride;  // floats of one row of logits: a multiple of 64 bytes, no power of two
  uint64_t logits_bytes;
  uint64_t losses_bytes;  // one double a row of the chunk
};

Layout layout_of(const OpShapes& s) {
  Layout l;
  l.rows = s.inputs[0][0];
  l.columns = s.inputs[0][1];
  l.vocabulary = s.parameters[0][0];
  l.chunk = std::min(l.rows, cross_entropy_chunk(l.vocabulary));
  l.stride = (l.vocabulary + 15) / 16 * 16 + 16;
  l.logits_bytes = static_cast<uint64_t>(l.chunk * l.stride) * sizeof(float);
  l.losses_bytes = static_cast<uint64_t>((l.chunk + 7) / 8 * 8) * sizeof(double);
  return l;
}

struct Products {
  Product logits, dx, dw;
};

Products products_of(const OpShapes& s, const Layout& l, int64_t rows, bool accumulate_dx) {
  const DType t = s.precision;
  const int64_t c = l.columns, v = l.vocabulary;
  const int64_t stride = l.stride * static_cast<int64_t>(sizeof(float) / dtype_bytes(t));
  return {{rows, v, c, false, true, c, c, l.stride, t, DType::f32, false},
          {rows, c, v, false, false, stride, c, c, t, t, accumulate_dx},
          {v, c, rows, true, false, stride, c, c, t, DType::f32, true}};
}

// One row: the loss, and in place the gradient if `seed` is not nullptr.
double finish_logits(float* logits, int64_t vocabulary, int32_t label, DType precision, const float* seed) {
  if (label == kIgnoreLabel) {
    if (seed != nullptr) std::fill(logits, logits + vocabulary, 0.0f);
    return 0;  // +0 has all bits zero in every precision, so the fill is the rounded gradient
  }
  CHECK(label >= 0 && label < vocabulary, "a label outside the vocabulary");
  const float maximum = finite_maximum(logits, vocabulary);
  const double label_logit = logits[label];
  const double sum = exponential_row(logits, maximum, vocabulary);
  const double loss = static_cast<double>(maximum) + std::log(sum) - label_logit;
  if (seed != nullptr) {
    // dlogit = seed * (e/sum - 1 at the label): the label's factor is undone so that one pass serves all.
    const float factor = static_cast<float>(static_cast<double>(*seed) / sum);
    const double probability = logits[label] / sum;
    const float at_label = static_cast<float>((probability - 1) * static_cast<double>(*seed));
    scale_and_round_row(precision, logits, factor, logits, vocabulary);
    auto* out = reinterpret_cast<std::byte*>(logits) + static_cast<uint64_t>(label) * dtype_bytes(precision);
    scale_and_round_row(precision, &at_label, 1.0f, out, 1);
  }
  return loss;
}

// Losses and gradients of the chunk that begins at `begin`; the losses are added in row order.
void finish_chunk(const OpCall& call, const Layout& l, int64_t begin, int64_t rows, const float* seed,
                  Workers& workers) {
  auto* logits = reinterpret_cast<float*>(call.workspace);
  auto* losses = reinterpret_cast<double*>(call.workspace + l.logits_bytes);
  const auto* labels = static_cast<const int32_t*>(call.inputs[1].data) + begin;
  const int64_t group =
      std::max<int64_t>(1, 16384 / l.vocabulary);  // rows of one task: tens of microseconds
  workers.parallel_for((rows + group - 1) / group, [&](int64_t index, int) {
    for (int64_t r = index * group; r < std::min(rows, (index + 1) * group); ++r)
      losses[r] =
          finish_logits(logits + r * l.stride, l.vocabulary, labels[r], call.shapes->precision, seed);
  });
  if (call.outputs.empty() || call.outputs[0].data == nullptr) return;
  auto* loss = static_cast<double*>(call.outputs[0].data);
  for (int64_t r = 0; r < rows; ++r) *loss += losses[r];
}

void run(const OpCall& call, Pass pass, Multiplier& multiplier, Workers& workers) {
  const OpShapes& s = *call.shapes;
  const Layout l = layout_of(s);
  const bool backward = pass == Pass::backward;
  const TensorView dx = backward ? call.input_gradients[0] : TensorView{};
  void* dw = backward && !call.parameter_gradients.empty() ? call.parameter_gradients[0].data : nullptr;
  const float seed = backward ? static_cast<float>(*call.loss_scale / *call.valid_tokens) : 0;
  const void* weight = call.parameters[0].data;
  std::byte* scratch = call.workspace + l.logits_bytes + l.losses_bytes;
  for (int64_t begin = 0; begin < l.rows; begin += l.chunk) {
    const int64_t rows = std::min(l.chunk, l.rows - begin);
    const Products p = products_of(s, l, rows, dx.accumulate);
    const uint64_t offset = static_cast<uint64_t>(begin * l.columns) * dtype_bytes(s.precision);
    const void* x = static_cast<const std::byte*>(call.inputs[0].data) + offset;
    multiplier.run(p.logits, x, weight, nullptr, call.workspace, scratch, workers);
    finish_chunk(call, l, begin, rows, backward ? &seed : nullptr, workers);
    if (dx.data != nullptr)
      multiplier.run(p.dx, call.workspace, weight, nullptr, static_cast<std::byte*>(dx.data) + offset,
                     scratch, workers);
    if (dw != nullptr) multiplier.run(p.dw, call.workspace, x, nullptr, dw, scratch, workers);
  }
}

}  // namespace

uint64_t linear_cross_entropy_workspace_bytes(const OpShapes& shapes, Pass pass, Multiplier& multiplier) {
  const Layout l = layout_of(shapes);
  uint64_t product_bytes = 0;
  for (const int64_t rows : {l.chunk, l.rows % l.chunk}) {
    if (rows == 0) continue;
    const Products p = products_of(shapes, l, rows, false);
    product_bytes = std::max(product_bytes, multiplier.prepare(p.logits));
    if (pass == Pass::forward) continue;
    product_bytes = std::max({product_bytes, multiplier.prepare(p.dx), multiplier.prepare(p.dw)});
  }
  return l.logits_bytes + l.losses_bytes + product_bytes;
}

void linear_cross_entropy_forward(const OpCall& call, Multiplier& multiplier, Workers& workers) {
  run(call, Pass::forward, multiplier, workers);
}

void linear_cross_entropy_backward(const OpCall& call, Multiplier& multiplier, Workers& workers) {
  run(call, Pass::backward, multiplier, workers);
}

}  // namespace sluice::cpu
