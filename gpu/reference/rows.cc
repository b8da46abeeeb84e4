#include <algorithm>
#include <cmath>

#include "gpu/reference/convert.h"
#include "gpu/reference/kernels.h"

namespace sluice::reference {
namespace {

double square(double x) { return x * x; }

// The row's position in its document; 0 for an idle row.
int64_t position_of(const OpCall& call, int64_t row) {
  const auto* begins = static_cast<const int32_t*>(view_of(call.inputs, 1).data);
  return std::max<int64_t>(0, row % call.shapes->attributes.sequence - (begins == nullptr ? 0 : begins[row]));
}

template <typename T>
void embedding_forward_as(const OpCall& call) {
  const int64_t rows = call.shapes->outputs[0][0], columns = call.shapes->outputs[0][1];
  const auto* tokens = static_cast<const int32_t*>(call.inputs[0].data);
  const Values<T> table(call.parameters[0]), x(call.outputs[0]);
  const bool has_positions = call.parameters.size() == 2;
  const Values<T> positions(has_positions ? call.parameters[1] : TensorView{});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const double entry = call.shapes->attributes.factor() * table[tokens[r] * columns + c];
      x.put(r * columns + c, has_positions ? entry + positions[position_of(call, r) * columns + c] : entry);
    }
}

// gradient[table_row] += factor * the sum of the rows r of dy for which chosen(r) is true, if there are any.
template <typename T, typename Chosen>
void add_chosen_rows(const OpCall& call, const Values<float>& gradient, int64_t table_row, double factor,
                     Chosen chosen) {
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
  for (int64_t c = 0; c < columns; ++c) gradient.put(table_row * columns + c, factor * sums[c]);
}

template <typename T>
void embedding_backward_as(const OpCall& call) {
  const auto* tokens = static_cast<const int32_t*>(call.inputs[0].data);
  const Values<float> d_table = parameter_gradient(call, 0);
  for (int64_t token = 0; d_table && token < call.shapes->parameters[0][0]; ++token)
    add_chosen_rows<T>(call, d_table, token, call.shapes->attributes.factor(),
                       [&](int64_t r) { return tokens[r] == token; });
  if (call.parameters.size() < 2) return;
  const Values<float> d_positions = parameter_gradient(call, 1);
  const int64_t sequence = call.shapes->attributes.sequence;
  for (int64_t position = 0; d_positions && position < sequence; ++position)
    add_chosen_rows<T>(call, d_positions, position, 1,
                       [&](int64_t r) { return position_of(call, r) == position; });
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

// The number of rows of the weight's width. A row of the input consists of one or several of these.
int64_t normalized_rows(const OpShapes& s) { return element_count(s.inputs[0]) / s.parameters[0][0]; }

// What an RMS norm multiplies its columns by.
template <typename T>
struct Factors {
  explicit Factors(const OpCall& call)
      : weight(call.parameters[0]), from(call.shapes->attributes.weight_from_one ? 1 : 0) {}
  double operator[](int64_t i) const { return from + weight[i]; }

  Values<T> weight;
  double from;
};

template <typename T>
void rms_norm_forward_as(const OpCall& call) {
  const int64_t rows = normalized_rows(*call.shapes), columns = call.shapes->parameters[0][0];
  const Values<T> x(call.inputs[0]), y(call.outputs[0]);
  const Factors<T> weight(call);
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

// With n = x * rstd and g = dy * factor: dx = rstd * (g - n * average(g * n)).
template <typename T>
void rms_norm_backward_as(const OpCall& call) {
  const int64_t rows = normalized_rows(*call.shapes), columns = call.shapes->parameters[0][0];
  const Values<T> x(call.inputs[0]);
  const Factors<T> weight(call);
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

// Turns every pair by direction * its angle, and copies the columns that no pair has.
template <typename T>
void rotate(const OpCall& call, const Values<T>& from, const Values<T>& to, double direction) {
  const OpAttributes& a = call.shapes->attributes;
  const int64_t rows = call.shapes->inputs[0][0], columns = call.shapes->inputs[0][1];
  const auto pairs = static_cast<int64_t>(a.frequencies.size());
  for (int64_t r = 0; r < rows; ++r) {
    const auto position = static_cast<double>(position_of(call, r));
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = direction * position * a.frequencies[static_cast<size_t>(i)];
      const double cosine = a.factor() * std::cos(angle), sine = a.factor() * std::sin(angle);
      for (int64_t head = 0; head < a.heads; ++head) {
        const int64_t first = r * columns + head * a.head_size + i, second = first + pairs;
        const double x1 = from[first], x2 = from[second];
        to.put(first, x1 * cosine - x2 * sine);
        to.put(second, x2 * cosine + x1 * sine);
      }
    }
    for (int64_t c = 0; c < columns; ++c)
      if (c >= a.heads * a.head_size || c % a.head_size >= 2 * pairs)
        to.put(r * columns + c, from[r * columns + c]);
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

void pick_rows_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    const Values<T> x(call.inputs[0]), y(call.outputs[0]);
    const auto* rows = static_cast<const int32_t*>(call.inputs[1].data);
    const int64_t columns = call.shapes->inputs[0][1];
    for (int64_t i = 0; i < call.shapes->inputs[1][0]; ++i)
      for (int64_t c = 0; c < columns; ++c) y.put(i * columns + c, x[rows[i] * columns + c]);
  });
}

void rope_forward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    rotate<T>(call, Values<T>(call.inputs[0]), Values<T>(call.outputs[0]), 1);
  });
}

void rope_backward(const OpCall& call) {
  with_precision(call.shapes->precision, [&]<typename T>(T) {
    rotate<T>(call, Values<T>(call.output_gradients[0]), Values<T>(call.input_gradients[0]), -1);
  });
}

// Backward keeps the sums over rows for one table row.
uint64_t embedding_workspace_bytes(const OpShapes& shapes, Pass pass) {
  return pass == Pass::forward ? 0 : static_cast<uint64_t>(shapes.parameters[0][1]) * sizeof(double);
}

// Backward keeps the sums over rows for the two parameters.
uint64_t layer_norm_workspace_bytes(const OpShapes& shapes, Pass pass) {
  return pass == Pass::forward ? 0 : 2 * static_cast<uint64_t>(shapes.inputs[0][1]) * sizeof(double);
}

uint64_t rms_norm_workspace_bytes(const OpShapes& shapes, Pass pass) {
  return pass == Pass::forward ? 0 : static_cast<uint64_t>(shapes.parameters[0][0]) * sizeof(double);
}

}  // namespace sluice::reference
