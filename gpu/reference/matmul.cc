#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice::reference {
namespace {

// Calls put(row, column, sum over k of left(row, k) * right(k, column)), with the sum in ascending k. Tiles
// are square, so that each element of an operand is read (and widened) once for kTile results.
template <typename Left, typename Right, typename Put>
void multiply(int64_t rows, int64_t columns, int64_t depth, Left left, Right right, Put put) {
  constexpr int64_t kTile = 16;
  for (int64_t row = 0; row < rows; row += kTile) {
    const int64_t row_count = std::min(kTile, rows - row);
    for (int64_t column = 0; column < columns; column += kTile) {
      const int64_t column_count = std::min(kTile, columns - column);
      double sums[kTile][kTile] = {};
      double a[kTile] = {}, b[kTile] = {};  // zero beyond the edges
      for (int64_t k = 0; k < depth; ++k) {
        for (int64_t i = 0; i < row_count; ++i) a[i] = left(row + i, k);
        for (int64_t j = 0; j < column_count; ++j) b[j] = right(k, column + j);
        for (int64_t i = 0; i < kTile; ++i)
          for (int64_t j = 0; j < kTile; ++j) sums[i][j] += a[i] * b[j];
      }
      for (int64_t i = 0; i < row_count; ++i)
        for (int64_t j = 0; j < column_count; ++j) put(row + i, column + j, sums[i][j]);
    }
  }
}

struct LinearSizes {
  int64_t rows, inputs, outputs;
  double factor;                        // of products
  int64_t input_stride, output_stride;  // of the weight, from an input or output column to the next

  explicit LinearSizes(const OpShapes& s)
      : rows(s.inputs[0][0]),
        inputs(s.inputs[0][1]),
        outputs(s.outputs[0][1]),
        factor(s.attributes.factor()) {
    const bool out_in = s.attributes.weight_out_in;
    input_stride = out_in ? 1 : outputs;
    output_stride = out_in ? inputs : 1;
  }
  int64_t weight(int64_t input, int64_t output) const {
    return input * input_stride + output * output_stride;
  }
};

template <typename T>
void linear_forward_as(const OpCall& call) {
  const LinearSizes n(*call.shapes);
  const Values<T> x(call.inputs[0]), weight(call.parameters[0]), y(call.outputs[0]);
  const bool has_bias = call.parameters.size() == 2;
  const Values<T> bias(has_bias ? call.parameters[1] : TensorView{});
  multiply(
      n.rows, n.outputs, n.inputs, [&](int64_t r, int64_t k) { return x[r * n.inputs + k]; },
      [&](int64_t k, int64_t o) { return weight[n.weight(k, o)]; },
      [&](int64_t r, int64_t o, double sum) {
        const double product = n.factor * sum;
        y.put(r * n.outputs + o, has_bias ? product + bias[o] : product);
      });
}

template <typename T>
void linear_backward_as(const OpCall& call) {
  const LinearSizes n(*call.shapes);
  const Values<T> x(call.inputs[0]), weight(call.parameters[0]);
  const Values<T> dy(call.output_gradients[0]), dx(call.input_gradients[0]);
  if (dx)
    multiply(
        n.rows, n.inputs, n.outputs, [&](int64_t r, int64_t o) { return dy[r * n.outputs + o]; },
        [&](int64_t o, int64_t k) { return weight[n.weight(k, o)]; },
        [&](int64_t r, int64_t k, double sum) { dx.put(r * n.inputs + k, n.factor * sum); });
  const Values<float> d_weight = parameter_gradient(call, 0);
  if (d_weight)
    multiply(
        n.inputs, n.outputs, n.rows, [&](int64_t k, int64_t r) { return x[r * n.inputs + k]; },
        [&](int64_t r, int64_t o) { return dy[r * n.outputs + o]; },
        [&](int64_t k, int64_t o, double sum) { d_weight.put(n.weight(k, o), n.factor * sum); });
  if (call.parameters.size() < 2) return;
  const Values<float> d_bias = parameter_gradient(call, 1);
  if (d_bias)  // a row of ones times dy
    multiply(
        1, n.outputs, n.rows, [](int64_t, int64_t) { return 1.0; },
        [&](int64_t r, int64_t o) { return dy[r * n.outputs + o]; },
        [&](int64_t, int64_t o, double sum) { d_bias.put(o, sum); });
}

struct LossSizes {
  int64_t rows, columns, vocabulary, chunk;
  double factor, cap;  // of logits; cap 0: none

