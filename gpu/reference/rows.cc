#include <algorithm>
#include <cmath>
#include <numbers>

#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice::reference {
namespace {

double square(double x) { return x * x; }

template <typename T>
void embedding_forward_as(const OpCall& call) {
  const int64_t rows = call.shapes->outputs[0][0], columns = call.shapes->outputs[0][1];
  const auto* tokens = static_cast<const int32_t*>(call.inputs[0].data);
  const Values<T> table(call.parameters[0]), x(call.outputs[0]);
  const bool has_positions = call.parameters.size() == 2;
  const Values<T> positions(has_positions ? call.parameters[1] : TensorView{});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const double entry = table[tokens[r] * columns + c];
      x.put(r * columns + c,
            has_positions ? entry + positions[r % call.shapes->attributes.sequence * columns + c] : entry);
    }
}

// gradient[table_row] += the sum of the rows r of dy for which chosen(r), if there are any.
template <typename T, typename Chosen>
void add_chosen_rows(const OpCall& call, const Values<float>& gradient, int64_t table_row, Chosen chosen) {
  const int64_t rows = call.shapes->outputs[0][0], columns = call.shapes->outputs[0][1];
  const Values<T> dy(call.output_gradients[0]);
  double* sums = workspace_of(call);
  std::fill(sums, sums + columns, 0.0);
  bool any = false;
  for (int64_t r = 0; r < rows; ++r) {
    if (!chosen(r)) continue;
    any = true;
    for (int64_t c = 0; c < columns; ++c) sums[c] += dy[r * columns + c];
  }
  if (!any) return;
  for (int64_t c = 0; c < columns; ++c) gradient.put(table_row * columns + c, sums[c]);
}

template <typename T>
void embedding_backward_as(const OpCall& call) {
  const auto* tokens = static_cast<const int32_t*>(call.inputs[0].data);
  const Values<float> d_table = parameter_gradient(call, 0);
  for (int64_t token = 0; d_table && token < call.shapes->parameters[0][0]; ++token)
    add_chosen_rows<T>(call, d_table, token, [&](int64_t r) { return tokens[r] == token; });
  if (call.parameters.size() < 2) return;
  const Values<float> d_positions = parameter_gradient(call, 1);
  const int64_t sequence = call.shapes->attributes.sequence;
  for (int64_t position = 0; d_positions && position < sequence; ++position)
    add_chosen_rows<T>(call, d_positions, position, [&](int64_t r) { return r % sequence == position; });
}

template <typename T>
void layer_norm_forward_as(const OpCall& call) {
  const int64_t rows = call.shapes->inputs[0][0], columns = call.shapes->inputs[0][1];
  const Values<T> x(call.inputs[0]), weight(call.parameters[0]), bias(call.parameters[1]), y(call.outputs[0]);
  const Values<float> means(call.outputs[1]), rstds(call.outputs[2]);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = r * columns;
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < columns; ++c) sum += x[row + c];
    const double mean = sum / static_cast<double>(columns);
    for (int64_t c = 0; c < columns; ++c) squares += square(x[row + c] - mean);
    const double rstd =
        1 / std::sqrt(squares / static_cast<double>(columns) + call.shapes->attributes.epsilon);
    for (int64_t c = 0; c < columns; ++c) y.put(row + c, (x[row + c] - mean) * rstd * weight[c] + bias[c]);
    means.put(r, mean);
    rstds.put(r, rstd);
  }
}

// With n = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - average(g) - n * average(g * n)).
template <typename T>
void layer_norm_backward_as(const OpCall& call) {
  const int64_t rows = call.shapes->inputs[0][0], columns = call.shapes->inputs[0][1];
  const Values<T> x(call.inputs[0]), weight(call.parameters[0]);
  const Values<T> dy(call.output_gradients[0]), dx(call.input_gradients[0]);
  const Values<float> means(call.outputs[1]), rstds(call.outputs[2]);
  const Values<float> d_weight = parameter_gradient(call, 0), d_bias = parameter_gradient(call, 1);
  double *weight_sums = workspace_of(call), *bias_sums = weight_sums + columns;
  std::fill(weight_sums, weight_sums + 2 * columns, 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = r * columns;
    const double mean = means[r], rstd = rstds[r];
    double sum = 0, products = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double n = (x[row + c] - mean) * rstd, g = dy[row + c] * weight[c];
      sum += g;
      products += g * n;
      weight_sums[c] += dy[row + c] * n;
      bias_sums[c] += dy[row + c];
    }
    sum /= static_cast<double>(columns);
    products /= static_cast<double>(columns);
    for (int64_t c = 0; c < columns; ++c) {
      const double n = (x[row + c] - mean) * rstd, g = dy[row + c] * weight[c];
      dx.put(row + c, rstd * (g - sum - n * products));
    }
  }
  for (int64_t c = 0; c < columns; ++c) {
    d_weight.put(c, weight_sums[c]);
    d_bias.put(c, bias_sums[c]);
  }
}

