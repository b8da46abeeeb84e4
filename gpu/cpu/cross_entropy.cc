// linear_cross_entropy: products and rows, chunk by chunk. A row with a logit that is not finite has the loss
// NaN and the gradient NaN.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/error.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/matmul.h"
#include "gpu/cpu/rows.h"

namespace sluice::cpu {
namespace {

// Where a row's gradients go, one after the other.
struct GradientRow {
  DType precision;
  std::byte* data;

  std::byte* at(int64_t i) const { return data + static_cast<uint64_t>(i) * dtype_bytes(precision); }
};

// The logits were capped. Slopes are computed from the capped logits, so these stay, and exponentials are
// made block by block. Returns the sum of the exponentials. With a factor, also writes the gradients of all
// logits but the label's: factor * e^(logit - maximum) * the cap's slope. A gradient lies at its logit's
// address or before it.
double pass_over_capped(const float* logits, int64_t vocabulary, float maximum, float cap,
                        const float* factor, const GradientRow& to) {
  constexpr int64_t kBlock = 1024;
  float e[kBlock], slopes[kBlock];
  double sum = 0;
  for (int64_t begin = 0; begin < vocabulary; begin += kBlock) {
    const int64_t n = std::min(kBlock, vocabulary - begin);
    std::copy_n(logits + begin, n, e);
    if (factor != nullptr) soft_cap_slopes(e, cap, slopes, n);
    sum += exponential_row(e, maximum, n);
    if (factor == nullptr) continue;
    multiply_row(e, slopes, n);
    scale_and_round_row(to.precision, e, *factor, to.at(begin), n);
  }
  return sum;
}

// Does what finish_logits does, where there is a cap.
double finish_capped(float* logits, int64_t vocabulary, int32_t label, float cap, const GradientRow& to,
                     const float* seed) {
  soft_cap_row(logits, cap, nullptr, vocabulary);
  const float maximum = finite_maximum(logits, vocabulary);
  const double label_logit = logits[label];
  const double sum = pass_over_capped(logits, vocabulary, maximum, cap, nullptr, to);
  if (seed != nullptr) {
    const float factor = static_cast<float>(static_cast<double>(*seed) / sum);
    pass_over_capped(logits, vocabulary, maximum, cap, &factor, to);
    const double probability = std::exp(label_logit - static_cast<double>(maximum)) / sum;
    const double tanh = label_logit / static_cast<double>(cap);
    const auto at_label =
        static_cast<float>((probability - 1) * (1 - tanh * tanh) * static_cast<double>(*seed));
    scale_and_round_row(to.precision, &at_label, 1.0f, to.at(label), 1);
  }
  return static_cast<double>(maximum) + std::log(sum) - label_logit;
}

// Returns the loss of one row. Unless `seed` is nullptr, replaces the logits by their gradient.
double finish_logits(float* logits, int64_t vocabulary, int32_t label, float cap, DType precision,
                     const float* seed) {
  const GradientRow to{precision, reinterpret_cast<std::byte*>(logits)};
  if (is_ignored(label)) {
    if (seed != nullptr) std::fill(logits, logits + vocabulary, 0.0f);
    return 0;  // +0 has all bits zero in every precision, so the fill is the rounded gradient
  }
  CHECK(label >= 0 && label < vocabulary, "a label outside the vocabulary");
  if (cap != 0) return finish_capped(logits, vocabulary, label, cap, to, seed);
  const float maximum = finite_maximum(logits, vocabulary);
  const double label_logit = logits[label];
  const double sum = exponential_row(logits, maximum, vocabulary);
  const double loss = static_cast<double>(maximum) + std::log(sum) - label_logit;
  if (seed != nullptr) {
    // dlogit = seed * (e / sum - [is the label]). One pass scales all logits; then the label's is
    // overwritten.
    const float factor = static_cast<float>(static_cast<double>(*seed) / sum);
    const double probability = logits[label] / sum;
    const float at_label = static_cast<float>((probability - 1) * static_cast<double>(*seed));
    scale_and_round_row(precision, logits, factor, logits, vocabulary);
    scale_and_round_row(precision, &at_label, 1.0f, to.at(label), 1);
  }
  return loss;
}

// False for a label outside the vocabulary: either it marks a row to be ignored, or finish_logits refuses the
// label. If a logit is not finite, the maximum is NaN, and the row is not right.
bool is_right(const float* logits, int64_t vocabulary, int32_t label) {
  return label >= 0 && label < vocabulary && finite_maximum(logits, vocabulary) == logits[label];
}

// Computes losses and gradients of a chunk's rows. Unless `loss` is nullptr, adds the losses to loss[0] in
// row order and, if c.rights is given, adds to loss[1] the number of rows in which no logit is above the
// label's.
void finish_rows(const LossRows& c, DType precision, const float* seed, double* loss, Workers& workers) {
  // Rows of one task, which then takes tens of microseconds.
  const int64_t group = std::max<int64_t>(1, 16384 / c.vocabulary);
  workers.parallel_for((c.rows + group - 1) / group, [&](int64_t index, int) {
    for (int64_t r = index * group; r < std::min(c.rows, (index + 1) * group); ++r) {
      float* const logits = c.logits + r * c.stride;
      if (c.rights != nullptr) c.rights[r] = is_right(logits, c.vocabulary, c.labels[r]);
      c.losses[r] = finish_logits(logits, c.vocabulary, c.labels[r], c.cap, precision, seed);
    }
  });
  for (int64_t r = 0; loss != nullptr && r < c.rows; ++r) {
    loss[0] += c.losses[r];
    if (c.rights != nullptr) loss[1] += c.rights[r];
  }
}

void run(const OpCall& call, Pass pass, const Resources& resources) {
  const LossLayout layout = loss_layout(*call.shapes);
  const bool backward = pass == Pass::backward;
  const float seed = backward ? static_cast<float>(*call.loss_scale / *call.valid_tokens) : 0;
  auto* loss = static_cast<double*>(view_of(call.outputs, 0).data);
  std::byte* scratch = call.workspace + layout.bytes();
  for (int64_t begin = 0; begin < layout.rows; begin += layout.chunk) {
    const LossChunk chunk = loss_chunk(call, pass, layout, begin);
    resources.multiplier.run(chunk.logits, scratch, resources.workers);
    finish_rows(chunk.rows, call.shapes->precision, backward ? &seed : nullptr, loss, resources.workers);
    resources.multiplier.run(chunk.dx, scratch, resources.workers);
    resources.multiplier.run(chunk.dw, scratch, resources.workers);
  }
}

}  // namespace

uint64_t linear_cross_entropy_workspace_bytes(const OpShapes& shapes, Pass pass, const Resources& resources) {
  return loss_layout(shapes).bytes() + resources.multiplier.prepare(products_of(shapes, pass));
}

void linear_cross_entropy_forward(const OpCall& call, const Resources& resources) {
  run(call, Pass::forward, resources);
}

void linear_cross_entropy_backward(const OpCall& call, const Resources& resources) {
  run(call, Pass::backward, resources);
}

}  // namespace sluice::cpu