  explicit LossSizes(const OpShapes& s)
      : rows(s.inputs[0][0]),
        columns(s.inputs[0][1]),
        vocabulary(s.parameters[0][0]),
        chunk(rows_at_a_time(s)),
        factor(s.attributes.factor()),
        cap(s.attributes.soft_cap) {}
};

// Returns the logit after the cap, if there is one. An infinite logit then becomes NaN.
double capped(double logit, double cap) {
  if (cap == 0) return logit;
  return std::isinf(logit) ? std::numeric_limits<double>::quiet_NaN() : cap * std::tanh(logit / cap);
}

// Fills the workspace with the logits of rows [first, last).
template <typename T>
void compute_logits(const OpCall& call, const LossSizes& n, int64_t first, int64_t last) {
  const Values<T> x(call.inputs[0]), weight(call.parameters[0]);
  double* logits = workspace_of(call);
  multiply(
      last - first, n.vocabulary, n.columns,
      [&](int64_t r, int64_t c) { return x[(first + r) * n.columns + c]; },
      [&](int64_t c, int64_t v) { return weight[v * n.columns + c]; },
      [&](int64_t r, int64_t v, double sum) {
        logits[r * n.vocabulary + v] = capped(n.factor * sum, n.cap);
      });
}

double log_sum_exp(const double* logits, int64_t count) {
  const double largest = *std::max_element(logits, logits + count);
  double sum = 0;
  for (int64_t v = 0; v < count; ++v) sum += std::exp(logits[v] - largest);
  return largest + std::log(sum);
}

// Whether no logit is above the label's. Capped logits give the same answer, since the cap keeps their order.
bool is_right(const double* logits, int64_t count, int32_t label) {
  return !is_ignored(label) &&
         std::all_of(logits, logits + count, [&](double logit) { return logit <= logits[label]; });
}

// Adds to the loss and, if the op counts right rows, to the count that follows the loss in memory.
void add_to_loss(const OpCall& call, double total, int64_t right) {
  auto* loss = static_cast<double*>(call.outputs[0].data);
  loss[0] += total;
  if (call.shapes->attributes.counts_right) loss[1] += static_cast<double>(right);
}

// Returns the loss of one row and replaces its logits by the gradient of (seed * loss), with respect to the
// products that the logits were made of.
double differentiate_row(double* logits, const LossSizes& n, int32_t label, double seed) {
  const int64_t vocabulary = n.vocabulary;
  if (is_ignored(label)) {
    std::fill(logits, logits + vocabulary, 0.0);
    return 0;
  }
  const double normalizer = log_sum_exp(logits, vocabulary);
  const double loss = normalizer - logits[label];
  for (int64_t v = 0; v < vocabulary; ++v) {
    const double tanh = n.cap == 0 ? 0 : logits[v] / n.cap, slope = n.factor * (1 - tanh * tanh);
    logits[v] = (std::exp(logits[v] - normalizer) - (v == label ? 1.0 : 0.0)) * seed * slope;
  }
  return loss;
}

template <typename T>
void loss_backward_as(const OpCall& call) {
  const LossSizes n(*call.shapes);
  const Values<T> x(call.inputs[0]), weight(call.parameters[0]), dx(call.input_gradients[0]);
  Values<float> d_weight = parameter_gradient(call, 0);
  const auto* labels = static_cast<const int32_t*>(call.inputs[1].data);
  double* logits = workspace_of(call);
  const auto seed = static_cast<float>(*call.loss_scale / *call.valid_tokens);
  double total = 0;
  int64_t right = 0;
  for (int64_t first = 0; first < n.rows; first += n.chunk) {
    const int64_t last = std::min(first + n.chunk, n.rows);
    compute_logits<T>(call, n, first, last);
    for (int64_t r = first; r < last; ++r) {
      double* row = logits + (r - first) * n.vocabulary;
      right += is_right(row, n.vocabulary, labels[r]);
      total += differentiate_row(row, n, labels[r], seed);
    }
    const auto d_logits = [&](int64_t r, int64_t v) { return logits[r * n.vocabulary + v]; };
    if (dx)
      multiply(
          last - first, n.columns, n.vocabulary, d_logits,
          [&](int64_t v, int64_t c) { return weight[v * n.columns + c]; },
          [&](int64_t r, int64_t c, double sum) { dx.put((first + r) * n.columns + c, sum); });
    if (d_weight) {
      multiply(
          n.vocabulary, n.columns, last - first, [&](int64_t v, int64_t r) { return d_logits(r, v); },
          [&](int64_t r, int64_t c) { return x[(first + r) * n.columns + c]; },
          [&](int64_t v, int64_t c, double sum) { d_weight.put(v * n.columns + c, sum); });
      d_weight.addend = d_weight.data;
    }
  }
  add_to_loss(call, total, right);
}

template <typename T>
void loss_forward_as(const OpCall& call) {
  const LossSizes n(*call.shapes);
  const auto* labels = static_cast<const int32_t*>(call.inputs[1].data);
  const double* logits = workspace_of(call);
  double total = 0;
  int64_t right = 0;
  for (int64_t first = 0; first < n.rows; first += n.chunk) {
    const int64_t last = std::min(first + n.chunk, n.rows);
    compute_logits<T>(call, n, first, last);
    for (int64_t r = first; r < last; ++r) {
      if (is_ignored(labels[r])) continue;
      const double* row = logits + (r - first) * n.vocabulary;
      right += is_right(row, n.vocabulary, labels[r]);
      total += log_sum_exp(row, n.vocabulary) - row[labels[r]];
    }
  }
  add_to_loss(call, total, right);
}

}  // namespace

void linear_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&](auto t) { linear_forward_as<decltype(t)>(call); });
}

void linear_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&](auto t) { linear_backward_as<decltype(t)>(call); });
}

void linear_cross_entropy_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&](auto t) { loss_forward_as<decltype(t)>(call); });
}

void linear_cross_entropy_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&](auto t) { loss_backward_as<decltype(t)>(call); });
}

// The workspace holds the logits of one chunk.
uint64_t linear_cross_entropy_workspace_bytes(const OpShapes& shapes, Pass) {
  const LossSizes n(shapes);
  return static_cast<uint64_t>(n.chunk) * static_cast<uint64_t>(n.vocabulary) * sizeof(double);
}

}  // namespace sluice::reference