template <typename T>
void rms_norm_forward_as(const OpCall& call) {
  const int64_t rows = call.shapes->inputs[0][0], columns = call.shapes->inputs[0][1];
  const Values<T> x(call.inputs[0]), weight(call.parameters[0]), y(call.outputs[0]);
  const Values<float> rstds(call.outputs[1]);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = r * columns;
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c) squares += square(x[row + c]);
    const double rstd =
        1 / std::sqrt(squares / static_cast<double>(columns) + call.shapes->attributes.epsilon);
    for (int64_t c = 0; c < columns; ++c) y.put(row + c, x[row + c] * rstd * weight[c]);
    rstds.put(r, rstd);
  }
}

// With n = x * rstd and g = dy * weight: dx = rstd * (g - n * average(g * n)).
template <typename T>
void rms_norm_backward_as(const OpCall& call) {
  const int64_t rows = call.shapes->inputs[0][0], columns = call.shapes->inputs[0][1];
  const Values<T> x(call.inputs[0]), weight(call.parameters[0]);
  const Values<T> dy(call.output_gradients[0]), dx(call.input_gradients[0]);
  const Values<float> rstds(call.outputs[1]), d_weight = parameter_gradient(call, 0);
  double* weight_sums = workspace_of(call);
  std::fill(weight_sums, weight_sums + columns, 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = r * columns;
    const double rstd = rstds[r];
    double products = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double n = x[row + c] * rstd;
      products += dy[row + c] * weight[c] * n;
      weight_sums[c] += dy[row + c] * n;
    }
    products /= static_cast<double>(columns);
    for (int64_t c = 0; c < columns; ++c)
      dx.put(row + c, rstd * (dy[row + c] * weight[c] - x[row + c] * rstd * products));
  }
  for (int64_t c = 0; c < columns; ++c) d_weight.put(c, weight_sums[c]);
}

// Radians per position of pair i of a head. llama3 scaling stretches wavelengths above original_context / low
// by `factor`, keeps those below original_context / high, and blends in between (Hugging Face's "llama3" rope
// type).
double inverse_frequency(const OpAttributes& a, int64_t i) {
  const RopeScaling& scaling = a.rope_scaling;
  const double plain =
      std::pow(a.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(a.head_size));
  if (scaling.factor == 1) return plain;
  const double wavelength = 2 * std::numbers::pi / plain;
  if (wavelength > scaling.original_context / scaling.low) return plain / scaling.factor;
  if (wavelength < scaling.original_context / scaling.high) return plain;
  const double share = (scaling.original_context / wavelength - scaling.low) / (scaling.high - scaling.low);
  return (1 - share) * plain / scaling.factor + share * plain;
}

// Rotates every pair by direction * its angle.
template <typename T>
void rotate(const OpShapes& s, const Values<T>& from, const Values<T>& to, double direction) {
  const OpAttributes& a = s.attributes;
  const int64_t rows = s.inputs[0][0], half = a.head_size / 2;
  for (int64_t i = 0; i < half; ++i)
    for (int64_t t = 0; t < a.sequence; ++t) {
      const double angle = direction * static_cast<double>(t) * inverse_frequency(a, i);
      const double cosine = std::cos(angle), sine = std::sin(angle);
      for (int64_t r = t; r < rows; r += a.sequence)
        for (int64_t head = 0; head < a.heads; ++head) {
          const int64_t first = (r * a.heads + head) * a.head_size + i, second = first + half;
          const double x1 = from[first], x2 = from[second];
          to.put(first, x1 * cosine - x2 * sine);
          to.put(second, x2 * cosine + x1 * sine);
        }
    }
}

}  // namespace

void embedding_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&](auto t) { embedding_forward_as<decltype(t)>(call); });
}

void embedding_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&](auto t) { embedding_backward_as<decltype(t)>(call); });
}

void layer_norm_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&](auto t) { layer_norm_forward_as<decltype(t)>(call); });
}

void layer_norm_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&](auto t) { layer_norm_backward_as<decltype(t)>(call); });
}

void rms_norm_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&](auto t) { rms_norm_forward_as<decltype(t)>(call); });
}

void rms_norm_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&](auto t) { rms_norm_backward_as<decltype(t)>(call); });
}

void rope_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    rotate<T>(*call.shapes, Values<T>(call.inputs[0]), Values<T>(call.outputs[0]), 1);
  });
}

void rope_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    rotate<T>(*call.shapes, Values<T>(call.output_gradients[0]), Values<T>(call.input_gradients[0]), -1);
  });
}

// Sums over rows for one table row.
uint64_t embedding_workspace_bytes(const OpShapes& shapes, Pass pass) {
  return pass == Pass::forward ? 0 : static_cast<uint64_t>(shapes.parameters[0][1]) * sizeof(double);
}

// Sums over rows for the parameters.
uint64_t layer_norm_workspace_bytes(const OpShapes& shapes, Pass pass) {
  return pass == Pass::forward ? 0 : 2 * static_cast<uint64_t>(shapes.inputs[0][1]) * sizeof(double);
}

uint64_t rms_norm_workspace_bytes(const OpShapes& shapes, Pass pass) {
  return pass == Pass::forward ? 0 : static_cast<uint64_t>(shapes.inputs[0][1]) * sizeof(double);
}

}  // namespace sluice::reference
